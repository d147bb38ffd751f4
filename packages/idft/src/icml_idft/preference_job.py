"""The rivals DPO and SimPO as a job: pairs from the model's own answers, then TRL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from icml_core import Run
from icml_core.run import write_json
from icml_lm import load, merge

from icml_idft import plots
from icml_idft.demonstrations import Row
from icml_idft.jobs import save_model
from icml_idft.preference_training import prefer
from icml_idft.preferences import PreferenceLoss, preference_pairs


@dataclass(frozen=True)
class Settings:
    """Options of ``icml_idft.preference_training.prefer`` that the job hands on."""

    lr: float
    epochs: int
    batch: int
    micro_batch: int | None
    schedule: str
    lr_warmup: int
    clip: float | None
    weight_decay: float
    lora: int | None


def run_preferences(
    run: Run,
    rows: Sequence[Row],
    model: str,
    *,
    kind: str,
    beta: float | None,
    margin: float | None,
    settings: Settings,
    merge_adapters: bool = False,
    max_length: int,
    max_new_tokens: int,
    checkpoint_every: int,
) -> dict[str, Any]:
    """Sample the rejected answers, train, and write the model, the pairs, the log and a picture.

    Raises:
        ValueError: constants out of range, or no row that makes a pair.
    """
    rule = PreferenceLoss(kind, beta, margin)
    subject, tokenizer = load(model, device=run.device)
    path = run.file("pairs.jsonl")
    if run.resumed and path.is_file():
        pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        found = preference_pairs(
            subject,
            tokenizer,
            rows,
            max_new_tokens=max_new_tokens,
            generator=torch.Generator(device="cpu").manual_seed(run.seed),
        )
        pairs = found.rows
        print(
            f"icml-idft: {len(pairs)} pairs of {len(rows)} rows ({found.cut} sampled answers were cut, "
            f"{found.empty} empty, {found.same} the demonstration)"
        )
        with run.path("pairs.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    total = -(-len(pairs) // settings.batch) * settings.epochs
    with run.progress("training", total=total) as bar:

        def logged(step: int, figures: dict[str, float]) -> None:
            run.log(step, **figures)
            bar.advance(1, loss=figures["loss"])

        tuned, log = prefer(
            subject,
            pairs,
            tokenizer,
            loss=rule,
            folder=run.file("checkpoint"),
            max_length=max_length,
            seed=run.seed,
            checkpoint_every=checkpoint_every,
            callback=logged,
            **asdict(settings),
        )
    if settings.lora and merge_adapters:
        tuned = merge(tuned)
    save_model(tuned, tokenizer, run.file("model"))
    write_json(run.file("log.json"), {"loss": repr(rule), "steps": log})
    with run.path("training.png") as temporary:
        plots.preferences(log, temporary)
    last = {name: value for name, value in log[-1].items() if name != "step"}
    return {**last, "steps": int(log[-1]["step"]), "pairs": len(pairs)}
