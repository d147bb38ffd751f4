"""Any endpoint that speaks OpenAI's chat protocol, through OpenAI's own library."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from icml_core.errors import NeedsError, install_command

from icml_lm.client import (
    BadReplyError,
    ChatClient,
    ChatError,
    ChatRefusedError,
    ChatTimeoutError,
    ChatUnavailableError,
    Completion,
    Request,
)
from icml_lm.model_names import ModelName

if TYPE_CHECKING:
    import openai


class OpenAIClient(ChatClient):
    """A model behind an OpenAI-compatible endpoint (OpenAI, vLLM, llama.cpp, Ollama, ...).

    The library itself asks again, with exponential backoff and after the time that the endpoint names, when
    it is unreachable, overloaded, or fails.

    Args:
        model: the endpoint's name for the model.
        base_url: its address, up to ``/v1``; OpenAI's own by default.
        api_key_env: name of the environment variable that holds the key. Its value is read when a call is
            made and is kept out of every name, error and record; an endpoint that wants none needs none.
        timeout: seconds for one call.
        max_retries: how often the library asks again.
        extra: further fields of the request's body that an endpoint understands.

    Raises:
        NeedsError: where the library is not installed.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        max_retries: int = 4,
        extra: dict[str, Any] | None = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise NeedsError("icml-lm[openai]", hint=install_command("icml-lm[openai]")) from error
        if timeout <= 0 or max_retries < 0:
            raise ValueError(f"timeout = {timeout}, max_retries = {max_retries}; positive, and 0 or more")
        self.name = str(ModelName.parse(f"openai:{model}@{base_url}" if base_url else f"openai:{model}"))
        self.model, self.base_url = model, base_url
        self.api_key_env, self.extra = api_key_env, dict(extra or {})
        self._client = openai.OpenAI(
            api_key=self._key, base_url=base_url, timeout=timeout, max_retries=max_retries
        )

    def _key(self) -> str:
        return os.environ.get(self.api_key_env) or "no-key"

    def complete(self, request: Request) -> list[Completion]:
        """Answers from the endpoint. Where it gives fewer than asked for, it is asked for the rest."""
        found: list[Completion] = []
        while len(found) < request.n:
            seed = None if request.seed is None else request.seed + len(found)
            found += self._call(request, request.n - len(found), seed)
        return found[: request.n]

    def _call(self, request: Request, n: int, seed: int | None) -> list[Completion]:
        fields: dict[str, Any] = {"max_tokens": request.max_tokens, "n": n, **self.extra}
        if request.stop:
            fields["stop"] = list(request.stop)
        if seed is not None:
            fields["seed"] = seed
        if request.logprobs:
            fields["logprobs"] = True
        began = time.perf_counter()
        try:
            reply = self._client.chat.completions.create(
                model=self.model,
                messages=request.as_messages(),  # type: ignore[arg-type]  # checked when the request was made
                temperature=request.temperature,
                top_p=request.top_p,
                **fields,
            )
        except Exception as error:
            raise self._translated(error) from None  # its traceback and request may carry the key
        return self._completions(reply, request, time.perf_counter() - began)

    def _completions(self, reply: Any, request: Request, seconds: float) -> list[Completion]:
        choices = getattr(reply, "choices", None)
        if not isinstance(choices, list) or not choices:
            raise BadReplyError(f"{self.name} answered without choices: {self._safe(repr(reply))}")
        usage = getattr(reply, "usage", None)
        tokens_in = int(getattr(usage, "prompt_tokens", 0) or 0)
        tokens_out = int(getattr(usage, "completion_tokens", 0) or 0)
        share = [tokens_out // len(choices)] * len(choices)  # the protocol gives the sum only
        share[0] += tokens_out - sum(share)
        found = []
        for place, choice in enumerate(choices):
            message = getattr(choice, "message", None)
            text = getattr(message, "content", None)
            if text is None:
                text = getattr(message, "refusal", None) or ""
            if not isinstance(text, str):
                raise BadReplyError(f"{self.name} answered with the content {self._safe(repr(text))}")
            logprobs = None
            if request.logprobs and getattr(choice, "logprobs", None) is not None:
                logprobs = tuple(float(token.logprob) for token in choice.logprobs.content or ())
            found.append(
                Completion(
                    text=text,
                    tokens_in=tokens_in if place == 0 else 0,
                    tokens_out=len(logprobs) if logprobs is not None else share[place],
                    token_logprobs=logprobs,
                    finish=getattr(choice, "finish_reason", None) or "stop",
                    seconds=seconds,
                    fingerprint=getattr(reply, "system_fingerprint", None),
                )
            )
        return found

    def _translated(self, error: Exception) -> ChatError:
        """The library's error as ours, without the key."""
        import openai

        text = self._safe(str(error))
        if isinstance(error, openai.APITimeoutError):
            return ChatTimeoutError(
                f"{self.name} did not answer in time; raise timeout or ask for less ({text})"
            )
        if isinstance(error, openai.APIConnectionError):
            return ChatUnavailableError(f"{self.name} cannot be reached; is the server running? ({text})")
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            if status in (408, 409, 429) or status >= 500:
                return ChatUnavailableError(f"{self.name} answered {status}: {text}", _retry_after(error))
            hint = ""
            if status in (401, 403):
                hint = f"; is the key in the environment variable {self.api_key_env} right?"
            return ChatRefusedError(f"{self.name} refused the request with {status}: {text}{hint}")
        return BadReplyError(
            f"{self.name} answered with something that is no chat completion: {text or type(error).__name__}"
        )

    def _safe(self, text: str) -> str:
        key = os.environ.get(self.api_key_env)
        return text.replace(key, "[key]")[:2000] if key else text[:2000]


def _retry_after(error: openai.APIStatusError) -> float | None:
    try:
        return float(error.response.headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
