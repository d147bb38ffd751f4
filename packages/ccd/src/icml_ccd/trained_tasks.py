"""A small masked diffusion model for each task: trained once and kept in the user's cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps
from typing import Any, Literal

import torch
from icml_lm import artefact
from torch import Tensor

from icml_ccd.tasks import Addition, Sudoku, Task
from icml_ccd.tiny_mdm import MDMConfig, TinyMDM
from icml_ccd.training import MaskedDiffusionTraining
from icml_ccd.trips import Trips

Scale = Literal["smoke", "small", "full"]
VERSION = 2
"""Of the recipe: another number trains anew."""

TRAINING = 1 << 40
"""Added to a seed: puzzles of trainings, on which no model is judged."""


@dataclass(frozen=True)
class Recipe:
    """How a model of a task is trained.

    Attributes:
        d, layers: of the Transformer, with four heads.
        steps: updates.
        batch: sequences of an update.
        lr: peak learning rate.
        pool: examples from which batches are drawn; 0 makes new ones for every update.
    """

    d: int
    layers: int
    steps: int
    batch: int = 128
    lr: float = 3e-3
    pool: int = 10_000


TASKS: dict[str, Task] = {"addition": Addition(), "sudoku": Sudoku(), "trips": Trips()}
RECIPES: dict[Scale, dict[str, Recipe]] = {
    "smoke": {name: Recipe(16, 1, 20, 32, pool=64) for name in TASKS},
    "small": {
        "addition": Recipe(64, 3, 1200, 64, pool=0),
        "sudoku": Recipe(64, 2, 150, 64),
        "trips": Recipe(64, 4, 450, 128, pool=20_000),
    },
    "full": {
        "addition": Recipe(256, 6, 20_000, 512, 1e-3, pool=0),
        "sudoku": Recipe(128, 4, 5_000, 256, 1e-3),
        "trips": Recipe(256, 6, 20_000, 512, 1e-3, 200_000),
    },
}


def task_model(name: str, scale: Scale = "small", *, seed: int = 0, device: str = "cpu") -> TinyMDM:
    """The model of a task, trained on first use.

    Args:
        name: ``"addition"``, ``"sudoku"`` or ``"trips"``.
        scale: size of model and training.
        seed: of weights, data and masks.
        device: on which it is trained and returned.

    Raises:
        ValueError: an unknown task.
    """
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(TASKS)}")
    task, recipe = TASKS[name], RECIPES[scale][name]
    key = sha256(dumps([VERSION, asdict(recipe), seed, repr(task)]).encode()).hexdigest()[:12]
    folder = artefact(f"ccd-{name}", key, lambda path: train_on(task, recipe, seed, device).save(path))
    return TinyMDM.load(folder).to(device)


def train_on(task: Task, recipe: Recipe, seed: int = 0, device: str = "cpu", **options: Any) -> TinyMDM:
    """Train a model on examples of a task; ``options`` go to ``MaskedDiffusionTraining.fit``."""
    config = MDMConfig(task.vocab, task.mask_id, recipe.d, recipe.layers, 4, positions=task.length)
    model = TinyMDM(config, seed=seed).to(device)
    training = MaskedDiffusionTraining(
        _batches(task, recipe, seed),
        config,
        steps=recipe.steps,
        lr=recipe.lr,
        seed=seed,
        model=model,
    )
    trained: TinyMDM = training.fit(**options).model
    return trained.cpu()


def _batches(task: Task, recipe: Recipe, seed: int) -> Any:
    """Rows by step, of the pool or new ones, each with its answer maskable."""
    if not recipe.pool:
        return lambda step: task.sample(recipe.batch, seed=TRAINING + (seed << 24) + step)
    whole, answer = task.sample(recipe.pool, seed=TRAINING + seed)
    renamed = getattr(task, "renamed", None)

    def batches(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 7_368_787 + step)
        rows = torch.randint(len(whole), (recipe.batch,), generator=generator)
        drawn = whole[rows]
        return drawn if renamed is None else renamed(drawn, generator), answer[rows]

    return batches
