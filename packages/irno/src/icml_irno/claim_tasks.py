"""What the claims share: the Kuramoto-Sivashinsky task, its bases, and trainings of equal compute.

A sample is a state on the attractor (L = 64, 128 points) and the state 60 steps of 0.1 later. Compute is
counted in passes of the corrector through a batch of 16: one without gradient costs 1, one with gradient 3.
Budgets are fixed in such passes and spent to the step (the last epoch is cut), so that figures repeat on any
machine. At small a base trains for 40 epochs, 24 seconds of one core of an AVX-512 Xeon, and a corrector for
15/8 of that time: 45 seconds, at 9 ms a pass. (The ratio was fixed before any figure was seen.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from icml_core import Run
from torch import Tensor, nn

from icml_irno.base_training import fit_base
from icml_irno.checkpoints import save_fno, save_irno
from icml_irno.fno import FNO
from icml_irno.metrics import mean_vrmse
from icml_irno.operator import IRNO
from icml_irno.refiner import Refiner
from icml_irno.simulators import kuramoto_sivashinsky
from icml_irno.statistics import Statistics
from icml_irno.training import Training, TrainingOptions

LEAD, LEADS, BATCH = 60, 5, 16
BASE_EPOCHS = {"smoke": 1, "small": 40, "full": 400}
UNITS = {"smoke": 24.0, "small": 5000.0, "full": 30000.0}
SIZES = {"smoke": (32, 8, 8), "small": (500, 50, 100), "full": (500, 50, 100)}  # train, validation, test
GRADIENT = 3.0  # cost of a pass with gradient over one without


@dataclass(frozen=True)
class Task:
    """z-scores of inputs and targets, and of the test trajectories at later times."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    later: list[Tensor]
    scale: str
    seed: int


def ks_task(run: Run, seed: int) -> Task:
    """The data of a seed."""
    smoke = run.scale == "smoke"
    counts = SIZES[run.scale]
    times = [LEAD * t for t in range(LEADS + 1)]
    size = {"length": 32.0, "points": 32, "burn_in": 100} if smoke else {}
    first = kuramoto_sivashinsky(counts[0] + counts[1], seed, steps=times[:2], **size)  # type: ignore[arg-type]
    tested = kuramoto_sivashinsky(counts[2], seed + 1, steps=times, **size)  # type: ignore[arg-type]
    statistics = Statistics.of(first[: counts[0], :1])
    first, tested = (
        statistics.normalize(t.flatten(0, 1)[:, None]).view_as(t).float() for t in (first, tested)
    )
    x, y = first[:, :1], first[:, 1:]
    n = counts[0]
    return Task(
        (x[:n], y[:n]), (x[n:], y[n:]), (tested[:, :1], tested[:, 1:2]),
        [tested[:, t : t + 1] for t in range(1, LEADS + 1)], run.scale, seed,
    )  # fmt: skip


def few_modes(task: Task) -> int:
    """Modes of a base that blurs, 0 and negative ones included."""
    return 12 if task.scale != "smoke" else 4


def trained_base(
    run: Run, task: Task, width: int = 16, modes: int | None = None, epochs: int | None = None
) -> FNO:
    """An FNO of two layers and few modes, which blurs; or of as many as are given. Kept in the run."""
    modes, count = modes or few_modes(task), epochs or BASE_EPOCHS[task.scale]
    base = FNO((modes,), 1, 1, width, 2, positional_embedding=None, seed=task.seed % 2**31)
    fit_base(base, task.train, epochs=count, batch=BATCH, lr=3e-3, augment="shift", seed=task.seed % 2**31)
    save_fno(base, run.file(f"base-{width}-{modes}.safetensors"))
    return base.requires_grad_(False)


def epochs_of_both(task: Task) -> int:
    """Epochs that cost a network as many passes with gradient as base and corrector take together."""
    own = UNITS[task.scale] / GRADIENT / -(-len(task.train[0]) // BATCH)
    return math.ceil(BASE_EPOCHS[task.scale] + own)


class OpenLoop(nn.Module):
    """A corrector that is kept from seeing the estimate: the key idea switched off."""

    def __init__(self, refiner: Refiner) -> None:
        super().__init__()
        self.refiner, self.config = refiner, refiner.config
        self.out_channels, self.padding = refiner.out_channels, refiner.padding

    def forward(self, xh: Tensor) -> Tensor:
        x, h = xh[:, : -self.out_channels], xh[:, -self.out_channels :]
        return self.refiner(torch.cat([x, torch.zeros_like(h)], 1))


def corrector(task: Task) -> Refiner:
    """The U-Net of every arm."""
    channels, depth = (12, 2) if task.scale != "smoke" else (4, 1)
    return Refiner(1, 1, base_channels=channels, depth=depth, dims=1, seed=task.seed % 2**31)


def trained_corrector(
    run: Run,
    task: Task,
    base: nn.Module,
    name: str,
    *,
    mode: str = "detached",
    alpha: float = 1.0,
    K: int = 3,
    beta_spec: float = 0.1,
    beta_fp: float = 0.01,
    lam: tuple[float, float] = (1.0, 2.0),
    budget: float = 1.0,
    snapshots: int = 0,
) -> tuple[IRNO, list[dict[str, Tensor]]]:
    """An operator trained for the common budget, kept in the run; and its weights along the way.

    Args:
        run, task, base: of the measure.
        name: of the file.
        mode, alpha, K, beta_spec, beta_fp, lam: of the training.
        budget: share of the common one.
        snapshots: states to keep, evenly over the steps.
    """
    refiner: nn.Module = corrector(task)
    if run.ablation == "open-loop":
        refiner = OpenLoop(refiner)  # type: ignore[arg-type]
    model = IRNO(base, refiner, alpha, K)
    steps = max(snapshots, budget_steps(task.scale, budget, step_cost(mode, K, beta_fp)))
    options = TrainingOptions(
        mode=mode, beta_spec=beta_spec, beta_fp=beta_fp, lam=lam, max_steps=steps, batch=BATCH, lr=3e-3,
        augment="shift",
    )  # fmt: skip
    training = Training(model, task.train, options=options, seed=task.seed % 2**31)
    states: list[dict[str, Tensor]] = []
    wanted = {round((i + 1) * steps / snapshots) for i in range(snapshots)}

    def keep(done: int) -> None:
        if done in wanted:
            states.append({k: v.clone() for k, v in refiner.state_dict().items()})

    training.fit(each_step=keep)
    if run.ablation is None:
        save_irno(model, run.file(f"{name}.safetensors"))
    return model, states


def budget_steps(scale: str, budget: float, cost: float) -> int:
    """Steps of that cost which a share of the common budget pays for."""
    return max(1, round(budget * UNITS[scale] / cost))


def step_cost(mode: str, K: int, beta_fp: float) -> float:
    """Mean passes of a step of training: of the iterates, and of the fixed-point term."""
    truth = GRADIENT if beta_fp else 0.0
    if mode == "detached":
        return (K - 1) / 2 + GRADIENT + truth / K
    return K * GRADIENT + truth


def iterates_of(model: IRNO, task: Task, steps: int, split: str = "test") -> list[Tensor]:
    """h_0 ... of the test inputs."""
    x, _ = getattr(task, split)
    with torch.no_grad():
        return model.iterates(x, steps)


def errors(model: IRNO, task: Task, steps: int) -> list[float]:
    """VRMSE of every iterate on the test data; what overflowed counts as 1e6."""
    found = [mean_vrmse(h, task.test[1]) for h in iterates_of(model, task, steps)]
    return [v if v < 1e6 else 1e6 for v in found]


def reduction(base: float, refined: float) -> float:
    """Fall of an error in percent of the base's."""
    return 100 * (1 - refined / base)
