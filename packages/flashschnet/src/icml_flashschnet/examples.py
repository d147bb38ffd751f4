"""Tiny instances of the network, its training and its compression, for the contract tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_flashschnet.force_matching import ForceMatcher
    from icml_flashschnet.schnet import FlashSchNet


def schnet(seed: int) -> Example:
    """Energies of two replicas of three beads."""
    import torch

    def inputs() -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        corners = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1.0, 1.5, 0.0]]).repeat(2, 1)
        return {
            "pos": corners + 0.2 * torch.rand(6, 3, generator=generator),
            "types": torch.tensor([0, 1, 2]).repeat(2),
            "n_replicas": 2,
        }

    def check(energy: torch.Tensor) -> None:
        assert energy.shape == (2,)
        assert bool(energy.isfinite().all())
        assert energy[0] != energy[1]

    return Example(
        build=lambda: _network(seed),
        inputs=inputs,
        call=lambda model, given: model(**given),
        check=check,
        bad=lambda: {**inputs(), "types": torch.tensor([0, 1, 31]).repeat(2)},
    )


def force_match(seed: int) -> Example:
    """Three beads on springs, whose forces are known."""
    import numpy as np

    from icml_flashschnet.force_matching import ForceMatcher, TrainingOptions
    from icml_flashschnet.schnet import SchNetConfig

    config = SchNetConfig(n_types=2, hidden=6, filters=6, n_rbf=6, layers=1, r_cut=5.0, out=(6,))
    options = TrainingOptions(epochs=4, batch_size=8, learning_rate=2e-2, ema=0.5, validation=0.2)

    def inputs() -> tuple[Any, Any, list[int]]:
        rng = np.random.default_rng(seed)
        rest = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.75, 1.3, 0.0]])
        moved = 0.2 * rng.standard_normal((20, 3, 3))
        moved -= moved.mean(1, keepdims=True)
        return rest + moved, -moved, [0, 1, 0]

    def result(matcher: ForceMatcher) -> dict[str, Any]:
        return {"history": matcher.history_, "weights": dict(matcher.network_.state_dict())}

    def check(outcome: dict[str, Any]) -> None:
        errors = [line["train_rmse"] for line in outcome["history"]]
        assert len(errors) == options.epochs
        assert errors[-1] < errors[0]

    def resumed(matcher: ForceMatcher, given: Any, directory: Path) -> dict[str, Any]:
        def stop(line: dict[str, float]) -> None:
            if line["epoch"] == 2:
                raise KeyboardInterrupt

        checkpoint = directory / "training.safetensors"
        try:
            matcher.fit(*given, checkpoint=checkpoint, callback=stop)
        except KeyboardInterrupt:
            matcher.fit(*given, checkpoint=checkpoint, resume=True)
        return result(matcher)

    return Example(
        build=lambda: ForceMatcher(config, options=options, seed=seed),
        inputs=inputs,
        call=lambda matcher, given: result(matcher.fit(*given)),
        check=check,
        bad=lambda: (inputs()[0], np.zeros((20, 9, 3)), [0, 1, 0]),
        resumed=resumed,
    )


def compress(seed: int) -> Example:
    """A small network becomes one with tables."""
    import torch

    from icml_flashschnet.compression import Compression, TableCompressor

    def check(solution: Compression) -> None:
        assert solution.report.filter_error <= 1e-5
        assert solution.report.table_bytes == sum(t.numel() * 4 for t in solution.model.buffers())

    def corrupt(solution: Compression) -> Compression:
        with torch.no_grad():
            next(solution.model.buffers())[10] += 0.01
        return solution

    return Example(
        build=lambda: TableCompressor(tol=1e-5),
        inputs=lambda: _network(seed),
        call=lambda compressor, model: compressor.solve(model),
        check=check,
        corrupt=corrupt,
        bad=lambda: torch.nn.Linear(2, 2),
    )


def _network(seed: int) -> FlashSchNet:
    from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

    config = SchNetConfig(n_types=3, hidden=8, filters=8, n_rbf=8, layers=2, r_cut=5.0, out=(8,))
    return FlashSchNet(config, seed=seed)
