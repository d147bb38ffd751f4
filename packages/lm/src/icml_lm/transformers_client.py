"""A local model as a chat client: batched, with its own chat template, the same answer for the same seed."""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from icml_core.errors import NeedsError, install_command

from icml_lm.client import ChatClient, ChatError, ChatRefusedError, Completion, Request

if TYPE_CHECKING:
    import torch

    from icml_lm.generation import Text


class TransformersClient(ChatClient):
    """A causal model in this process: SmolLM2, a tiny one, or any of transformers.

    Answers do not depend on what stands beside them in a batch: every answer has a generator of its own,
        seeded by
    the request's seed and the answer's number.

    A tokenizer without a chat template (those of tiny models) gets the contents of the messages, one a line.

    Args:
        model: a name (``smollm2``, ``hf:PATH``, ``tiny:NAME``), or the model itself.
        tokenizer: of a model given as such.
        device, dtype: of a model given by name.
        batch: conversations that are answered together.
        name: of a model given as such, for caches and records.

    Raises:
        NeedsError: where torch is not installed.
        ValueError: for a model without a tokenizer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        batch: int = 16,
        name: str | None = None,
    ) -> None:
        try:
            import torch

            from icml_lm.models import load
        except ImportError as error:
            raise NeedsError("icml-lm[hf]", hint=install_command("icml-lm[hf]")) from error
        if batch < 1:
            raise ValueError(f"batch = {batch}; at least 1 is wanted")
        if isinstance(model, str):
            self.name = name or model
            model, tokenizer = load(model, dtype=dtype or torch.float32, device=device)
        else:
            self.name = name or f"hf:{type(model).__name__}"
        if tokenizer is None:
            raise ValueError(f"{self.name} is given without its tokenizer; pass tokenizer=")
        self.model, self.tokenizer, self.batch = model, tokenizer, batch
        self._lock = threading.Lock()

    def complete(self, request: Request) -> list[Completion]:
        """The model's answers."""
        (answer,) = self.complete_all([request])
        if isinstance(answer, ChatError):
            raise answer
        return answer

    def complete_all(
        self, requests: Sequence[Request], *, concurrency: int = 8, done: Callable[[int], None] | None = None
    ) -> list[list[Completion] | ChatError]:
        """The answers to many requests; those with the same settings are generated together."""
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, r in enumerate(requests):
            groups[r.n, r.temperature, r.top_p, r.max_tokens, r.stop, r.logprobs].append(place)
        answers: dict[int, list[Completion] | ChatError] = {}
        for places in groups.values():
            for start in range(0, len(places), self.batch):
                batch = places[start : start + self.batch]
                found = self._together([requests[place] for place in batch])
                for place, answer in zip(batch, found, strict=True):
                    answers[place] = answer
                    if done is not None:
                        done(place)
        return [answers[place] for place in range(len(requests))]

    def _together(self, requests: list[Request]) -> list[list[Completion]] | list[ChatError]:
        import torch

        from icml_lm.generation import generate_text

        first = requests[0]
        generators = None
        if first.temperature > 0:
            seeds = [r.seed if r.seed is not None else secrets.randbits(63) for r in requests]
            generators = [
                torch.Generator().manual_seed(_mixed(seed, number))
                for seed in seeds
                for number in range(first.n)
            ]
        began = time.perf_counter()
        try:
            with self._lock:
                texts = generate_text(
                    self.model,
                    self.tokenizer,
                    [self._prompt(r) for r in requests],
                    max_new_tokens=first.max_tokens,
                    temperature=first.temperature,
                    top_p=first.top_p,
                    stop=first.stop,
                    share_prefix=first.n,
                    generator=generators,
                )
        except ValueError as error:
            refused = ChatRefusedError(f"{self.name}: {error}")
            return [refused] * len(requests)
        seconds = (time.perf_counter() - began) / len(requests)
        return [
            [
                self._completion(text, request, number, seconds)
                for number, text in enumerate(texts[place * first.n : (place + 1) * first.n])
            ]
            for place, request in enumerate(requests)
        ]

    def _prompt(self, request: Request) -> Any:
        if hasattr(self.tokenizer, "apply_chat_template"):
            return request.as_messages()
        return "\n".join(content for _, content in request.messages)

    def _tokens_in(self, request: Request) -> int:
        from icml_lm.batching import chat_prompt, token_ids

        prompt = self._prompt(request)
        if isinstance(prompt, str):
            return len(token_ids(self.tokenizer, prompt))
        return len(chat_prompt(self.tokenizer, prompt))

    def _completion(self, text: Text, request: Request, number: int, seconds: float) -> Completion:
        return Completion(
            text=text.text,
            tokens_in=self._tokens_in(request) if number == 0 else 0,
            tokens_out=len(text.ids),
            token_logprobs=tuple(text.logp) if request.logprobs else None,
            finish="length" if text.finish == "length" else "stop",
            seconds=seconds,
        )


def _mixed(seed: int, number: int) -> int:
    """A seed for answer ``number``: neighbours of a seed do not meet those of another (splitmix64)."""
    mask = (1 << 64) - 1
    mixed = (seed * 0x9E3779B97F4A7C15 + number + 1) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 1
