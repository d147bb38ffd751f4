"""Chat models that answer from a function or a recording: for tests, simulations and exact repetition."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from icml_lm.client import BadReplyError, ChatClient, Completion, Request

Script = Callable[[Request], "str | Completion | Sequence[str | Completion]"]
_SCRIPTS: dict[str, Script] = {}


def register_script(name: str, script: Script) -> None:
    """Make ``scripted:NAME`` answer with ``script``.

    Raises:
        ValueError: where the name is taken by another function.
    """
    if _SCRIPTS.get(name, script) is not script:
        raise ValueError(f"scripted:{name} is taken by {_SCRIPTS[name]!r}; choose another name")
    _SCRIPTS[name] = script


def echo(request: Request) -> str:
    """The last message."""
    return request.messages[-1][1]


register_script("echo", echo)


class ScriptedClient(ChatClient):
    """A model that is a function of the request.

    Args:
        script: gives a text, a :class:`Completion`, or a sequence of ``request.n`` of them. Randomness comes
            from ``request.seed``, so that equal requests have equal answers. Tokens are counted as words
            where the script gives bare texts.
        name: of the model, for caches and records.

    Example:
        >>> ScriptedClient(lambda request: request.messages[-1][1].upper()).chat("hi")[0].text
        'HI'
    """

    def __init__(self, script: Script, name: str | None = None) -> None:
        self._script = script
        self.name = f"scripted:{name or getattr(script, '__name__', type(script).__name__)}"

    @classmethod
    def named(cls, name: str) -> ScriptedClient:
        """The client of ``scripted:NAME``: a registered script, a recording's path, or ``module:function``.

        Raises:
            ValueError: where nobody knows the name.
        """
        if name in _SCRIPTS:
            return cls(_SCRIPTS[name], name)
        if Path(name).is_file():
            return cls.replay(name)
        module, colon, function = name.partition(":")
        if colon:
            try:
                return cls(getattr(import_module(module), function), name)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"scripted:{name}: {error}") from error
        known = ", ".join(sorted(_SCRIPTS))
        raise ValueError(
            f"scripted:{name} is no registered script ({known}), no recording's path, no module:function"
        )

    @classmethod
    def replay(cls, path: str | Path) -> ScriptedClient:
        """A client that repeats what :class:`~icml_lm.Recorded` wrote: equal requests get equal answers.

        A request that was recorded several times gets its answers in the order of the recording.

        Raises:
            ValueError: where the file is no recording; it names the line.
        """
        answers: dict[Request, deque[list[Completion]]] = defaultdict(deque)
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                data = json.loads(line)
                asked = dict(data["request"])
                asked["messages"] = [
                    {"role": role, "content": content} for role, content in asked["messages"]
                ]
                completions = [Completion.from_json(c) for c in data["completions"]]
                answers[Request.of(**asked)].append(completions)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number} is no recorded answer: {error}") from error
        lock = threading.Lock()

        def recorded(request: Request) -> list[Completion]:
            with lock:
                waiting = answers.get(request)
                if not waiting:
                    said = "was never" if waiting is None else "was not so often"
                    raise BadReplyError(f"the recording {path} has no answer: this {said} asked: {request}")
                return waiting.popleft()

        return cls(recorded, str(path))

    def complete(self, request: Request) -> list[Completion]:
        """The script's answers."""
        answer = self._script(request)
        given = [answer] if isinstance(answer, (str, Completion)) else list(answer)
        if len(given) == 1 and request.n > 1 and isinstance(answer, (str, Completion)):
            given *= request.n
        if len(given) != request.n:
            raise BadReplyError(f"{self.name} gave {len(given)} answers where {request.n} were asked for")
        words_in = sum(len(content.split()) for _, content in request.messages)
        return [
            c
            if isinstance(c, Completion)
            else Completion(c, tokens_in=words_in if place == 0 else 0, tokens_out=len(c.split()))
            for place, c in enumerate(given)
        ]
