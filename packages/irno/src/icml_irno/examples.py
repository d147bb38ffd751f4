"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_irno.training import Training


def refiner(seed: int) -> Example:
    """A U-Net of two levels on lines of 10 points, which 4 does not divide."""
    import torch

    from icml_irno.refiner import Refiner

    def check(correction: Any) -> None:
        assert correction.shape == (3, 1, 10)
        assert 0 < float(correction.abs().max()) < 1  # the last layer starts near 0

    return Example(
        build=lambda: Refiner(1, 1, base_channels=4, depth=2, dims=1, seed=seed),
        inputs=lambda: torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(seed)),
        call=lambda module, xh: module(xh),
        check=check,
        bad=lambda: torch.zeros(3, 3, 10),
    )


def operator(seed: int) -> Example:
    """Two steps from a base that halves its input."""
    import torch

    from icml_irno.operator import IRNO
    from icml_irno.refiner import Refiner

    def inputs() -> Any:
        return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(seed))

    def check(refined: Any) -> None:
        assert refined.shape == (2, 1, 8, 8)
        assert not torch.equal(refined, 0.5 * inputs())

    return Example(
        build=lambda: IRNO(_half, Refiner(1, 1, base_channels=4, depth=1, seed=seed), alpha=0.5, K=2),
        inputs=inputs,
        call=lambda model, x: model(x),
        check=check,
        bad=lambda: torch.zeros(2, 1, 8, 8, dtype=torch.int64),
    )


def fno(seed: int) -> Example:
    """One layer on planes of 9 x 7."""
    import torch

    from icml_irno.fno import FNO

    def check(field: Any) -> None:
        assert field.shape == (2, 1, 9, 7)
        assert bool(torch.isfinite(field).all())

    return Example(
        build=lambda: FNO((4, 4), 2, 1, hidden_channels=6, n_layers=1, seed=seed),
        inputs=lambda: torch.randn(2, 2, 9, 7, generator=torch.Generator().manual_seed(seed)),
        call=lambda model, x: model(x),
        check=check,
        bad=lambda: torch.zeros(2, 3, 9, 7),
    )


def train(seed: int) -> Example:
    """A base that halves is corrected; stopped after two epochs and resumed it is the same training."""

    def build() -> Training:
        import torch

        from icml_irno.operator import IRNO
        from icml_irno.refiner import Refiner
        from icml_irno.training import Training, TrainingOptions

        x = torch.randn(24, 1, 16, generator=torch.Generator().manual_seed(seed))
        model = IRNO(_half, Refiner(1, 1, base_channels=4, depth=1, dims=1, seed=seed))
        options = TrainingOptions(epochs=4, batch=8, lr=1e-2, augment="shift")
        return Training(model, (x[:16], x[:16]), (x[16:], x[16:]), options, seed=seed)

    def resumed(training: Training, inputs: None, directory: Path) -> list[dict[str, float]]:
        file = directory / "half.safetensors"
        training.fit(until=2, checkpoint=file)
        return build().fit(checkpoint=file, resume=True).rows

    def check(rows: list[dict[str, float]]) -> None:
        assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
        assert rows[-1]["vrmse"] < 0.9 * 0.5  # half of the field is missing from the base's

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda training, inputs: training.fit().rows,
        check=check,
        resumed=resumed,
    )


def spectral_loss(seed: int) -> Example:
    """Of two fields of 6 x 5."""
    import torch

    from icml_irno.spectral_losses import SpectralLoss

    def inputs() -> tuple[Any, Any]:
        g = torch.Generator().manual_seed(seed)
        return torch.randn(2, 2, 6, 5, generator=g), torch.randn(2, 2, 6, 5, generator=g)

    def check(value: Any) -> None:
        assert value.ndim == 0
        assert float(value) > 0

    return Example(
        build=lambda: SpectralLoss(lam=1.5),
        inputs=inputs,
        call=lambda loss, given: loss(*given),
        check=check,
        bad=lambda: (inputs()[0], inputs()[1][:, :1]),
    )


def spectrum(seed: int) -> Example:
    """Errors that halve at every step."""
    import torch

    from icml_irno.spectrum import SpectrumEvaluator

    def inputs() -> dict[str, Any]:
        g = torch.Generator().manual_seed(seed)
        target, error = torch.randn(3, 1, 32, generator=g), torch.randn(3, 1, 32, generator=g)
        return {"iterates": [target + error / 2**k for k in range(4)], "target": target}

    def check(figures: Any) -> None:
        assert abs(figures["vrmse/1"] / figures["vrmse/0"] - 0.5) < 1e-4
        assert abs(figures["mid/2"] - 1 / 16) < 1e-4
        assert abs(figures["step_ratio/1"] - 0.5) < 1e-4

    def bad() -> dict[str, Any]:
        return {"iterates": []}

    return Example(
        build=SpectrumEvaluator,
        inputs=inputs,
        call=lambda evaluator, subject: evaluator.evaluate(subject),
        check=check,
        bad=bad,
    )


def _half(x: Any) -> Any:
    return 0.5 * x
