"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from typing import Any

from icml_core import Example


def sso(seed: int) -> Example:
    """Least squares, 20 steps, all in float32."""
    return _optimizer(seed, "SSO")


def muonsphere(seed: int) -> Example:
    """The same without the tangent condition."""
    return _optimizer(seed, "MuonSphere")


def _optimizer(seed: int, name: str) -> Example:
    import torch

    import icml_sso

    def build() -> Any:
        # Each sphere through the present weights: what trains a module that somebody else has drawn.
        return lambda params: getattr(icml_sso, name)(params, lr=0.02, radius_mode="initialize")

    def inputs() -> Any:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(32, 6, generator=generator)
        weight = torch.nn.Parameter(torch.randn(4, 6, generator=generator))
        return {"x": x, "weight": weight}

    def call(factory: Any, given: Any) -> Any:
        weight = torch.nn.Parameter(given["weight"].detach().clone())
        optimizer = factory([weight])
        for _ in range(20):
            optimizer.zero_grad()
            (given["x"] @ weight.T - 1.0).square().mean().backward()
            optimizer.step()
        optimizer.retract_()
        return weight.detach()

    def check(weight: Any) -> None:
        radius = float(torch.linalg.matrix_norm(inputs()["weight"].detach(), ord=2))
        assert abs(float(torch.linalg.matrix_norm(weight, ord=2)) - radius) < 1e-3 * radius

    def bad() -> Any:
        return {"x": inputs()["x"], "weight": torch.zeros(4, 6)}

    return Example(build=build, inputs=inputs, call=call, check=check, bad=bad)


def tangent(seed: int) -> Example:
    """A random momentum and the top singular vectors of random weights."""
    from dataclasses import replace

    import torch

    from icml_sso import SolverOptions, TangentLambda, TangentProblem

    def problem() -> Any:
        generator = torch.Generator().manual_seed(seed)
        m, w = torch.randn(2, 12, 40, generator=generator, dtype=torch.float64)
        left, _, right = torch.linalg.svd(w)
        return TangentProblem(m + 0.5 * w, left[:, 0], right[0])

    def check(result: Any) -> None:
        assert not result.failed
        assert result.calls <= 3

    return Example(
        build=lambda: TangentLambda(SolverOptions(msign_dtype=torch.float32)),
        inputs=problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=lambda result: replace(result, lam=result.lam + 0.5),
        bad=lambda: replace(problem(), m=torch.full((12, 40), float("nan"))),
    )


def msign(seed: int) -> Example:
    """A random matrix."""
    from dataclasses import replace

    import torch

    from icml_sso import MatrixSign

    def problem() -> Any:
        return torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(seed))

    def check(result: Any) -> None:
        gram = result.factor @ result.factor.mT
        assert float((gram - torch.eye(8)).abs().max()) < 1e-3

    return Example(
        build=lambda: MatrixSign(dtype=torch.float32),
        inputs=problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=lambda result: replace(result, factor=1.1 * result.factor),
        bad=lambda: torch.full((3, 4), float("inf")),
    )


def health(seed: int) -> Example:
    """A network of two layers."""
    import torch

    from icml_sso import Health

    def inputs() -> Any:
        generator = torch.Generator().manual_seed(seed)
        model = torch.nn.utils.skip_init(torch.nn.Linear, 6, 3)
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(generator=generator)
        return torch.nn.Sequential(model, torch.nn.ReLU()), torch.randn(5, 6, generator=generator)

    def call(evaluator: Any, given: Any) -> Any:
        model, batch = given
        return evaluator.evaluate(model, batch=batch)

    def check(figures: Any) -> None:
        assert figures["0: activation absmax"] >= figures["0: activation rms"] > 0

    return Example(build=Health, inputs=inputs, call=call, check=check, bad=lambda: (inputs()[0], None))
