"""What every chat model looks like to the code that asks it: requests, completions, errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, overload

from icml_core.errors import UserError

Message = Mapping[str, str]
ROLES = ("system", "user", "assistant", "tool", "developer")


class ChatError(UserError):
    """A chat model gave no usable answer."""


class ChatUnavailableError(ChatError):
    """The endpoint cannot be reached, is overloaded or failed by itself; asking again may help."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ChatTimeoutError(ChatUnavailableError):
    """No answer in the time allowed."""


class BadReplyError(ChatError):
    """The answer is not what the protocol promises."""


class ChatRefusedError(ChatError):
    """The endpoint refuses the request as it stands (key, model, parameters); asking again does not help."""


class BudgetExhaustedError(ChatError):
    """The calls or tokens that were allowed are used up."""


@dataclass(frozen=True)
class Request:
    """One question, with everything that the answer may depend on.

    Attributes:
        messages: the conversation, as pairs of role and content.
        n: how many answers are wanted.
        temperature: of the sampling; 0 is greedy.
        top_p: mass of the nucleus.
        max_tokens: longest answer, in the model's tokens.
        stop: strings that end the answer and are not part of it.
        seed: asked of the endpoint, which may ignore it; None leaves the choice to it.
        logprobs: whether the log-probabilities of the answer's tokens are wanted.
    """

    messages: tuple[tuple[str, str], ...]
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False

    @classmethod
    def of(cls, messages: str | Sequence[Message], **options: Any) -> Request:
        """A request from a user's text or a list of ``{"role", "content"}``.

        Raises:
            ValueError: for an empty conversation, an unknown role, a content that is no text, and options out
                of their range.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        pairs = []
        for place, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if role not in ROLES:
                raise ValueError(f"message {place} has the role {role!r}; one of {', '.join(ROLES)}")
            if not isinstance(content, str):
                raise ValueError(f"message {place} has the content {content!r}; a text is wanted")
            pairs.append((role, content))
        if not pairs:
            raise ValueError("no message: a conversation has at least one")
        if isinstance(stop := options.get("stop", ()), str):
            options["stop"] = (stop,)
        else:
            options["stop"] = tuple(stop)
        request = cls(tuple(pairs), **options)
        request.check()
        return request

    def check(self) -> None:
        """Refuse options outside their range."""
        if self.n < 1 or self.max_tokens < 1:
            raise ValueError(f"n = {self.n} and max_tokens = {self.max_tokens}; both must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature = {self.temperature}; 0 (greedy) or a positive number is wanted")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}; a mass in (0, 1] is wanted")
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop = {self.stop!r}; texts that are not empty are wanted")

    def key(self, model: str) -> str:
        """A digest of the request and the model's name: equal questions have equal keys, on every machine."""
        text = json.dumps({"model": model, **asdict(self)}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def as_messages(self) -> list[dict[str, str]]:
        """The conversation as a list of ``{"role", "content"}``."""
        return [{"role": role, "content": content} for role, content in self.messages]


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        text: the answer, without the stop string.
        tokens_in: tokens of the prompt; of several answers to one request the first carries them, so that
            sums are what was paid.
        tokens_out: tokens of the answer.
        token_logprobs: natural logarithms of the probabilities of the answer's tokens, where asked for and
            given.
        finish: ``"stop"``, ``"length"`` (cut at ``max_tokens``), or the endpoint's own word.
        seconds: wall-clock time of the call.
        fingerprint: what the endpoint says of its own version; equal seeds agree only where it is equal.
    """

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    token_logprobs: tuple[float, ...] | None = None
    finish: str = "stop"
    seconds: float = field(default=0.0, compare=False)
    fingerprint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Completion:
        """The completion of :meth:`to_json`.

        Raises:
            ValueError: where a field is missing or of another type.
        """
        try:
            logprobs = data["token_logprobs"]
            return cls(
                text=_typed(data["text"], str),
                tokens_in=_typed(data["tokens_in"], int),
                tokens_out=_typed(data["tokens_out"], int),
                token_logprobs=None if logprobs is None else tuple(float(x) for x in logprobs),
                finish=_typed(data["finish"], str),
                seconds=float(data["seconds"]),
                fingerprint=data["fingerprint"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no completion: {error}") from error


def _typed(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    return value


class ChatClient(ABC):
    """A chat model: :meth:`complete` is what a new one has to say; the rest follows from it.

    Clients are safe to call from several threads at once.
    """

    name: str
    """The model's string; part of the key under which its answers are cached."""

    @abstractmethod
    def complete(self, request: Request) -> list[Completion]:
        """Exactly ``request.n`` answers.

        Raises:
            ChatError: where there is no usable answer.
        """

    def complete_all(
        self, requests: Sequence[Request], *, concurrency: int = 8, done: Callable[[int], None] | None = None
    ) -> list[list[Completion] | ChatError]:
        """The answers to many requests, in their order; a request that failed has its error in its place.

        Args:
            requests: what to ask.
            concurrency: how many calls may wait at once.
            done: called with the place of each request when it is answered.
        """

        def one(request: Request) -> list[Completion] | ChatError:
            try:
                return self.complete(request)
            except ChatError as error:
                return error

        answers: dict[Future[list[Completion] | ChatError], int] = {}
        found: dict[int, list[Completion] | ChatError] = {}
        pool = ThreadPoolExecutor(max(1, min(concurrency, len(requests))), thread_name_prefix="chat")
        try:
            answers = {pool.submit(one, request): place for place, request in enumerate(requests)}
            pending = set(answers)
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    found[answers[future]] = future.result()
                    if done is not None:
                        done(answers[future])
        finally:  # after Ctrl-C only the calls that are under way are waited for
            pool.shutdown(wait=True, cancel_futures=True)
        return [found[place] for place in range(len(requests))]

    def chat(self, messages: str | Sequence[Message], **options: Any) -> list[Completion]:
        """Answers to one conversation.

        Args:
            messages: a user's text, or a list of ``{"role", "content"}``.
            **options: the fields of :class:`Request`: ``n``, ``temperature``, ``top_p``, ``max_tokens``,
                ``stop``, ``seed``, ``logprobs``.

        Raises:
            ValueError: for a conversation or an option that cannot be asked.
            ChatError: where there is no usable answer.
        """
        return self.complete(Request.of(messages, **options))

    async def achat(self, messages: str | Sequence[Message], **options: Any) -> list[Completion]:
        """As :meth:`chat`, without blocking the event loop."""
        return await asyncio.to_thread(self.complete, Request.of(messages, **options))

    @overload
    def chat_many(
        self,
        conversations: Iterable[str | Sequence[Message]],
        *,
        concurrency: int = 8,
        errors: Literal["raise"] = "raise",
        done: Callable[[int], None] | None = None,
        **options: Any,
    ) -> list[list[Completion]]: ...

    @overload
    def chat_many(
        self,
        conversations: Iterable[str | Sequence[Message]],
        *,
        concurrency: int = 8,
        errors: Literal["return"],
        done: Callable[[int], None] | None = None,
        **options: Any,
    ) -> list[list[Completion] | ChatError]: ...

    def chat_many(
        self,
        conversations: Iterable[str | Sequence[Message]],
        *,
        concurrency: int = 8,
        errors: Literal["raise", "return"] = "raise",
        done: Callable[[int], None] | None = None,
        **options: Any,
    ) -> Any:
        """Answers to many conversations, several asked at once (local models: batched).

        Args:
            conversations: each as in :meth:`chat`.
            concurrency: how many calls may wait at once.
            errors: ``"raise"`` the first error once all are answered, or ``"return"`` it in its place.
            done: called with the place of each conversation when it is answered.
            **options: as in :meth:`chat`.

        Raises:
            ChatError: with ``errors="raise"``, where a conversation has no usable answer. What was answered
                is not lost where the client is cached.
        """
        requests = [Request.of(conversation, **options) for conversation in conversations]
        answers = self.complete_all(requests, concurrency=concurrency, done=done)
        if errors == "raise":
            for place, answer in enumerate(answers):
                if isinstance(answer, ChatError):
                    answer.add_note(f"conversation {place} of {len(answers)}")
                    raise answer
        return answers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
