"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_loes.finetuning import FineTuning


def select(seed: int) -> Example:
    """Five layers, of which the third alone knows the class: it is chosen first."""
    from dataclasses import replace

    from icml_loes.greedy import Weights
    from icml_loes.selection import LayerSelection, SelectionProblem

    def problem() -> SelectionProblem:
        return SelectionProblem(*_layers(seed))

    def check(result: Any) -> None:
        assert result.selected[0] == 2
        assert len(result.selected) == len(set(result.selected)) == 2
        assert result.metrics["accuracy"] > 0.8

    def corrupt(result: Any) -> Any:
        return replace(result, scores=[s - 1 for s in result.scores])

    return Example(
        build=lambda: LayerSelection(k=2, weights=Weights(alpha=0.0), seed=seed),
        inputs=problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=corrupt,
        bad=lambda: replace(problem(), targets=[0] * 60),
    )


def select_model(seed: int) -> Example:
    """A network of three blocks, read by hooks."""
    from dataclasses import replace

    from icml_core.randomness import seeded

    from icml_loes.model_selection import ModelLayerSelection, ModelProblem
    from icml_loes.selection import LayerSelection

    def problem() -> ModelProblem:
        import torch
        from torch import nn

        with seeded(seed):
            model = nn.Module()
            model.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            net = nn.Sequential(*model.layers)
            model.forward = net.forward
            inputs = torch.randn(40, 6)
        labels = (inputs[:, 0] > 0).long()
        batches = list(zip(inputs.split(16), labels.split(16), strict=True))
        return ModelProblem(model, batches, n_cal=40, seed=seed)

    def check(result: Any) -> None:
        assert len(result.selected) == 2
        assert result.names == ["layers.0", "layers.1", "layers.2"]

    return Example(
        build=lambda: ModelLayerSelection(LayerSelection(k=2, seed=seed)),
        inputs=problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=lambda result: replace(result, scores=[s - 1 for s in result.scores]),
        bad=lambda: replace(problem(), batches=[]),
    )


def head(seed: int) -> Example:
    """Two layers of six and five columns."""
    import torch

    from icml_loes.head import LoesHead

    def inputs() -> list[Any]:
        g = torch.Generator().manual_seed(seed)
        return [torch.randn(7, 6, generator=g), torch.randn(7, 5, generator=g)]

    def check(logits: Any) -> None:
        assert logits.shape == (7, 3)
        assert bool(torch.isfinite(logits).all())

    return Example(
        build=lambda: LoesHead([6, 5], 3, proj_dim=4, fusion="learnable", seed=seed).eval(),
        inputs=inputs,
        call=lambda module, given: module(given),
        check=check,
        bad=lambda: inputs()[:1],
    )


def georeg(seed: int) -> Example:
    """Twelve features of three classes; all triangles."""
    import torch

    from icml_loes.georeg import GeoRegLoss

    def inputs() -> tuple[Any, Any]:
        z = torch.randn(12, 5, generator=torch.Generator().manual_seed(seed))
        return z, torch.arange(12) % 3

    def check(value: Any) -> None:
        assert value.ndim == 0
        assert bool(torch.isfinite(value))

    return Example(
        build=lambda: GeoRegLoss(triangles="all"),
        inputs=inputs,
        call=lambda loss, given: loss(*given),
        check=check,
        bad=lambda: (inputs()[0], torch.arange(11)),
    )


def finetune(seed: int) -> Example:
    """A head on two layers, four epochs; stopped after two and resumed it is the same training."""
    import torch

    from icml_loes.finetuning import FineTuning, FineTuningOptions
    from icml_loes.head import LoesHead

    def build() -> FineTuning:
        embeddings, labels = _layers(seed)
        inputs = torch.tensor(embeddings[:, 1:3], dtype=torch.float32)
        options = FineTuningOptions(epochs=4, batch=16, lr=1e-2)
        return FineTuning(
            LoesHead([8, 8], 3, proj_dim=8, seed=seed),
            inputs[:48],
            labels[:48],
            (inputs[48:], labels[48:]),
            options,
            seed=seed,
        )

    def resumed(training: FineTuning, inputs: None, directory: Path) -> list[dict[str, float]]:
        file = directory / "half.safetensors"
        training.fit(until=2, checkpoint=file)
        return build().fit(checkpoint=file, resume=True).rows

    def check(rows: list[dict[str, float]]) -> None:
        assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
        assert rows[-1]["loss"] < rows[0]["loss"]

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda training, inputs: training.fit().rows,
        check=check,
        resumed=resumed,
    )


def profile(seed: int) -> Example:
    """The class lives in layer 2."""
    from icml_loes.profile import ProfileEvaluator

    def check(figures: Any) -> None:
        scores = [figures[f"score/class/{i}"] for i in range(5)]
        assert max(scores) == scores[2]

    return Example(
        build=ProfileEvaluator,
        inputs=lambda: _layers(seed),
        call=lambda evaluator, given: evaluator.evaluate(given[0], labels={"class": given[1]}),
        check=check,
        bad=lambda: (_layers(seed)[0][:, 0], _layers(seed)[1]),
    )


def _layers(seed: int) -> tuple[Any, Any]:
    """[60, 5, 8] of noise, and three classes that shift layer 2."""
    import numpy as np

    rng = np.random.default_rng(seed)
    labels = np.arange(60) % 3
    embeddings = rng.normal(size=(60, 5, 8))
    embeddings[:, 2, :3] += 3 * np.eye(3)[labels]
    return embeddings, labels
