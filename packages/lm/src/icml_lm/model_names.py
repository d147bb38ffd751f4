"""One string names a model, in Python and on the command line alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["smollm2", "hf", "tiny", "openai", "scripted"]
FORMS = "smollm2 | hf:PATH | tiny:NAME | openai:MODEL@URL | scripted:NAME"


@dataclass(frozen=True)
class ModelName:
    """What a model's string says.

    Attributes:
        kind: where the model lives.
        value: the path, the name, or the endpoint's name for the model; empty for ``smollm2``.
        url: the endpoint's address, for ``openai`` only; empty for OpenAI's own.
    """

    kind: Kind
    value: str = ""
    url: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Read ``smollm2``, ``hf:PATH``, ``tiny:NAME``, ``openai:MODEL@URL`` or ``scripted:NAME``.

        The path of a folder or of a ``.gguf`` file that exists may stand without ``hf:``.

        Raises:
            ValueError: where the text has none of these forms, or the address carries a password, which would
                then be written wherever the model's name is.

        Example:
            >>> ModelName.parse("openai:gpt-oss@http://localhost:8000/v1").value
            'gpt-oss'
        """
        kind, colon, value = text.strip().partition(":")
        if kind == "smollm2" and not colon:
            return cls("smollm2")
        if kind in ("hf", "tiny", "scripted") and value:
            return cls(kind, value)  # type: ignore[arg-type]  # one of the literals, as just tested
        if kind == "openai" and value:
            model, at, url = value.partition("@")
            return cls("openai", model, _address(url, text) if at else "")
        if text.strip() and Path(text).exists():
            return cls("hf", text)
        raise ValueError(f"{text!r} names no model; one of {FORMS}, or an existing folder or .gguf file")

    def __str__(self) -> str:
        if self.kind == "openai":
            return f"openai:{self.value}@{self.url}" if self.url else f"openai:{self.value}"
        return f"{self.kind}:{self.value}" if self.value else self.kind


def _address(url: str, text: str) -> str:
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        shown = text.partition("@")[0]
        raise ValueError(
            f"the address in {shown}@... carries a user, a password or a query; put the key into an "
            "environment variable and name it with api_key_env, so that it is never written into a run"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{url!r} in {text!r} is no http address; write openai:MODEL@http://localhost:8000/v1"
        )
    return url.rstrip("/")
