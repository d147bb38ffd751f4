"""Fine-tune a model on demonstrations with any of the losses, and keep an eye on what it costs.

The training loop is ``icml_lm.train``: any optimizer by name, schedules, checkpoints that resume bit for bit.
Added here: advice before it, statistics of the weights in it, evaluations between its epochs.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from icml_core.run import write_json
from icml_lm import collate, pack, train
from icml_lm import lora as add_lora
from icml_lm.batching import IGNORE, Supervised
from torch import Tensor

from icml_idft.advice import Advice, advise
from icml_idft.centred import cll
from icml_idft.demonstrations import Row, encode_rows
from icml_idft.loss import IDFTLoss
from icml_idft.preconditioned import PreconditionedAdamW

EvalSet = Sequence[Row] | Callable[[Any], float | Mapping[str, float]]
"""Demonstrations, of which NLL and φ are measured; or a function of the model that gives figures."""

EVALUATIONS = "evaluations.json"
STUCK = 0.3
"""A mean weight below this that has not risen after a tenth of the steps speaks of an unknown task."""
RISEN = 1.25
"""Times its first value that a mean weight must reach by then."""
PACKED_TOLERANCE = 1e-4


@dataclass
class TrainLog:
    """What a training did.

    Attributes:
        loss, lr: per step.
        figures: per step: ``nll`` (the plain negative log-likelihood), ``mean_weight``, ``weight_sum``,
            ``phi``, ``suppressed`` (share of tokens with a weight below 0.1), ``tokens``, ``impossible``,
            ``share``.
        evaluations: before the training and after each epoch: the step, and figures of the evaluation sets.
        advice: what was said before, or None.
        cut, empty: rows that were cut at ``max_length``, and rows of which nothing supervised was left.
        warnings: what was warned of.
        steps, seconds: in all parts of a resumed training.
        resumed_from: the step at which the last part began, or None.
        packed: whether rows were packed.
    """

    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    advice: Advice | None = None
    cut: int = 0
    empty: int = 0
    warnings: list[str] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    resumed_from: int | None = None
    packed: bool = False


@dataclass(frozen=True)
class TrainOptions:
    """Settings of a training.

    Attributes:
        lr: peak learning rate; the paper's is 6e-5 for 7 B weights.
        epochs: passes over the data.
        batch: rows of a step.
        micro_batch: rows in memory at once; all of them by default. The loss is normalised by the batch.
        optimizer: ``"adamw"`` or another of torch's, ``"plugin.component"``, or a factory.
        schedule: ``"cosine"``, ``"linear"``, ``"constant"``, or a function of the share done.
        lr_warmup: steps of linear rise.
        clip: largest norm of the gradient, or None.
        weight_decay: of the optimizer.
        precondition: ``"sft"`` takes Adam's second moment from the unweighted loss's gradients.
        lora: rank, or arguments of ``icml_lm.lora``; None trains all weights.
        packing: several rows in one, none of which sees another.
        max_length: tokens that are kept of a row.
        seed: of the order of the rows.
    """

    lr: float
    epochs: int = 3
    batch: int = 16
    micro_batch: int | None = None
    optimizer: Any = "adamw"
    schedule: Any = "cosine"
    lr_warmup: int = 0
    clip: float | None = 1.0
    weight_decay: float = 0.0
    precondition: str | None = None
    lora: int | Mapping[str, Any] | None = None
    packing: bool = False
    max_length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr={self.lr} must be a positive number")
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"epochs={self.epochs} and batch={self.batch} must be at least 1")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro_batch={self.micro_batch} must be at least 1, or None")
        if self.precondition not in (None, "sft"):
            raise ValueError(f"precondition={self.precondition!r} is neither None nor 'sft'")
        if self.precondition and self.optimizer not in ("adamw", "adam"):
            raise ValueError(
                f"precondition={self.precondition!r} is AdamW's with another second moment; it does not go "
                f"with optimizer={self.optimizer!r}"
            )


def finetune(
    model: Any,
    data: Sequence[Row],
    tokenizer: Any = None,
    *,
    loss: str | IDFTLoss = "idft",
    eval_sets: Mapping[str, EvalSet] | None = None,
    advice: bool = True,
    solved: float | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 0,
    callbacks: Sequence[Any] = (),
    progress: Any = None,
    **options: Any,
) -> tuple[Any, TrainLog]:
    """Train a model on demonstrations.

    Args:
        model: TinyLM or a transformers causal model; changed in place, or wrapped by PEFT with ``lora``.
        data: rows as ``icml_idft.encode_rows`` reads them.
        tokenizer: of the model; not needed for rows of ids.
        loss: a kind, or an ``IDFTLoss`` with all its switches.
        eval_sets: by name, rows (NLL and φ are measured) or a function of the model; evaluated before the
            training and after each epoch.
        advice: whether to look at up to 200 rows first, and say what they speak for.
        solved: share of the prompts that the model answers rightly already, if it is known, for the advice.
        checkpoint: a folder; what it holds is continued.
        checkpoint_every: steps; 0 for the end and Ctrl-C only.
        callbacks: ``(step, figures, model)``; True stops.
        progress: something with ``advance(1, loss=...)``.
        options: of ``TrainOptions``; ``lr`` has no default.

    Returns:
        The model (a ``PeftModel`` with ``lora``; ``icml_lm.merge`` makes it plain) and the log.

    Raises:
        ValueError: settings out of range, rows of another form, no supervised token, a label that is no
            token of the model's.
    """
    settings = TrainOptions(**options)
    found = encode_rows(data, tokenizer, max_length=settings.max_length)
    pad = _pad(tokenizer)
    _require_tokens(model, found.rows)
    rule = IDFTLoss(loss) if isinstance(loss, str) else loss
    if not rule.shift:
        raise ValueError("finetune moves no labels; use IDFTLoss(shift=True)")
    log = TrainLog(cut=found.cut, empty=found.empty)
    if settings.lora is not None:
        given = {"r": settings.lora} if isinstance(settings.lora, int) else dict(settings.lora)
        model = add_lora(model, **given)
    folder = None if checkpoint is None else Path(checkpoint)
    if advice and not (folder is not None and (folder / EVALUATIONS).is_file()):
        log.advice = advise(model, found.rows, pad=pad, solved=solved)
        print(f"icml-idft: {log.advice}")
    log.packed = settings.packing and _packs_exactly(model, found.rows, pad, log)
    batches = _Batches(found.rows, pad, settings, log.packed, next(model.parameters()).dtype)
    total = batches.per_epoch * settings.epochs
    watch = _Watch(log, rule, total)
    sets = dict(eval_sets or {})
    if sets:
        log.evaluations = _earlier(folder) or [{"step": 0.0, **_evaluate(model, sets, tokenizer, pad)}]

    def evaluate(step: int, figures: dict[str, float], trained: Any) -> None:
        if sets and (step + 1) % batches.per_epoch == 0:
            log.evaluations.append({"step": float(step + 1), **_evaluate(trained, sets, tokenizer, pad)})
            if folder is not None:
                write_json(folder / EVALUATIONS, log.evaluations)

    made: list[PreconditionedAdamW] = []

    def factory(params: Any, lr: float, weight_decay: float = 0.0) -> PreconditionedAdamW:
        made.append(PreconditionedAdamW(params, lr=lr, weight_decay=weight_decay))
        return made[0]

    def loss_fn(subject: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
        return _batch_loss(subject, batch, rule, total, settings, made)

    done = train(
        model,
        batches,
        loss_fn,
        steps=total,
        lr=settings.lr,
        optimizer=factory if settings.precondition else settings.optimizer,
        schedule=settings.schedule,
        warmup=settings.lr_warmup,
        clip=settings.clip,
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        callbacks=[watch, evaluate, *callbacks],
        checkpoint=folder,
        checkpoint_every=checkpoint_every,
        progress=progress,
    )
    log.loss, log.lr, log.figures = done.loss, done.lr, done.figures
    log.steps, log.seconds, log.resumed_from = done.steps, done.seconds, done.resumed_from
    model.eval()
    return model, log


class FineTuning:
    """``finetune`` as a trainer with its settings.

    Args:
        loss: a kind, or an ``IDFTLoss``.
        options: of ``finetune`` and ``TrainOptions``.
    """

    def __init__(self, loss: str | IDFTLoss = "idft", **options: Any) -> None:
        names = {f for f in TrainOptions.__dataclass_fields__ if f in options}
        TrainOptions(**{name: options[name] for name in names})
        self.loss, self.options = loss, options

    def fit(
        self, model: Any, data: Sequence[Row], tokenizer: Any = None, **more: Any
    ) -> tuple[Any, TrainLog]:
        """Train; ``more`` are further options of ``finetune``.

        Raises:
            ValueError: as ``finetune``.
        """
        return finetune(model, data, tokenizer, loss=self.loss, **{**self.options, **more})


class _Batches:
    """Batches by step: each epoch goes through all rows once, in an order of its own."""

    def __init__(
        self, rows: list[Supervised], pad: int, settings: TrainOptions, packed: bool, dtype: torch.dtype
    ) -> None:
        self.rows, self.pad, self.settings, self.packed, self.dtype = rows, pad, settings, packed, dtype
        self.per_epoch = -(-len(rows) // settings.batch)
        self.longest = max(len(row.input_ids) for row in rows)

    def __call__(self, step: int) -> dict[str, Any]:
        epoch, place = divmod(step, self.per_epoch)
        generator = torch.Generator().manual_seed((self.settings.seed << 20) + epoch)
        order = torch.randperm(len(self.rows), generator=generator).tolist()
        size = self.settings.batch
        chosen = [self.rows[i] for i in order[place * size : (place + 1) * size]]
        parts = self.settings.micro_batch or len(chosen)
        micro = [self._made(chosen[i : i + parts]) for i in range(0, len(chosen), parts)]
        items = sum(int((part["labels"][:, 1:] != IGNORE).sum()) for part in micro)
        return {"parts": micro, "items": items, "step": step}

    def _made(self, rows: list[Supervised]) -> dict[str, Tensor]:
        if not self.packed:
            return collate(rows, self.pad)
        return _with_terms(pack(rows, self.longest, self.pad), self.dtype)


def _batch_loss(
    model: Any,
    batch: dict[str, Any],
    loss: IDFTLoss,
    total: int,
    settings: TrainOptions,
    made: list[PreconditionedAdamW],
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch. All micro-batches but the last go back here, the last one in the caller."""
    options = {"step": batch["step"], "total": total, "num_items": batch["items"]}
    value: Tensor | None = None
    sums: dict[str, float] = {}
    before = 0.0
    for part in batch["parts"]:
        if value is not None:
            value.backward()
            before += float(value.detach())
        value = loss.of_model(model, part, **options)
        if settings.precondition == "sft":
            made[0].measure(IDFTLoss("sft").of_model(model, part, num_items=batch["items"]))
        stats = loss.stats
        n = stats["tokens"]
        for name in ("nll", "phi", "suppressed"):
            sums[name] = sums.get(name, 0.0) + n * stats[name]
        for name in ("weight_sum", "tokens", "impossible"):
            sums[name] = sums.get(name, 0.0) + stats[name]
        sums["share"] = stats["share"]
    assert value is not None
    n = max(sums["tokens"], 1.0)
    figures = {name: sums[name] / n for name in ("nll", "phi", "suppressed")}
    figures |= {"mean_weight": sums["weight_sum"] / n, "weight_sum": sums["weight_sum"]}
    figures |= {name: sums[name] for name in ("tokens", "impossible", "share")}
    return value + before, figures


class _Watch:
    """Looks at the mean weight after a tenth of the steps."""

    def __init__(self, log: TrainLog, loss: IDFTLoss, total: int) -> None:
        self.log, self.kind = log, loss.kind
        self.tenth = max(total // 10, 3)
        self.weights: list[float] = []

    def __call__(self, step: int, figures: dict[str, float], model: Any) -> None:
        if self.kind in ("sft", "eaft", "reverse") or step > self.tenth:
            return
        self.weights.append(figures["mean_weight"])
        if step == self.tenth and len(self.weights) >= 4:
            quarter = max(len(self.weights) // 4, 1)
            first = sum(self.weights[:quarter]) / quarter
            last = sum(self.weights[-quarter:]) / quarter
            if last < STUCK and last < RISEN * first:
                text = (
                    f"the mean weight went from {first:.3f} to {last:.3f} in a tenth of the steps: the model "
                    "is not learning this data, which it would not have said; use loss='sft', or realign"
                )
                self.log.warnings.append(text)
                warnings.warn(text, stacklevel=2)


def _evaluate(model: Any, sets: Mapping[str, EvalSet], tokenizer: Any, pad: int) -> dict[str, float]:
    found: dict[str, float] = {}
    training = model.training
    model.eval()
    try:
        for name, given in sets.items():
            if callable(given):
                figures = given(model)
                listed = figures if isinstance(figures, Mapping) else {"": figures}
                found |= {f"{name}.{key}" if key else name: float(value) for key, value in listed.items()}
                continue
            rows = encode_rows(given, tokenizer).rows
            found |= {f"{name}.{k}": v for k, v in _nll_and_phi(model, rows, pad).items()}
    finally:
        model.train(training)
    return found


def _nll_and_phi(model: Any, rows: list[Supervised], pad: int) -> dict[str, float]:
    nll = phi = tokens = 0.0
    device = next(model.parameters()).device
    usable = [row for row in rows if any(label != IGNORE for label in row.labels[1:])]
    for start in range(0, len(usable), 16):
        part = {k: v.to(device) for k, v in collate(usable[start : start + 16], pad).items()}
        found = cll(model, part["input_ids"], part["labels"] != IGNORE, attention_mask=part["attention_mask"])
        nll -= float(found.logp.sum())
        phi += float(found.phi.sum())
        tokens += float(found.scored.sum())
    return {"nll": nll / tokens, "phi": phi / tokens}


def _packs_exactly(model: Any, rows: list[Supervised], pad: int, log: TrainLog) -> bool:
    """Whether packed rows give the model the losses of rows apart; else it says that it pads."""
    usable = sorted((r for r in rows if any(x != IGNORE for x in r.labels[1:])), key=lambda r: len(r.labels))
    few = usable[:3]
    device = next(model.parameters()).device
    loss, why = IDFTLoss("sft"), "the model gives packed rows another loss"
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = pack(few, sum(len(r.input_ids) for r in few), pad)
            packed = _with_terms(packed, next(model.parameters()).dtype)
            together = loss.of_model(model, {k: v.to(device) for k, v in packed.items()}, num_items=1)
            apart = sum(
                loss.of_model(model, {k: v.to(device) for k, v in collate([r], pad).items()}, num_items=1)
                for r in few
            )
        if abs(float(together) - float(apart)) <= PACKED_TOLERANCE * abs(float(apart)):
            return True
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"the model takes no block-diagonal mask ({type(error).__name__}: {error})"
    finally:
        model.train(training)
    text = f"packing is off, rows are padded: {why}"
    log.warnings.append(text)
    warnings.warn(text, stacklevel=3)
    return False


def _with_terms(packed: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The mask as terms added to the scores, which every implementation of attention takes."""
    seen = packed["attention_mask"]
    terms = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return {**packed, "attention_mask": terms}


def _earlier(folder: Path | None) -> list[dict[str, float]]:
    if folder is None or not (folder / EVALUATIONS).is_file():
        return []
    found = json.loads((folder / EVALUATIONS).read_text(encoding="utf-8"))
    return [dict(row) for row in found]


def _require_tokens(model: Any, rows: list[Supervised]) -> None:
    size = model.get_input_embeddings().weight.shape[0]
    for number, row in enumerate(rows):
        wrong = [i for i in row.input_ids if not 0 <= i < size]
        wrong += [i for i in row.labels if i != IGNORE and not 0 <= i < size]
        if wrong:
            raise ValueError(
                f"row {number} holds the id {wrong[0]}, but the model has {size} tokens: the wrong tokenizer?"
            )


def _pad(tokenizer: Any) -> int:
    for name in ("pad_token_id", "eos_token_id"):
        found = getattr(tokenizer, name, None)
        if found is not None:
            return int(found)
    return 0


def log_as_dict(log: TrainLog) -> dict[str, Any]:
    """The log in the types of JSON."""
    return asdict(log)
