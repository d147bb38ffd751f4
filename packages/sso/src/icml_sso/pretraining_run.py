"""A pre-training inside a run directory: what ``icml run sso.pretrain`` is made of.

Leaves record.csv (one row a step), training.png, health.json and checkpoint.safetensors, from which
``--resume`` goes on.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from icml_core import Run
from icml_core.run import write_json

from icml_sso import configurations
from icml_sso.configurations import Recipe, TransformerConfig
from icml_sso.corpus import TokenCorpus, packed_tokens, standard_library, text_files
from icml_sso.health import HealthMonitor
from icml_sso.optimizer import SSO
from icml_sso.pretraining import CHECKPOINT, Pretraining, PretrainingOptions

_PACKED = (".bin", ".idx")
_WIDE = 512


def open_corpus(
    path: Path | None, validation: Path | None = None, *, vocab_size: int, dtype: str = "auto"
) -> TokenCorpus:
    """The corpus that a user's path names.

    Args:
        path: None for the standard library's sources; a ``.bin`` or ``.idx`` file or a folder with
            ``train.bin`` for packed tokens; any other file or folder is read as text, byte by byte.
        validation: held-out packed tokens.
        vocab_size: of the model.
        dtype: of packed tokens without an index.

    Raises:
        FileNotFoundError: no such path.
        ValueError: a damaged file, or ``validation`` without packed tokens.
    """
    if path is not None and (path.suffix in _PACKED or (path / "train.bin").is_file()):
        return packed_tokens(path, validation, vocab_size=vocab_size, dtype=dtype)
    if validation is not None:
        raise ValueError(
            f"--validation {validation} goes with packed tokens (.bin); of text, every tenth file is held out"
        )
    return standard_library() if path is None else text_files([path])


def pretrain(
    run: Run,
    *,
    recipe: str = "tiny",
    optimizer: str = "sso",
    corpus: Path | None = None,
    validation: Path | None = None,
    dtype: str = "auto",
    vocab_size: int | None = None,
    context: int | None = None,
    lr: float | None = None,
    steps: int | None = None,
    batch: int | None = None,
    micro_batch: int = 0,
    warmup: int | None = None,
    clip: float = 1.0,
    radius_scale: float = 1.0,
    weight_decay: float = 0.1,
    precision: Literal["recipe", "float32", "bfloat16"] = "recipe",
    recompute: bool = False,
    measure_every: int = 1,
    spectra_every: int | None = None,
    evaluate_every: int = 0,
    checkpoint_every: int = 0,
) -> dict[str, Any]:
    """Train, measure, and write everything into the run directory (see ``icml_sso.jobs.pretrain``).

    Raises:
        ValueError: options that contradict each other, or an unknown recipe or optimizer.
        FileNotFoundError: a corpus that does not exist.
        FloatingPointError: the training diverged.
    """
    chosen = configurations.recipe(recipe)
    model = _model(chosen.model, vocab_size, context)
    options = PretrainingOptions(
        optimizer=optimizer,
        lr=chosen.lr if lr is None else lr,
        steps=chosen.steps if steps is None else steps,
        batch=chosen.batch if batch is None else batch,
        micro_batch=micro_batch,
        warmup=_warmup(chosen, steps) if warmup is None else warmup,
        clip=clip,
        radius_scale=radius_scale,
        weight_decay=weight_decay,
        precision=chosen.precision if precision == "recipe" else precision,
        recompute=recompute,
        measure_every=measure_every,
        spectra_every=_spectra_every(model) if spectra_every is None else spectra_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
    )
    text = open_corpus(corpus, validation, vocab_size=model.vocab_size, dtype=dtype)
    training = Pretraining(model, text, options, seed=run.seed, device=run.device)
    try:
        with run.progress(f"{recipe}, {optimizer}", total=options.steps) as bar:

            def report(row: dict[str, float]) -> None:
                bar.advance(1, loss=row["cross_entropy"], lr=row["lr"])
                run.log(int(row["step"]), **{name: value for name, value in row.items() if name != "step"})

            if run.resumed and run.file(CHECKPOINT).is_file():
                training.load(run.file(CHECKPOINT))
                bar.advance(training.step)
            training.fit(checkpoint=run.file(CHECKPOINT), callback=report)
    finally:
        if training.record.rows:
            training.record.write_csv(run.file("record.csv"))
            training.record.draw(run.file("training.png"), title=f"{recipe}, {optimizer}, lr {options.lr:g}")
    write_json(run.file("health.json"), final_health(training))
    record = training.record
    names = ("cross_entropy", "validation", "sigma_ratio_low", "sigma_ratio_high", "ffn_rms", "ffn_absmax")
    names = (*names, "attention_absmax", "max_violation")
    return {
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "training_tokens": options.steps * options.batch * model.context,
        **{name: record.last(name) for name in names if len(record.measured(name))},
        "options": asdict(options),
    }


def final_health(training: Pretraining) -> dict[str, Any]:
    """What :class:`icml_sso.health.HealthMonitor` says of the trained model on one held-out batch."""
    batch = training.corpus.batch(
        0, training.options.micro_batch or training.options.batch, training.config.context,
        seed=training.seed, split="validation",
    ).to(training.device)  # fmt: skip
    optimizer = training.optimizer if isinstance(training.optimizer, SSO) else None
    with HealthMonitor(training.model, optimizer) as monitor, torch.no_grad():
        training.model(batch[:, :-1])
        return monitor.report()


def _model(model: TransformerConfig, vocab_size: int | None, context: int | None) -> TransformerConfig:
    changes = {"vocab_size": vocab_size, "context": context}
    return replace(model, **{name: value for name, value in changes.items() if value is not None})


def _spectra_every(model: TransformerConfig) -> int:
    """Singular values of all matrices of a wide model take longer than a step."""
    return 20 if model.hidden_size < _WIDE else 500


def _warmup(chosen: Recipe, steps: int | None) -> int:
    """The recipe's warm-up; in a shorter training the same share of it."""
    return chosen.warmup if steps is None else min(chosen.warmup, chosen.warmup * steps // chosen.steps)
