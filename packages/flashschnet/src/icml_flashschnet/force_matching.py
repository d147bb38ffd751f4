"""Training by force matching: the network learns the mapped forces that the prior leaves unexplained.

Minimises the mean over frames, beads and axes of ``(F - F_prior - F_net)^2`` with AdamW or another
optimizer, gradient clipping, an exponential moving average of the weights, a held-out block at the end of
every trajectory, and early stopping on its error (arXiv 2602.13140, and the training of CGSchNet; multiscale
coarse-graining after Noid et al., doi.org/10.1063/1.2938860).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from icml_core.optimizers import torch_optimizer
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn

from icml_flashschnet.convolution import Kernel
from icml_flashschnet.filter_table import FilterTable, node_table
from icml_flashschnet.force_data import (
    ForceBatch,
    ForceData,
    batches,
    digest,
    force_data,
    gather,
    prior_forces,
)
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.training_state import TrainingState, load_training, save_training
from icml_flashschnet.units import check_length_unit, to_internal


@dataclass(frozen=True)
class TrainingOptions:
    """How a network is trained; the defaults are those of CGSchNet where it has one.

    Attributes:
        epochs: passes over the training frames.
        batch_size: frames a step.
        optimizer: one of torch's by name, or a plug-in's, such as ``"sso.sso"``.
        learning_rate: of the optimizer; at the beginning, with the cosine schedule.
        weight_decay: of the optimizer, where it has one.
        clip: largest norm of the gradient.
        schedule: ``"constant"``, or ``"cosine"`` down to zero over all epochs.
        loss: ``"mse"``, or ``"rmse"``, its root over each batch.
        validation: fraction of every trajectory, at its end, that is held out.
        ema: decay of the averaged weights, which are what is validated and kept; 0 averages nothing.
        patience: epochs without a better validation error after which training stops; None never.
        chunk: frames in one graph; gradients of a batch are accumulated over its chunks.
        table: intervals of the tables through which filters are trained, per basis function: each step
            evaluates the filter networks at the nodes only, and interpolates between them (cubic, as
            ``compress`` does; the error at 8 is about 1e-5). 0 evaluates them at every pair.
    """

    epochs: int = 300
    batch_size: int = 256
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip: float = 10.0
    schedule: Literal["constant", "cosine"] = "constant"
    loss: Literal["mse", "rmse"] = "mse"
    validation: float = 0.1
    ema: float = 0.999
    patience: int | None = 30
    chunk: int = 32
    table: int = 8

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"TrainingOptions.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"TrainingOptions.{name} must be positive, got {getattr(self, name)}")
        if self.table < 0:
            raise ValueError(f"TrainingOptions.table must not be negative, got {self.table}")
        if self.weight_decay < 0:
            raise ValueError(f"TrainingOptions.weight_decay must not be negative, got {self.weight_decay}")
        if not 0 < self.validation < 1:
            raise ValueError(f"TrainingOptions.validation must lie between 0 and 1, got {self.validation}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"TrainingOptions.ema must be at least 0 and below 1, got {self.ema}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"TrainingOptions.patience must be at least 1 or None, got {self.patience}")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"TrainingOptions.schedule must be constant or cosine, got {self.schedule!r}")
        if self.loss not in ("mse", "rmse"):
            raise ValueError(f"TrainingOptions.loss must be mse or rmse, got {self.loss!r}")


@dataclass(frozen=True)
class ForceErrors:
    """Root mean squares over the held-out frames, in the unit of the forces.

    Attributes:
        model: error of prior and network together.
        prior: error of the prior alone (of no force at all without a prior).
        forces: the forces themselves.
    """

    model: float
    prior: float
    forces: float


class ForceMatcher:
    """Trains a :class:`FlashSchNet` on coordinates and forces, in the manner of scikit-learn.

    Args:
        config: sizes of the network.
        prior: potential whose forces are subtracted first: one for all systems, one a system, or None.
        options: how to train.
        seed: of the initial weights and of the order of frames.
        device: where to train.
        dtype: of the network.
        kernel: which code convolves while training (``FlashSchNet.kernel``).
        units: of coordinates and forces given: ``("nm", "kJ/mol/nm")`` are converted.

    Attributes:
        network_: the trained network (the averaged weights of the best epoch).
        history_: one dict an epoch: ``epoch``, ``step``, ``learning_rate``, ``train_rmse`` and
            ``validation_rmse``.
        errors_: :class:`ForceErrors` of the held-out frames.

    Example:
        >>> config = SchNetConfig(n_types=2, hidden=8, filters=8, n_rbf=8, layers=1, r_cut=5.0, out=(8,))
        >>> rng = np.random.default_rng(0)
        >>> coords = np.array([[0.0, 0, 0], [3.0, 0, 0]]) + 0.1 * rng.standard_normal((20, 2, 3))
        >>> forces = -(coords - coords.mean(0))
        >>> matcher = ForceMatcher(config, options=TrainingOptions(epochs=2)).fit(coords, forces, [0, 1])
        >>> matcher.predict(coords).shape
        (20, 2, 3)
    """

    network_: FlashSchNet
    history_: list[dict[str, float]]
    errors_: ForceErrors

    def __init__(
        self,
        config: SchNetConfig,
        prior: nn.Module | Sequence[nn.Module | None] | None = None,
        *,
        options: TrainingOptions | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        kernel: Kernel = "auto",
        units: tuple[str, str] = ("Å", "kcal/mol/Å"),
    ) -> None:
        self.config = config
        self.prior = prior
        self.options = options or TrainingOptions()
        self.seed = seed
        self.device = torch.device(device)
        self.dtype = dtype
        self.kernel = kernel
        self._length, self._force = to_internal(*units)

    def fit(
        self,
        coords: ArrayLike | Sequence[ArrayLike],
        forces: ArrayLike | Sequence[ArrayLike],
        types: ArrayLike | Sequence[ArrayLike],
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
        callback: Callable[[dict[str, float]], None] | None = None,
    ) -> ForceMatcher:
        """Train on one system, or on a list of systems of different beads.

        Args:
            coords: positions [T, N, 3]; or one such array a system, in a list.
            forces: mapped forces, shaped as ``coords``.
            types: bead types [N]; or one such array a system.
            checkpoint: file (.safetensors) that holds the whole state after every epoch.
            resume: continue from ``checkpoint`` where it exists; the result is that of an uninterrupted run.
            callback: called with each epoch's line of the history.

        Returns:
            The trainer itself. Where training is interrupted from the keyboard, the exception passes on
            after the best weights so far have been put into ``network_``.

        Raises:
            ValueError: arrays that do not fit together, NaN, diverged training, a checkpoint of another
                training.
        """
        data = self._data(coords, forces, types)
        parts = [d.split(self.options.validation) for d in data]
        training, held_out = [a for a, _ in parts], [b for _, b in parts]
        identity = {
            "config": asdict(self.config),
            "options": asdict(self.options),
            "seed": self.seed,
            "dtype": str(self.dtype),
            "data": digest(data),
        }
        network = FlashSchNet(self.config, seed=self.seed, kernel=self.kernel).to(self.device, self.dtype)
        state = TrainingState.begin(network)
        if resume and checkpoint is not None and checkpoint.exists():
            state = load_training(checkpoint, identity, network)
        try:
            self._train(network, state, training, held_out, identity, checkpoint, callback)
        finally:
            network.load_state_dict(state.best)
            network.requires_grad_(True)
            self.network_, self.history_ = network, state.history
        self.errors_ = force_errors(network, held_out)
        return self

    def predict(
        self, coords: ArrayLike, types: ArrayLike | None = None, *, system: int = 0
    ) -> Float[np.ndarray, "frames beads 3"]:
        """Forces of prior and network together, in the units given.

        Args:
            coords: positions [T, N, 3].
            types: bead types [N]; those of ``system`` by default.
            system: number of the system trained on whose prior and types are meant.
        """
        self._check_fitted()
        x = np.asarray(coords)
        types = self._types[system] if types is None else np.asarray(types)
        if x.ndim != 3 or x.shape[1:] != (len(types), 3):
            raise ValueError(f"coords must be [frames, {len(types)}, 3], got {list(x.shape)}")
        if not np.isfinite(x).all():
            raise ValueError("coords are not finite")
        pos = torch.as_tensor(x, dtype=self.dtype, device=self.device) * self._length
        type_ = torch.as_tensor(types, dtype=torch.int64, device=self.device)
        return (prior_forces(self.potential(system), pos, type_) / self._force).cpu().numpy()

    def score(
        self, coords: ArrayLike, forces: ArrayLike, types: ArrayLike | None = None, *, system: int = 0
    ) -> float:
        """Coefficient of determination of the forces: 1 is perfect, 0 no better than none.

        Mapped forces carry noise that no function of the beads explains, so even the exact potential of
        mean force stays below 1.
        """
        target = np.asarray(forces, dtype=np.float64)
        predicted = self.predict(coords, types, system=system)
        if predicted.shape != target.shape:
            raise ValueError(f"forces must be {list(predicted.shape)} as coords, got {list(target.shape)}")
        return float(1.0 - ((target - predicted) ** 2).sum() / (target**2).sum())

    def potential(self, system: int = 0) -> FlashSchNet | SumPotential:
        """The trained potential of a system: network plus its prior, for dynamics."""
        self._check_fitted()
        prior = self._prior(system)
        return self.network_ if prior is None else SumPotential(self.network_, prior)

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise RuntimeError("this ForceMatcher has not been fitted: call fit first")

    def _prior(self, system: int) -> nn.Module | None:
        if self.prior is None or isinstance(self.prior, nn.Module):
            return self.prior
        return self.prior[system]

    def _data(self, coords: Any, forces: Any, types: Any) -> list[ForceData]:
        if not isinstance(coords, list | tuple):
            coords, forces, types = [coords], [forces], [types]
        if not len(coords) == len(forces) == len(types):
            raise ValueError(
                f"coords, forces and types of {len(coords)}, {len(forces)} and {len(types)} systems: "
                "give one of each a system"
            )
        if isinstance(self.prior, list | tuple) and len(self.prior) != len(coords):
            raise ValueError(f"{len(self.prior)} priors for {len(coords)} systems: give one each")
        data = []
        for number, (x, f, z) in enumerate(zip(coords, forces, types, strict=True)):
            x, f, name = np.asarray(x) * self._length, np.asarray(f) * self._force, f"system {number}"
            if x.ndim == 3 and len(x):
                check_length_unit(x[0], f"{name}: coords")
            data.append(
                force_data(
                    x, f, z, prior=self._prior(number), dtype=self.dtype, device=self.device, name=name
                )
            )
        self._types = [d.types.cpu().numpy() for d in data]
        return data

    def _train(
        self,
        network: FlashSchNet,
        state: TrainingState,
        training: list[ForceData],
        held_out: list[ForceData],
        identity: dict[str, Any],
        checkpoint: Path | None,
        callback: Callable[[dict[str, float]], None] | None,
    ) -> None:
        options = self.options
        averaged = FlashSchNet(self.config).to(self.device, self.dtype).requires_grad_(False)
        optimizer = self._optimizer(network)
        state.restore(network, optimizer)
        frames = sum(d.n_frames for d in training)
        total_steps = options.epochs * math.ceil(frames / options.batch_size)
        while state.epoch < options.epochs:
            if options.patience is not None and state.epoch - state.best_epoch >= options.patience:
                break
            generator = torch.Generator().manual_seed(_epoch_seed(self.seed, state.epoch))
            squares, count = 0.0, 0
            for system, frame in batches(training, options.batch_size, generator=generator):
                rate = options.learning_rate
                if options.schedule == "cosine":
                    rate *= 0.5 * (1.0 + math.cos(math.pi * state.step / total_steps))
                for group in optimizer.param_groups:
                    group["lr"] = rate
                batch_squares, batch_count = self._step(network, optimizer, training, system, frame)
                squares, count = squares + batch_squares, count + batch_count
                state.step += 1
                decay = min(options.ema, (1 + state.step) / (10 + state.step)) if options.ema else 0.0
                with torch.no_grad():
                    for name, value in network.state_dict().items():
                        state.averaged[name].lerp_(value, 1.0 - decay)
            if not math.isfinite(squares):
                raise ValueError(
                    f"training diverged in epoch {state.epoch}: lower "
                    f"learning_rate={options.learning_rate:g}, or look for extreme forces in the data"
                )
            averaged.load_state_dict(state.averaged)
            error = network_error(averaged, held_out)
            state.epoch += 1
            if error < state.best_error:
                state.best_error, state.best_epoch = error, state.epoch
                state.best = {name: value.clone() for name, value in state.averaged.items()}
            line = {
                "epoch": state.epoch,
                "step": state.step,
                "learning_rate": rate,
                "train_rmse": math.sqrt(squares / count),
                "validation_rmse": error,
            }
            state.history.append(line)
            if checkpoint is not None:
                state.capture(network, optimizer)
                save_training(checkpoint, state, identity)
            if callback is not None:
                callback(line)

    def _optimizer(self, network: FlashSchNet) -> torch.optim.Optimizer:
        options = self.options
        construct = torch_optimizer(options.optimizer)
        decay = {"weight_decay": options.weight_decay}
        if "weight_decay" not in inspect.signature(construct).parameters:
            decay = {}  # constraints of an optimizer's own take its place
        return construct(network.named_parameters(), lr=options.learning_rate, **decay)

    def _step(
        self,
        network: FlashSchNet,
        optimizer: torch.optim.Optimizer,
        data: list[ForceData],
        system: Int[Tensor, " frames"],
        frame: Int[Tensor, " frames"],
    ) -> tuple[float, int]:
        """One optimizer step on some frames; returns the sum and the number of the squared errors."""
        optimizer.zero_grad(set_to_none=True)
        count = sum(3 * data[s].types.numel() for s in system.tolist())
        graphs = self._tables(network)
        tables = [FilterTable(graph.detach().requires_grad_(), network.r_cut) for graph in graphs]
        squares = 0.0
        chunk = self.options.chunk
        for part in zip(system.split(chunk), frame.split(chunk), strict=True):
            residual = force_residual(network, gather(data, *part), tables).square().sum()
            (residual / count).backward()
            squares += residual.item()
        if graphs:
            torch.autograd.backward(graphs, [filters.table.grad for filters in tables])
        if self.options.loss == "rmse" and squares > 0:
            scale = 0.5 / math.sqrt(squares / count)
            for parameter in network.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        nn.utils.clip_grad_norm_(network.parameters(), self.options.clip)
        optimizer.step()
        return squares, count

    def _tables(self, network: FlashSchNet) -> list[Tensor]:
        """Tables of the filters, differentiable in their weights; none where training goes without."""
        intervals = self.options.table * self.config.n_rbf
        return [node_table(layer.filter, intervals) for layer in network.interactions] if intervals else []


def force_residual(
    network: FlashSchNet, batch: ForceBatch, tables: Sequence[FilterTable] = ()
) -> Float[Tensor, "beads 3"]:
    """``F_net - F`` of a batch, differentiable in the weights, or in ``tables`` where they are given."""
    _, forces = network.trainable_forces(batch.pos, batch.types, batch.batch, tables=tables)
    return forces - batch.delta


def network_error(network: FlashSchNet, data: Sequence[ForceData]) -> float:
    """Root mean square of the force error over all frames, beads and axes."""
    squares = count = 0.0
    for d in data:
        residual = prior_forces(network, d.coords, d.types) - d.delta
        squares += float(residual.double().square().sum())
        count += residual.numel()
    return math.sqrt(squares / count)


def force_errors(network: FlashSchNet, data: Sequence[ForceData]) -> ForceErrors:
    """Errors of the model, of the prior alone, and the size of the forces, over ``data``."""
    count = sum(d.forces.numel() for d in data)
    prior = math.sqrt(sum(float(d.delta.double().square().sum()) for d in data) / count)
    forces = math.sqrt(sum(float(d.forces.double().square().sum()) for d in data) / count)
    return ForceErrors(network_error(network, data), prior, forces)


def _epoch_seed(seed: int, epoch: int) -> int:
    """Seed of an epoch's order of frames: a function of both, so that a resumed run shuffles alike."""
    return (seed * 1_000_003 + epoch) % 2**63
