"""What `icml run` runs of the rewriting of data sets: hinted decoding, and realignment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_idft.hinted import HintedDecoder

Mode = Literal["linear", "sigmoid", "piecewise"]


def hinted(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    target: str | None = None,
    beta: float = 3.0,
    mode: Mode = "linear",
    top_p: float = 0.95,
    temperature: float = 0.3,
    split: str = "\\boxed{",
    max_new_tokens: int = 1024,
    analysis: int = 512,
    batch: int = 8,
    limit: int = 1000,
) -> dict[str, Any]:
    """Rewrite answers by hinted decoding, as they come, without a check.

    Writes rewritten.jsonl (prompt, response, phi, lambda, finish a line).

    Args:
        data: JSONL with prompt and response a line; the response is the hint.
        model: The drafter, and the target.
        target: Another model for the target.
        beta: How fast the drafter's share grows with the target's entropy.
        mode: Of the share.
        top_p: Of the nucleus.
        temperature: Of the draw.
        split: Text after which the drafter goes on alone; empty means never.
        max_new_tokens: Of an answer.
        analysis: Tokens that the target may think before; 0 means none.
        batch: Rows at once.
        limit: Rows that are read.
    """
    import json

    import torch

    from icml_idft.demonstrations import answer_of, prompt_of, read_rows

    rows = read_rows(data, limit=limit)
    decoder = _decoder(run, model, target, beta, mode, top_p, temperature, split, analysis)
    generator = torch.Generator().manual_seed(run.seed)
    lines, phi = [], 0.0
    with run.progress("rewriting", total=len(rows)) as bar:
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            prompts = [prompt_of(row, start + i) for i, row in enumerate(part)]
            hints = [answer_of(row, start + i) for i, row in enumerate(part)]
            found = decoder.generate(prompts, hints, max_new_tokens, generator)
            for prompt, written in zip(prompts, found, strict=True):
                figures = {"phi": written.phi_mean, "lambda": written.lam_mean, "finish": written.finish}
                lines.append(json.dumps({"prompt": prompt, "response": written.text, **figures}))
                phi += written.phi_mean
            bar.advance(len(part), phi=phi / len(lines))
    with run.path("rewritten.jsonl") as temporary:
        temporary.write_text("\n".join(lines) + "\n")
    return {"rows": len(lines), "phi": phi / len(lines)}


@resumable
def realign(
    *,
    run: Run,
    data: Path,
    model: str = "smollm2",
    target: str | None = None,
    beta: float = 3.0,
    mode: Mode = "linear",
    top_p: float = 0.95,
    temperature: float = 0.3,
    split: str = "\\boxed{",
    answers: Literal["boxed", "contained", "any"] = "boxed",
    phi_min: float | None = None,
    retries: int = 3,
    max_new_tokens: int = 1024,
    analysis: int = 512,
    batch: int = 8,
    limit: int | None = None,
) -> dict[str, Any]:
    """Realign a data set: hinted decoding, a check of each answer, a filter by likelihood.

    Writes realigned.jsonl, ready for idft.finetune, and realigned.png. --resume goes on after the last row.

    Args:
        data: JSONL with prompt and response a line.
        model: The model that is to be trained.
        target: Another model for the target.
        beta: How fast the drafter's share grows with the target's entropy.
        mode: Of the share.
        top_p: Of the nucleus.
        temperature: Of the draw.
        split: Text after which the drafter goes on alone; empty means never.
        answers: What is right: the same boxed answer, the row's field "final" contained, or anything.
        phi_min: What the mean phi must reach; by default the 5 % quantile of the model's own samples.
        retries: With half of beta each, of wrong answers.
        max_new_tokens: Of an answer.
        analysis: Tokens that the target may think before; 0 means none.
        batch: Rows at once.
        limit: Rows that are read.
    """
    import json

    from icml_idft import plots
    from icml_idft.demonstrations import prompt_of, read_rows
    from icml_idft.realignment import own_phi_quantile
    from icml_idft.realignment import realign as realigned

    rows = read_rows(data, limit=limit)
    check = {"boxed": None, "contained": _contains, "any": lambda row, text: True}[answers]
    decoder = _decoder(run, model, target, beta, mode, top_p, temperature, split, analysis)
    path, state = run.file("realigned.jsonl"), run.file("phi_min.json")
    done: list[dict[str, Any]] = []
    if run.resumed and path.is_file():
        done = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if run.resumed and state.is_file():
        phi_min = float(json.loads(state.read_text())["phi_min"])
    if phi_min is None:
        prompts = [prompt_of(row, i) for i, row in enumerate(rows[:64])]
        phi_min = own_phi_quantile(decoder, prompts, max_new_tokens=max_new_tokens, seed=run.seed)
    with run.path("phi_min.json") as temporary:
        temporary.write_text(json.dumps({"phi_min": phi_min}))
    with run.progress("realigning", total=len(rows)) as bar:
        bar.advance(len(done))
        for start in range(len(done), len(rows), batch):
            done += realigned(
                rows[start : start + batch],
                decoder,
                check,
                phi_min=phi_min,
                retries=retries,
                max_new_tokens=max_new_tokens,
                batch=batch,
                seed=run.seed,
                first=start,
                progress=bar,
            )
            with run.path("realigned.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(row) + "\n" for row in done), encoding="utf-8")
    with run.path("realigned.png") as temporary:
        plots.realigned(done, phi_min, temporary)
    kept = [row for row in done if row["realigned"]]
    reasons = {
        name: sum(row["reason"] == name for row in done) for name in ("wrong", "length", "repeating", "phi")
    }
    return {"rows": len(done), "realigned": len(kept), **reasons, "phi_min": phi_min}


def _decoder(
    run: Run,
    model: str,
    target: str | None,
    beta: float,
    mode: Mode,
    top_p: float,
    temperature: float,
    split: str,
    analysis: int,
) -> HintedDecoder:
    from icml_lm import load

    from icml_idft.hinted import HintedDecoder

    subject, tokenizer = load(model, device=run.device)
    other = None if target is None else load(target, device=run.device).model
    plain = not getattr(tokenizer, "chat_template", None)
    return HintedDecoder(
        subject,
        tokenizer,
        beta,
        mode,
        top_p,
        temperature,
        split or None,
        other,
        # Without a chat template there is no conversation to put an instruction into.
        hinted_prompt=(lambda prompt, hint: f"{hint} ; {prompt}") if plain else None,
        analysis=0 if plain else analysis,
    )


def _contains(row: Any, text: str) -> bool:
    final = row.get("final")
    if final is None:
        raise ValueError(
            f"--answers contained needs the field 'final' in each row, and one has {', '.join(row)}"
        )
    return str(final).strip() in text
