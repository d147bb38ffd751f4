"""Hinted decoding: a data set rewritten in the model's own words, its answers kept right.

Two streams of one model write one answer. The target p sees the question and the known answer, the drafter q
the question alone. Where p is sure of the next token (the hint dictates) it is followed, where it is not (the
wording is free) q is:

    h = H(p) / log V,   λ = clip(beta h, 0, 1),   log m = (1 - λ) log p + λ log q + constant,

then the nucleus of m, then the temperature. The first token comes from p, and after the split string has
appeared q goes on alone. arXiv 2602.12222 and its published decoder.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_lm import generate
from icml_lm.batching import token_ids
from icml_lm.sampling import Generators, uniforms
from torch import Tensor

from icml_idft.demonstrations import prompt_ids
from icml_idft.hinted_streams import Finish, Settings, write

Prompt = str | Sequence[Any]
"""A text, a conversation, or token ids."""

MARKER = "# CoT"
"""What stands between the target's analysis, which is thrown away, and the answer."""
INSTRUCTION = (
    "{prompt}\n\n"
    "The correct answer to the question above is:\n{hint}\n\n"
    "Work in two parts. Under the heading '# Analysis', think briefly about how the answer comes about. Then "
    "write the heading '# CoT' on a line of its own, and under it a full step-by-step solution of the "
    "question, as if you had found it yourself: never mention that the answer was given. End with the final "
    "answer in \\boxed{{}}."
)
"""What the target is asked by default, in place of the question."""
NEVER = 0.05
"""λ that is never above this says that the drafter had no say."""


@dataclass(frozen=True)
class Hinted:
    """A rewritten answer.

    Attributes:
        text: without its end token.
        ids: its tokens, the end token included.
        phi_mean: mean centred log-likelihood of the tokens under the drafter, at temperature 1, in nats.
        lam_mean: mean λ over the tokens where the entropy decided.
        finish: ``"eos"``, ``"length"``, or ``"repeating"`` where it went in circles.
    """

    text: str
    ids: tuple[int, ...]
    phi_mean: float
    lam_mean: float
    finish: Finish


class HintedDecoder:
    """Rewrites answers.

    Args:
        model: the drafter q, and the target p where ``target_model`` is None.
        tokenizer: of both.
        beta: how fast λ grows with the target's entropy; 0 is self-distillation from the hinted prompt.
        mode: ``"linear"``, ``"sigmoid"`` (λ = σ(beta (h - 1/2))), ``"piecewise"`` (0 at h = 0.3, 1 at 0.7).
        top_p: of the nucleus, which is taken before the temperature.
        temperature: of the draw; 0 takes the most probable token.
        split: text after which q goes on alone; None for never.
        target_model: another model for p, over the same vocabulary.
        hinted_prompt: ``(prompt, hint) -> prompt`` of the target; the instruction above by default.
        analysis: tokens that the target may think, greedily, until the marker; by default 512 with the
            instruction above and 0 with another prompt.
        marker: ends the analysis.
        vocabulary: the V of h: ``"model"`` (the columns of its logits, padding included, as published),
            ``"tokenizer"``, or a number.
        one_by_one: a row at a time, for 16-bit models whose rounding depends on the size of a batch.
        eos_id: tokens that end an answer; the tokenizer's and both models' by default.

    Raises:
        ValueError: settings out of range, vocabularies that differ, a split that the tokenizer cannot write.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        beta: float = 3.0,
        mode: Literal["linear", "sigmoid", "piecewise"] = "linear",
        top_p: float = 0.95,
        temperature: float = 0.3,
        split: str | None = "\\boxed{",
        target_model: Any = None,
        *,
        hinted_prompt: Callable[[Any, str], Prompt] | None = None,
        analysis: int | None = None,
        marker: str = MARKER,
        vocabulary: Literal["model", "tokenizer"] | int = "model",
        one_by_one: bool = False,
        eos_id: int | Sequence[int] | None = None,
    ) -> None:
        if not (beta >= 0 and math.isfinite(beta)):
            raise ValueError(f"beta={beta} must be a number of at least 0")
        if mode not in ("linear", "sigmoid", "piecewise"):
            raise ValueError(f"mode={mode!r} is not 'linear', 'sigmoid' or 'piecewise'")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} must lie in (0, 1]")
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature={temperature} must be 0 or positive")
        self.model, self.tokenizer = model, tokenizer
        self.target_model = model if target_model is None else target_model
        self.beta, self.mode, self.top_p, self.temperature = float(beta), mode, top_p, temperature
        self.hinted_prompt, self.marker, self.one_by_one = hinted_prompt, marker, one_by_one
        self.analysis = (512 if hinted_prompt is None else 0) if analysis is None else int(analysis)
        sizes = [m.get_input_embeddings().weight.shape[0] for m in (self.model, self.target_model)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"p and q have vocabularies of {sizes[1]} and {sizes[0]} tokens; they must share one"
            )
        self.split = _checked_split(tokenizer, split)
        self.log_vocabulary = _log_vocabulary(vocabulary, tokenizer)
        self.ends = _ends(eos_id, tokenizer, (self.model, self.target_model))

    def generate(
        self,
        prompts: Sequence[Prompt],
        hints: Sequence[str],
        max_new_tokens: int,
        generator: Generators | None = None,
    ) -> list[Hinted]:
        """Rewrite an answer to each prompt.

        A row's uniform numbers are drawn before its first step, row after row, so that a batch writes what
        its rows write one by one with the same generator.

        Args:
            prompts: texts, conversations or token ids.
            hints: the known answer to each, a text.
            max_new_tokens: of an answer; the paper's 8,192.
            generator: of the uniform numbers, one, or one for each row; not needed at temperature 0.

        Raises:
            ValueError: an empty prompt or hint, another number of hints, no generator, no room.
        """
        prompts, hints = list(prompts), list(hints)
        if len(prompts) != len(hints):
            raise ValueError(f"{len(prompts)} prompts and {len(hints)} hints; expected one hint a prompt")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if self.temperature and generator is None:
            raise ValueError(
                f"temperature={self.temperature} draws at random: pass generator=torch.Generator()"
                ".manual_seed(...), or temperature=0"
            )
        if not prompts:
            return []
        drafts = [prompt_ids(self.tokenizer, prompt) for prompt in prompts]
        targets = self.target_prompts(prompts, hints)
        chance = self._uniforms(len(prompts), max_new_tokens, generator)
        settings = self._settings(max_new_tokens)
        streams = (self.target_model, self.model)
        if self.one_by_one:
            found = [
                write(streams, [targets[i]], [drafts[i]], chance[i : i + 1], settings)[0]
                for i in range(len(prompts))
            ]
        else:
            found = write(streams, targets, drafts, chance, settings)
        if self.beta and max((row.share_max for row in found), default=1.0) <= NEVER:
            warnings.warn(
                f"lambda was never above {NEVER}: the drafter had no say, and the answers are the hinted "
                f"target's alone; raise beta={self.beta}",
                stacklevel=2,
            )
        ends = set(self.ends)
        results = []
        for row in found:
            kept = [i for i in row.ids if i not in ends]
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            results.append(Hinted(text, tuple(row.ids), row.phi_mean, row.share_mean, row.finish))
        return results

    def target_prompts(self, prompts: Sequence[Prompt], hints: Sequence[str]) -> list[list[int]]:
        """What the target reads before the answer: the hinted prompt and, where asked for, its analysis.

        Raises:
            ValueError: an empty hint or prompt.
        """
        rows = []
        for prompt, hint in zip(prompts, hints, strict=True):
            if not isinstance(hint, str) or not hint.strip():
                raise ValueError(
                    f"the hint {hint!r} for the prompt {prompt!r} is empty; it is the known answer"
                )
            made = self.hinted_prompt or _instruction
            rows.append(prompt_ids(self.tokenizer, made(prompt, hint)))
        return self._analysed(rows) if self.analysis else rows

    def of(self, prompt: Prompt, hint: str, max_new_tokens: int = 512) -> Rewrites:
        """Many rewrites of one answer."""
        return Rewrites(self, prompt, hint, max_new_tokens)

    def with_beta(self, beta: float) -> HintedDecoder:
        """The same decoder with another beta."""
        other = object.__new__(HintedDecoder)
        other.__dict__ = {**self.__dict__, "beta": float(beta)}
        return other

    def _settings(self, new: int) -> Settings:
        return Settings(
            beta=self.beta,
            mode=self.mode,
            top_p=self.top_p,
            temperature=self.temperature,
            split=self.split,
            log_vocabulary=self.log_vocabulary,
            ends=self.ends,
            new=new,
            tokenizer=self.tokenizer,
        )

    def _uniforms(self, rows: int, new: int, generator: Generators | None) -> Tensor:
        device = next(self.model.parameters()).device
        if not self.temperature:
            return torch.zeros(rows, new, dtype=torch.float64, device=device)
        return uniforms(rows, new, generator, device)

    def _analysed(self, rows: list[list[int]]) -> list[list[int]]:
        """Each prompt with its greedy analysis up to the marker, which is added where it did not come."""
        groups = [[row] for row in rows] if self.one_by_one else [rows]
        found = [row for group in groups for row in self._thought(group)]
        return found

    def _thought(self, rows: list[list[int]]) -> list[list[int]]:
        device = next(self.target_model.parameters()).device
        longest = max(map(len, rows))
        pad = self.ends[0] if self.ends else 0
        ids = torch.tensor([[pad] * (longest - len(r)) + r for r in rows], device=device)
        mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows], device=device)
        out = generate(
            self.target_model,
            ids,
            mask,
            max_new_tokens=self.analysis,
            stop=self.marker,
            tokenizer=self.tokenizer,
            eos_id=list(self.ends),
        )
        found = []
        for row, new, length, finish in zip(
            rows, out.ids.tolist(), out.lengths.tolist(), out.finish, strict=True
        ):
            thought = new[:length]
            if finish == "stop":
                tail = token_ids(self.tokenizer, "\n")
            else:
                thought = [i for i in thought if i not in self.ends]
                tail = token_ids(self.tokenizer, f"\n{self.marker}\n")
            found.append([*row, *thought, *tail])
        return found


@dataclass(frozen=True)
class Rewrites:
    """A sampler of rewrites of one answer; see ``HintedDecoder.of``."""

    decoder: HintedDecoder
    prompt: Prompt
    hint: str
    max_new_tokens: int

    def sample(self, n: int, *, seed: int) -> list[Hinted]:
        """``n`` rewrites; the same seed gives the same ones.

        Raises:
            ValueError: a negative number.
        """
        if n < 0:
            raise ValueError(f"n={n} must not be negative")
        generator = torch.Generator().manual_seed(seed)
        return self.decoder.generate([self.prompt] * n, [self.hint] * n, self.max_new_tokens, generator)


def _instruction(prompt: Any, hint: str) -> Prompt:
    if isinstance(prompt, str):
        return INSTRUCTION.format(prompt=prompt, hint=hint)
    if prompt and isinstance(prompt[-1], dict):
        last = {**prompt[-1], "content": INSTRUCTION.format(prompt=prompt[-1]["content"], hint=hint)}
        return [*prompt[:-1], last]
    raise ValueError("a prompt of token ids needs hinted_prompt=, which makes the target's prompt of it")


def _checked_split(tokenizer: Any, split: str | None) -> str | None:
    if split is None:
        return None
    reason = "an empty text would end the target's part at once"
    if split:
        try:
            ids = token_ids(tokenizer, split)
        except ValueError as error:
            ids, reason = [], str(error)
        unknown = getattr(tokenizer, "unk_token_id", None)
        if ids and (unknown is None or unknown not in ids):
            return split
        reason = reason if not ids else "it holds a character that the tokenizer does not know"
    raise ValueError(
        f"split={split!r} cannot be written by the tokenizer ({reason}); give another, or split=None"
    )


def _log_vocabulary(vocabulary: Any, tokenizer: Any) -> float | None:
    if vocabulary == "model":
        return None
    size = len(tokenizer) if vocabulary == "tokenizer" else vocabulary
    if not isinstance(size, int) or size < 2:
        raise ValueError(f"vocabulary={vocabulary!r} is 'model', 'tokenizer' or a number of at least 2")
    return math.log(size)


def _ends(eos_id: Any, tokenizer: Any, models: Sequence[Any]) -> tuple[int, ...]:
    if eos_id is not None:
        return tuple([eos_id] if isinstance(eos_id, int) else map(int, eos_id))
    found: list[int] = []
    sources = [getattr(tokenizer, "eos_token_id", None)]
    for model in models:
        for name in ("generation_config", "config"):
            sources.append(getattr(getattr(model, name, None), "eos_token_id", None))
    for source in sources:
        found += [source] if isinstance(source, int) else list(source or ())
    return tuple(dict.fromkeys(found))
