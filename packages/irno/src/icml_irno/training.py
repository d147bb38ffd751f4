"""Training a corrector around a frozen base, by ``detached`` (the default), ``unroll`` (the paper's), or
``curriculum``.

Adam, cosine decay, gradients clipped to norm 1, the epoch of least validation error is kept. Stopped after
any epoch and resumed, it is the same training.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.optimizers import torch_optimizer
from icml_core.randomness import seeded
from torch import Tensor, nn

from icml_irno.batches import Batches
from icml_irno.checks import check_base, check_splits
from icml_irno.fields import as_mask, fill_masked
from icml_irno.metrics import mean_over_varying, varying, vrmse
from icml_irno.objective import Objective, Truth, detached_loss, unrolled_loss
from icml_irno.operator import IRNO, check_step
from icml_irno.statistics import Statistics

KIND = "icml-irno-training"
MODES = ("detached", "unroll", "curriculum")
OUTLIER, MOST_OUTLIERS = 100.0, 0.05  # mean squared error of a sample, in normalised units; share of samples
HEADROOM = 0.02  # least relative fall of the validation VRMSE that counts as a gain
Callback = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; None takes the mode's own: detached 1.0, 3, 0.1 and unroll 0.2, 6, 1.0.

    Attributes:
        mode: ``"detached"``: one iterate a step, drawn at random, with gradients through its own step alone;
            ``"unroll"``: all K iterates with gradients through all; ``"curriculum"``: unrolled, with 1, then
            2, then K iterates, a third of the epochs each.
        alpha, K: of the operator; what the operator was given goes before the mode's.
        beta_spec: b_s.
        epochs: passes over the data.
        max_steps: batches that are trained on, instead of a number of epochs; the last epoch may be cut.
        batch: samples a step.
        lr, min_lr: cosine from the one to the other.
        weight_decay: of Adam.
        clip: norm of the gradients; 0 for none.
        beta_fp: b_fp.
        fp_warmup: epochs over which b_fp rises from 0.
        lam: of the progressive spectral loss.
        phase, hermitian: of the spectral loss.
        residual_scale: multiply Phi's output by the standard deviation of y - h_0, channel by channel (1
            where it is 0).
        augment: ``"shift"`` rolls each batch along circular axes at random; None.
        optimizer: as ``icml_core.optimizers`` knows it.
        amp: bfloat16 for the corrector; the losses stay in float32.
        compile: ``torch.compile`` for the corrector.
    """

    mode: str = "detached"
    alpha: float | None = None
    K: int | None = None
    beta_spec: float | None = None
    epochs: int = 150
    batch: int = 16
    lr: float = 3e-4
    min_lr: float = 1e-6
    weight_decay: float = 1e-5
    clip: float = 1.0
    beta_fp: float = 0.01
    fp_warmup: int = 5
    lam: tuple[float, float] = (1.0, 2.0)
    phase: bool = False
    hermitian: bool = False
    residual_scale: bool = False
    augment: str | None = None
    max_steps: int | None = None
    optimizer: str = "adam"
    amp: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}; expected one of {', '.join(MODES)}")
        if self.augment not in (None, "shift"):
            raise ValueError(f"augment={self.augment!r}; expected 'shift' or None")
        if min(self.epochs, self.batch, 1 if self.max_steps is None else self.max_steps) < 1:
            raise ValueError(f"{self}: epochs and batch from 1 on, and max_steps where it is given")
        # NaN fails every comparison.
        if not (self.lr > 0 and self.min_lr >= 0 and self.clip >= 0):
            raise ValueError(f"{self}: lr above 0, min_lr and clip from 0 on")
        weights = (*self.lam, self.beta_fp, self.beta_spec or 0, self.weight_decay, self.fp_warmup)
        if not all(0 <= w < math.inf for w in weights):
            raise ValueError(
                f"{self}: lam, beta_spec, beta_fp, weight_decay and fp_warmup are finite, from 0 on"
            )

    def resolved(self, model: IRNO) -> TrainingOptions:
        """alpha, K and beta_spec filled in: of these options, else of the model, else of the mode."""
        alpha, K, beta = (1.0, 3, 0.1) if self.mode == "detached" else (0.2, 6, 1.0)
        given_alpha, given_K = model.given
        found = replace(
            self,
            alpha=next(v for v in (self.alpha, given_alpha, alpha) if v is not None),
            K=next(v for v in (self.K, given_K, K) if v is not None),
            beta_spec=beta if self.beta_spec is None else self.beta_spec,
        )
        check_step(found.alpha, found.K)
        return found


@dataclass
class History:
    """What a training returns.

    Attributes:
        rows: of each epoch: ``epoch``, mean ``loss``, ``lr``, ``passes`` (evaluations of the corrector so
            far, samples times iterates), and of validation data ``mse``, ``vrmse``, ``outliers`` (share of
            samples).
        best_epoch: the one whose weights the model has now.
        base_vrmse: of the frozen base on the validation data; None without any.
        headroom: False where the corrector gained less than 2 % over the base: there was nothing to refine.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    base_vrmse: float | None = None
    headroom: bool | None = None


class Training:
    """A training; the model is changed in place.

    Args:
        model: whose corrector is trained.
        train, valid: as ``Batches`` takes them; the best epoch is chosen on ``valid``, without it the last.
        options: how to train.
        mask: True where a point exists, for all samples; added to the samples' own and to the model's.
        base_input: mean and std that the base's input had in its own training, to be compared with.
        expected_base: VRMSE that the base is said to reach on ``valid`` (else ``train``); more than 10 % off
            raises before any training.
        spacing: of the grid, stored with the model.
        seed: of order, drawn iterates and shifts.

    Raises:
        TypeError, ValueError: data or options that do not fit; see ``Batches``, ``check_splits``,
        ``check_base``.
    """

    def __init__(
        self,
        model: IRNO,
        train: Any,
        valid: Any = None,
        options: TrainingOptions | None = None,
        *,
        mask: Tensor | None = None,
        base_input: Any = None,
        expected_base: float | None = None,
        spacing: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.seed = model, seed
        self.options = o = (options or TrainingOptions()).resolved(model)
        model.alpha, model.K, model.lam = float(o.alpha), int(o.K), o.lam  # type: ignore[arg-type]
        first = next(model.refiner.parameters(), None)
        if first is None:
            raise ValueError("the corrector has no parameters to train")
        self.device = first.device
        given = [as_mask(m.to(self.device)) for m in (mask, model.mask) if m is not None]
        self.mask = given[0] & given[-1] if given else None
        model.mask = self.mask
        dtype = first.dtype if first.is_floating_point() else None
        place = (o.batch, self.device, self.mask, dtype)
        self.train = Batches(train, *place)
        self.valid = None if valid is None else Batches(valid, *place)
        self.steps = o.epochs * len(self.train) if o.max_steps is None else o.max_steps
        self.epochs = -(-self.steps // len(self.train))
        with seeded(seed):  # a loader may shuffle
            check_splits(self.train, self.valid, base_input)
        if expected_base is not None:
            if model.base is None:
                raise ValueError("expected_base= was given, but there is no base to score")
            check_base(model.base, self.valid or self.train, expected_base)
        with seeded(seed):
            self._first_batch(spacing)
        extension = getattr(model.refiner, "padding", None)
        self.objective = Objective(
            float(o.beta_spec), o.beta_fp, o.lam, o.phase, o.hermitian,  # type: ignore[arg-type]
            extension if extension and any(m != "circular" for m in extension) else None,
        )  # fmt: skip
        self._run = torch.compile(model.refiner) if o.compile else model.refiner

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        each_step: Callable[[int], None] | None = None,
    ) -> History:
        """Train to the end, or until an epoch.

        Args:
            until: stop after so many epochs; the schedule stays that of all.
            checkpoint: file that is written after every epoch.
            resume: go on from it.
            callbacks: called with the row of every epoch.
            each_step: called after every batch, with how many there were.

        Raises:
            FileNotFoundError, ValueError: a checkpoint that is missing or of another training.
            FloatingPointError: the loss is not finite.
        """
        o, refiner = self.options, self.model.refiner
        optimizer = torch_optimizer(o.optimizer)(
            list(refiner.named_parameters()), lr=o.lr, weight_decay=o.weight_decay
        )
        history = History()
        best: tuple[float, dict[str, Tensor]] | None = None
        identity = {
            "options": asdict(replace(o, lam=list(o.lam))),
            "seed": self.seed,
            "steps": len(self.train),
        }
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs checkpoint=")
            state = load_state(checkpoint, kind=KIND, identity=identity, device=str(self.device))
            refiner.load_state_dict(state["refiner"])
            optimizer.load_state_dict(state["optimizer"])
            history.rows, history.best_epoch = state["rows"], state["best_epoch"]
            history.base_vrmse = state["base_vrmse"]
            best = (state["best"], state["best_refiner"])
        elif self.valid is not None:
            history.base_vrmse = self._scores(0)["vrmse"]
        last = self.epochs if until is None else min(until, self.epochs)
        for epoch in range(len(history.rows), last):
            row = self._epoch(epoch, optimizer, each_step)
            row["passes"] += history.rows[-1]["passes"] if history.rows else 0.0
            if self.valid is not None:
                row |= self._scores(self.model.K)
            value = row.get("mse", -float(epoch))
            if best is None or value < best[0]:
                best, history.best_epoch = (value, copy.deepcopy(refiner.state_dict())), epoch
            history.rows.append(row)
            if checkpoint is not None:
                state = {
                    "refiner": refiner.state_dict(), "optimizer": optimizer.state_dict(),
                    "rows": history.rows,
                    "best": best[0], "best_epoch": history.best_epoch, "best_refiner": best[1],
                    "base_vrmse": history.base_vrmse,
                }  # fmt: skip
                save_state(checkpoint, state, kind=KIND, identity=identity)
            for callback in callbacks:
                callback(row)
        if last == self.epochs and best is not None:
            refiner.load_state_dict(best[1])
            self._judge_headroom(history)
        self.model.eval()
        return history

    def _epoch(
        self, epoch: int, optimizer: torch.optim.Optimizer, each_step: Callable[[int], None] | None
    ) -> dict[str, float]:
        o, steps = self.options, len(self.train)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        parameters = [p for p in self.model.refiner.parameters() if p.requires_grad]
        losses, passes, rate = [], 0, o.lr
        self.model.train()
        with seeded(int(torch.randint(2**31, (), generator=generator))):
            for step, (x, y, mask) in enumerate(self.train.epoch(generator)):
                done = epoch * steps + step
                if done == self.steps:
                    break
                rate = cosine(done, self.steps, o.lr, o.min_lr)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                x, y, mask = self._augmented(x, y, mask, generator)
                loss, used = self._loss(x, y, mask, epoch, generator)
                optimizer.zero_grad()
                loss.backward()
                if o.clip:
                    nn.utils.clip_grad_norm_(parameters, o.clip)
                optimizer.step()
                losses.append(loss.detach())
                passes += used * len(x)
                if each_step is not None:
                    each_step(done + 1)
        mean = float(torch.stack(losses).mean())
        if not math.isfinite(mean):
            raise FloatingPointError(
                f"the loss of epoch {epoch} is not finite; lower lr={o.lr} or alpha={o.alpha}"
            )
        return {"epoch": float(epoch), "loss": mean, "lr": rate, "passes": float(passes)}

    def _loss(
        self, x: Tensor, y: Tensor, mask: Tensor | None, epoch: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """The loss of a batch, and how often the corrector was evaluated for a sample."""
        o, model = self.options, self.model
        K = int(o.K)  # type: ignore[arg-type]
        fp = o.beta_fp * min(1.0, (epoch + 1) / o.fp_warmup) if o.fp_warmup else o.beta_fp
        x, h = model.start(x, mask)
        if h.shape != y.shape:
            raise ValueError(
                f"the base gives {list(h.shape)} but the target is {list(y.shape)}; both need one shape"
            )
        truth = Truth.of(y, self.objective, mask)
        with self._compiled(), torch.autocast(self.device.type, torch.bfloat16, enabled=o.amp):
            if o.mode == "detached":
                k = int(torch.randint(K, (), generator=generator))
                loss = detached_loss(model, x, h, truth, self.objective, K=K, k=k, fp_weight=fp)
                return loss, k + 1 + (k == K - 1 and fp > 0)
            steps = K
            if o.mode == "curriculum":
                stage = 3 * epoch // self.epochs
                steps = min(K, (1, 2, K)[min(stage, 2)])
            loss = unrolled_loss(model, x, h, truth, self.objective, K=steps, fp_weight=fp)
            return loss, steps + (fp > 0)

    def _compiled(self) -> Any:
        return _Swapped(self.model, self._run)

    def _scores(self, K: int) -> dict[str, float]:
        """Mean squared error and VRMSE of h_K on the validation data, outliers left out if they are few.

        Channels of the target that are constant in some sample are left out of the VRMSE.
        """
        assert self.valid is not None
        self.model.eval()
        errors, relative, varies = [], [], []
        with torch.no_grad():
            for x, y, valid in self.valid.epoch():
                x, h = self.model.start(x, valid)
                for _ in range(K):
                    h = self.model.step(x, h)
                if valid is not None:  # no error, and no variance, where there is no point
                    y = fill_masked(y, valid)
                    h = torch.where(valid, h, y)
                errors.append((h - y).square().flatten(1).mean(1))
                relative.append(vrmse(h, y))
                varies.append(varying(y))
        error = torch.cat(errors).double()
        relative_error = mean_over_varying(torch.cat(relative).double(), torch.cat(varies))
        outlier = ~(error <= OUTLIER)
        share = float(outlier.double().mean())
        kept = ~outlier if share <= MOST_OUTLIERS else torch.ones_like(outlier)
        mse = float(error[kept].mean())
        return {
            "mse": mse if math.isfinite(mse) else math.inf,
            "vrmse": float(relative_error[kept].mean()),
            "outliers": share,
        }

    def _judge_headroom(self, history: History) -> None:
        if history.base_vrmse is None or math.isnan(history.base_vrmse) or not history.rows:
            return
        reached = history.rows[history.best_epoch].get("vrmse", math.inf)
        history.headroom = bool(reached <= (1 - HEADROOM) * history.base_vrmse)
        if not history.headroom and self.model.base is not None:
            warnings.warn(
                f"no headroom: the base's VRMSE {history.base_vrmse:.4g} became {reached:.4g}; a base "
                "near the noise of its data leaves nothing to refine",
                stacklevel=3,
            )

    def _augmented(
        self, x: Tensor, y: Tensor, mask: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.options.augment is None:
            return x, y, mask
        modes = getattr(self.model.refiner, "padding", ("circular",) * (x.dim() - 2))
        if x.shape[2:] != y.shape[2:]:
            raise ValueError("augment='shift' needs x and y on one grid")
        axes = [2 + a for a, mode in enumerate(modes) if mode == "circular"]
        shifts = [int(torch.randint(x.shape[a], (), generator=generator)) for a in axes]
        moved = [None if t is None or not axes else t.roll(shifts, axes) for t in (x, y, mask)]
        return (moved[0], moved[1], moved[2]) if axes else (x, y, mask)  # type: ignore[return-value]

    def _first_batch(self, spacing: Sequence[float] | None) -> None:
        """Learn the grid, and the scale of what is to be corrected."""
        model = self.model
        _, y, _ = next(self.train.epoch())
        model.shape = tuple(y.shape[2:])
        if spacing is not None:
            model.spacing = tuple(float(s) for s in spacing)
        if self.options.residual_scale:
            with torch.no_grad():
                std = Statistics.of(self._residuals()).std
            model.scale = torch.where(std > 0, std, 1.0).to(y)

    def _residuals(self) -> Iterator[Tensor]:
        """y - h_0, batch by batch; with a mask the points that exist, side by side."""
        for x, y, valid in self.train.epoch():
            _, h = self.model.start(x, valid)
            error = y - h
            if valid is not None:
                kept = valid.expand(len(y), 1, *y.shape[2:]).transpose(0, 1).flatten()
                error = error.transpose(0, 1).flatten(1)[None][:, :, kept]
            yield error


def fit(
    model: IRNO,
    train: Any,
    valid: Any = None,
    mode: str = "detached",
    alpha: float | None = None,
    K: int | None = None,
    epochs: int = 150,
    lr: float = 3e-4,
    beta_spec: float | None = None,
    beta_fp: float = 0.01,
    lam: tuple[float, float] = (1.0, 2.0),
    amp: bool = False,
    compile: bool = False,
    callbacks: Sequence[Callback] = (),
    *,
    mask: Tensor | None = None,
    base_input: Any = None,
    expected_base: float | None = None,
    spacing: Sequence[float] | None = None,
    seed: int = 0,
    **options: Any,
) -> History:
    """Train the corrector of ``model`` in place.

    Args:
        model: the operator.
        train, valid: (x, y) arrays, a ``TensorDataset``, a ``DataLoader``, or a ``WellDataset``.
        mode, alpha, K, epochs, lr, beta_spec, beta_fp, lam, amp, compile: as of ``TrainingOptions``.
        callbacks: called with the row of every epoch.
        mask, base_input, expected_base, spacing, seed: as of ``Training``.
        options: further ones of ``TrainingOptions``.

    Raises:
        TypeError, ValueError, FloatingPointError: as ``Training``.

    Example:
        >>> model = IRNO(nn.Identity(), Refiner(1, 1, base_channels=4, depth=1, dims=1))
        >>> x = torch.randn(8, 1, 16)
        >>> len(fit(model, (x, 2 * x), epochs=1).rows)
        1
    """
    chosen = TrainingOptions(
        mode=mode, alpha=alpha, K=K, epochs=epochs, lr=lr, beta_spec=beta_spec, beta_fp=beta_fp, lam=lam,
        amp=amp, compile=compile, **options,
    )  # fmt: skip
    training = Training(
        model, train, valid, chosen, mask=mask, base_input=base_input, expected_base=expected_base,
        spacing=spacing, seed=seed,
    )  # fmt: skip
    return training.fit(callbacks=callbacks)


def cosine(step: int, steps: int, lr: float, least: float) -> float:
    """From lr to the least, along half a cosine."""
    return least + (lr - least) * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


class _Swapped:
    """Inside, the operator calls a compiled form of its corrector; its modules and state stay as they are."""

    def __init__(self, model: IRNO, run: Any) -> None:
        self.model, self.run = model, run

    def __enter__(self) -> None:
        self.before = self.model.__dict__.get("correction")
        if self.run is not self.model.refiner:
            model, run = self.model, self.run

            def correction(x: Tensor, h: Tensor) -> Tensor:
                found = run(torch.cat([x, h], 1))
                return (
                    found
                    if model.scale is None
                    else found * model.scale.view(1, -1, *[1] * (found.dim() - 2))
                )

            model.__dict__["correction"] = correction

    def __exit__(self, *error: Any) -> None:
        self.model.__dict__.pop("correction", None)
