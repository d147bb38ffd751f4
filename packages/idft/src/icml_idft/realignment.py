"""Realignment of a data set: hinted decoding, a check of the answer, a filter by φ; else the row as it was.

arXiv 2602.12222, section on hinted decoding; the retries at half of beta and the quantile are this package's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from icml_lm import collate, generate
from icml_lm.batching import IGNORE
from icml_lm.parse import ParseError, boxed

from icml_idft.centred import cll
from icml_idft.demonstrations import Row, answer_of, prompt_ids, prompt_of
from icml_idft.hinted import HintedDecoder

Check = Callable[[Row, str], bool]
"""(row, rewritten answer) -> whether it is right."""

QUANTILE = 0.05
"""Of the mean φ of the model's own samples: what a rewritten answer must reach by default."""


def realign(
    rows: Sequence[Row],
    decoder: HintedDecoder,
    check: Check | None = None,
    *,
    hint: Callable[[Row], str] | None = None,
    phi_min: float | None = None,
    retries: int = 3,
    max_new_tokens: int = 1024,
    batch: int = 16,
    seed: int = 0,
    first: int = 0,
    progress: Any = None,
) -> list[dict[str, Any]]:
    """Rewrite demonstrations in the model's own words.

    Each answer is decoded with its own as the hint and checked; a wrong one is tried again with half of beta,
    up to ``retries`` times. It replaces the row's answer if it ended, is right, and its mean φ is at least
    ``phi_min``; else the original stays.

    Args:
        rows: with prompts and answers, as ``icml_idft.encode_rows`` reads them.
        decoder: hinted decoding with the model that is to be trained.
        check: ``(row, answer) -> bool``; equality of the boxed answers by default.
        hint: what the target is told of a row; its answer by default.
        phi_min: by default the 5 % quantile of the mean φ of the model's own samples for these prompts.
        retries: after the first attempt.
        max_new_tokens: of an answer.
        batch: rows at once.
        seed: of the samples. What becomes of a row depends neither on ``batch`` nor on the other rows.
        first: number of the first of these rows in the whole data set; a row's samples depend on its number.
        progress: something with ``advance``.

    Returns:
        A dict for each row: ``prompt``, ``response``, ``realigned`` (whether it was rewritten), ``reason``
        (``""``, ``"wrong"``, ``"length"``, ``"repeating"`` or ``"phi"``), ``phi``, ``lambda``, ``beta`` and
        ``attempts`` of the last attempt, and ``original`` where it was replaced.

    Raises:
        ValueError: no rows, a row of another form, an answer without a box and no check, negative retries.
    """
    if not rows:
        raise ValueError("there are no rows to realign")
    if retries < 0 or batch < 1:
        raise ValueError(f"retries={retries} must not be negative and batch={batch} be at least 1")
    prompts = [prompt_of(row, number) for number, row in enumerate(rows)]
    answers = [answer_of(row, number) for number, row in enumerate(rows)]
    hints = answers if hint is None else [hint(row) for row in rows]
    right = check or _same_box(answers)
    if phi_min is None:
        phi_min = own_phi_quantile(decoder, prompts, max_new_tokens=max_new_tokens, seed=seed)
    found: list[dict[str, Any]] = [{} for _ in rows]
    open_rows = list(range(len(rows)))
    for attempt in range(retries + 1):
        trial = decoder.with_beta(decoder.beta * 0.5**attempt)
        left = []
        for start in range(0, len(open_rows), batch):
            part = open_rows[start : start + batch]
            for i, written in zip(
                part,
                _written(trial, prompts, hints, part, attempt, max_new_tokens, (seed << 24) + 64 * first),
                strict=True,
            ):
                reason = _reason(rows[i], written, right, phi_min)
                found[i] = {
                    "prompt": prompts[i],
                    "response": answers[i] if reason else written.text,
                    "realigned": not reason,
                    "reason": reason,
                    "phi": written.phi_mean,
                    "lambda": written.lam_mean,
                    "beta": trial.beta,
                    "attempts": attempt + 1,
                    **({} if reason else {"original": answers[i]}),
                }
                # Half of beta makes an answer more right, and less the model's own.
                if reason in ("wrong", "length", "repeating"):
                    left.append(i)
                if progress is not None and (
                    reason not in ("wrong", "length", "repeating") or attempt == retries
                ):
                    progress.advance(1)
        open_rows = left
        if not open_rows or decoder.beta == 0:
            break
    return found


class Realignment:
    """``realign`` as a sampler: of bound rows, as many as are asked for.

    Args:
        rows: demonstrations.
        decoder: hinted decoding.
        check: of an answer.
        options: of ``realign``.
    """

    def __init__(
        self, rows: Sequence[Row], decoder: HintedDecoder, check: Check | None = None, **options: Any
    ) -> None:
        if not rows:
            raise ValueError("there are no rows to realign")
        self.rows, self.decoder, self.check, self.options = list(rows), decoder, check, options

    def sample(self, n: int, *, seed: int) -> list[dict[str, Any]]:
        """``n`` realigned rows; beyond the number of rows they come again, with other samples.

        Raises:
            ValueError: a negative number.
        """
        if n < 0:
            raise ValueError(f"n={n} must not be negative")
        if n == 0:
            return []
        chosen = [self.rows[i % len(self.rows)] for i in range(n)]
        return realign(chosen, self.decoder, self.check, seed=seed, **self.options)


def own_phi_quantile(
    decoder: HintedDecoder,
    prompts: Sequence[Any],
    *,
    quantile: float = QUANTILE,
    samples: int = 64,
    max_new_tokens: int = 256,
    seed: int = 0,
) -> float:
    """A quantile of the mean φ of the drafter's own answers, sampled at temperature 1.

    Args:
        decoder: whose model answers.
        prompts: of which as many as there are samples are answered.
        quantile: in [0, 1].
        samples: answers.
        max_new_tokens: of an answer.
        seed: of the samples.
    """
    model, tokenizer = decoder.model, decoder.tokenizer
    device = next(model.parameters()).device
    chosen = [prompt_ids(tokenizer, prompts[i % len(prompts)]) for i in range(samples)]
    generator = torch.Generator().manual_seed(seed)
    longest = max(map(len, chosen))
    pad = decoder.ends[0] if decoder.ends else 0
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in chosen], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in chosen], device=device)
    out = generate(
        model,
        ids,
        mask,
        max_new_tokens=max_new_tokens,
        temperature=1.0,
        eos_id=list(decoder.ends),
        generator=generator,
    )
    whole = []
    for prompt, new, length in zip(chosen, out.ids.tolist(), out.lengths.tolist(), strict=True):
        whole.append(([*prompt, *new[:length]], [*[IGNORE] * len(prompt), *new[:length]]))
    means = []
    for start in range(0, len(whole), 16):
        part = {k: v.to(device) for k, v in collate(whole[start : start + 16], pad).items()}
        scored = part["labels"] != IGNORE
        means += cll(model, part["input_ids"], scored, attention_mask=part["attention_mask"]).mean.tolist()
    return float(torch.tensor(means, dtype=torch.float64).quantile(quantile))


def _written(
    decoder: HintedDecoder,
    prompts: list[Any],
    hints: list[str],
    part: list[int],
    attempt: int,
    new: int,
    seed: int,
) -> list[Any]:
    """One attempt at some rows, each with uniform numbers of its own."""
    chance = None
    if decoder.temperature:
        chance = [torch.Generator().manual_seed(seed + 64 * i + attempt) for i in part]
    return decoder.generate([prompts[i] for i in part], [hints[i] for i in part], new, chance)


def _reason(row: Row, written: Any, check: Check, phi_min: float) -> str:
    if written.finish != "eos":
        return written.finish
    if not written.text.strip() or not check(row, written.text):
        return "wrong"
    return "" if written.phi_mean >= phi_min and math.isfinite(written.phi_mean) else "phi"


def _same_box(answers: list[str]) -> Check:
    """Equality of the boxed answers.

    Raises:
        ValueError: an original without a box.
    """
    for number, answer in enumerate(answers):
        try:
            boxed(answer)
        except ParseError as error:
            raise ValueError(f"row {number} has no boxed answer to compare ({error}); pass check=") from error

    def check(row: Row, text: str) -> bool:
        try:
            return boxed(text) == boxed(answer_of(row))
        except ParseError:
            return False

    return check
