"""What stands around a chat client: answers kept on disk, a budget, repeated attempts, a record.

Wrap from the inside out: ``Cached(Budget(Retry(client)), folder)`` pays nothing for an answer that it has,
and counts every call that is made.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from icml_lm.client import (
    BadReplyError,
    BudgetExhaustedError,
    ChatClient,
    ChatError,
    ChatUnavailableError,
    Completion,
    Request,
)

BATCH = 64  # questions that a local model is given between two writes to disk


class Wrapper(ChatClient):
    """A client around another one, whose name it keeps."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner
        self.name = inner.name

    def complete(self, request: Request) -> list[Completion]:
        """The inner client's answers."""
        return self.inner.complete(request)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class Cached(Wrapper):
    """Never asks the same question twice: answers are kept in a folder, one file each.

    The key is a digest of the model's name and the whole request. To draw anew, give another seed: a request
    without a seed gets the answer that it got the first time, also at a positive temperature.

    Args:
        inner: the client.
        folder: where the answers are; several processes may share it.
    """

    def __init__(self, inner: ChatClient, folder: str | Path) -> None:
        super().__init__(inner)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def complete(self, request: Request) -> list[Completion]:
        """The kept answer, or the inner client's, which is then kept."""
        key = request.key(self.name)
        with self._lock:
            asking = self._asking[key]
        with asking:  # the same question at the same time is asked once
            found = self._read(key)
            if found is None:
                found = self.inner.complete(request)
                self._write(key, request, found)
                self._count(hit=False)
            else:
                self._count(hit=True)
        return found

    def complete_all(
        self, requests: Sequence[Request], *, concurrency: int = 8, done: Callable[[int], None] | None = None
    ) -> list[list[Completion] | ChatError]:
        """Answers that are there, and the rest from the inner client; each is on disk before the next is
        awaited.

        A local model, which answers many questions in one go, is given ``BATCH`` at a time.
        """
        if type(self.inner).complete_all is ChatClient.complete_all:
            return super().complete_all(requests, concurrency=concurrency, done=done)
        keys = [request.key(self.name) for request in requests]
        answers: dict[str, list[Completion] | ChatError] = {}
        for key in dict.fromkeys(keys):
            if (found := self._read(key)) is not None:
                answers[key] = found
        missing = [(key, request) for key, request in zip(keys, requests, strict=True) if key not in answers]
        missing = list(dict(missing).items())
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            fresh = self.inner.complete_all([request for _, request in batch], concurrency=concurrency)
            for (key, request), answer in zip(batch, fresh, strict=True):
                answers[key] = answer
                if not isinstance(answer, ChatError):
                    self._write(key, request, answer)
        asked = {key for key, _ in missing}
        for place, key in enumerate(keys):
            self._count(hit=key not in asked)
            asked.discard(key)
            if done is not None:
                done(place)
        return [answers[key] for key in keys]

    def _count(self, *, hit: bool) -> None:
        with self._lock:
            self.hits += hit
            self.misses += not hit

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> list[Completion] | None:
        path = self._path(key)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return [Completion.from_json(c) for c in data["completions"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(
                f"{path} holds no answer and is asked for again: {error}", RuntimeWarning, stacklevel=3
            )
            return None

    def _write(self, key: str, request: Request, completions: list[Completion]) -> None:
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        data = {
            "model": self.name,
            "request": asdict(request),
            "completions": [c.to_json() for c in completions],
        }
        _replace(path, json.dumps(data, ensure_ascii=False))


@dataclass
class Usage:
    """What was used so far."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.tokens_in + self.tokens_out


class Budget(Wrapper):
    """Counts calls and tokens, and refuses to go on when those allowed are used up.

    The number of calls is never exceeded, by however many threads. Tokens are known only afterwards: the
    calls that are under way when the limit is reached are completed.

    Args:
        inner: the client.
        calls: how many calls are allowed; None for any number.
        tokens: how many tokens, read and written together.
    """

    def __init__(self, inner: ChatClient, *, calls: int | None = None, tokens: int | None = None) -> None:
        super().__init__(inner)
        for what, allowed in (("calls", calls), ("tokens", tokens)):
            if allowed is not None and allowed < 0:
                raise ValueError(f"{what} = {allowed}; 0 or more is wanted")
        self.calls, self.tokens = calls, tokens
        self.used = Usage()
        self._lock = threading.Lock()

    def complete(self, request: Request) -> list[Completion]:
        """The inner client's answers, counted.

        Raises:
            BudgetExhaustedError: before a call that would go beyond what is allowed.
        """
        with self._lock:
            if self.calls is not None and self.used.calls >= self.calls:
                raise BudgetExhaustedError(f"{self.name}: all {self.calls} calls of the budget are used")
            if self.tokens is not None and self.used.tokens >= self.tokens:
                raise BudgetExhaustedError(
                    f"{self.name}: {self.used.tokens} tokens are used, {self.tokens} were allowed"
                )
            self.used.calls += 1
        began = time.perf_counter()
        try:
            completions = self.inner.complete(request)
        finally:
            with self._lock:
                self.used.seconds += time.perf_counter() - began
        with self._lock:
            self.used.tokens_in += sum(c.tokens_in for c in completions)
            self.used.tokens_out += sum(c.tokens_out for c in completions)
        return completions


class Retry(Wrapper):
    """Asks again where that may help: an endpoint that is unreachable or overloaded, a reply that is none.

    :class:`~icml_lm.OpenAIClient` has this from its library already; this is for other clients, and for
    endpoints that answer wrongly.

    Args:
        inner: the client.
        attempts: calls in all.
        wait: seconds before the second attempt; doubled each time, with a random share of up to a half taken
            off so that many clients do not come back together. A time named by the endpoint is kept to.
        longest: no wait is longer.
        sleep: how to wait; tests pass their own.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        attempts: int = 4,
        wait: float = 1.0,
        longest: float = 60.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        if attempts < 1 or wait < 0 or longest < 0:
            raise ValueError(f"attempts = {attempts}, wait = {wait}, longest = {longest}; at least 1, 0, 0")
        self.attempts, self.wait, self.longest, self._sleep = attempts, wait, longest, sleep

    def complete(self, request: Request) -> list[Completion]:
        """The first good answer; after the last attempt, its error."""
        for attempt in range(1, self.attempts + 1):
            try:
                return self.inner.complete(request)
            except (ChatUnavailableError, BadReplyError) as error:
                if attempt == self.attempts:
                    error.add_note(f"after {attempt} attempts")
                    raise
                pause = self.wait * 2 ** (attempt - 1) * (1 - random.random() / 2)
                named = getattr(error, "retry_after", None)
                self._sleep(min(self.longest, max(pause, named or 0.0)))
        raise AssertionError("unreachable: the last attempt returns or raises")


class Recorded(Wrapper):
    """Writes every request with its answers into a file, one JSON object a line.

    :meth:`ScriptedClient.replay` repeats it.

    Args:
        inner: the client.
        path: the file; what it holds already is kept.
    """

    def __init__(self, inner: ChatClient, path: str | Path) -> None:
        super().__init__(inner)
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def complete(self, request: Request) -> list[Completion]:
        """The inner client's answers, recorded before they are returned."""
        completions = self.inner.complete(request)
        line = json.dumps(
            {"request": asdict(request), "completions": [c.to_json() for c in completions]},
            ensure_ascii=False,
        )
        with self._lock, self.path.open("ab") as file:
            file.write((line + "\n").encode())
        return completions


def _replace(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
