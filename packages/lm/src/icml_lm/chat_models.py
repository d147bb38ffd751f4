"""A chat client from a model's name, with what usually stands around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icml_lm.client import ChatClient
from icml_lm.model_names import ModelName
from icml_lm.wrappers import Budget, Cached


def chat_client(
    name: str,
    *,
    cache: str | Path | None = None,
    calls: int | None = None,
    tokens: int | None = None,
    **options: Any,
) -> ChatClient:
    """The client that a name stands for.

    Args:
        name: ``smollm2``, ``hf:PATH``, ``tiny:NAME``, ``openai:MODEL@URL`` or ``scripted:NAME``.
        cache: a folder for answers; a question that was asked before costs nothing.
        calls: how many calls are allowed; cached answers are none.
        tokens: how many tokens, read and written, are allowed.
        **options: of the client itself, such as ``timeout`` and ``api_key_env`` of an endpoint, ``device``
            and ``dtype`` of a local model.

    Raises:
        ValueError: for a name that has none of the forms.
        NeedsError: where the extra that it takes is not installed.

    Example:
        >>> chat_client("scripted:echo").chat("hello")[0].text
        'hello'
    """
    client = _bare(ModelName.parse(name), options)
    if calls is not None or tokens is not None:
        client = Budget(client, calls=calls, tokens=tokens)
    return client if cache is None else Cached(client, cache)


def _bare(model: ModelName, options: dict[str, Any]) -> ChatClient:
    if model.kind == "openai":
        from icml_lm.openai_client import OpenAIClient

        return OpenAIClient(model.value, model.url or None, **options)
    if model.kind == "scripted":
        from icml_lm.scripted_client import ScriptedClient

        if options:
            raise ValueError(f"{model} takes no options; got {', '.join(options)}")
        return ScriptedClient.named(model.value)
    from icml_lm.transformers_client import TransformersClient

    return TransformersClient(str(model), **options)
