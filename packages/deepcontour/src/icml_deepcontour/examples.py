"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icml_core import Example


def eigs(seed: int) -> Example:
    """The six lowest modes of a plate of 144 points."""
    from icml_deepcontour.solvers import EigsSolver

    return _solver(seed, lambda: EigsSolver(random_state=seed), ("SA", 6))


def slices(seed: int) -> Example:
    """An interval of the same plate, by shifts."""
    from icml_deepcontour.solvers import SliceSolver

    return _solver(seed, lambda: SliceSolver(random_state=seed), ("range", 0.0, 3e4))


def cirr(seed: int) -> Example:
    """The same interval by contour moments."""
    from icml_deepcontour.solvers import CirrSolver

    return _solver(seed, lambda: CirrSolver(seed=seed), ("range", 0.0, 3e4))


def ssm(seed: int) -> Example:
    """The same interval by Hankel matrices."""
    from icml_deepcontour.solvers import SsmSolver

    return _solver(seed, lambda: SsmSolver(seed=seed), ("range", 0.0, 3e4))


def feast(seed: int) -> Example:
    """The same interval by FEAST."""
    from icml_deepcontour.solvers import FeastSolver

    return _solver(seed, lambda: FeastSolver(seed=seed), ("range", 0.0, 3e4))


def kde_contours(seed: int) -> Example:
    """Three groups of predictions become three contours."""
    from dataclasses import replace

    import numpy as np

    from icml_deepcontour.solvers import ContourPlanner

    def inputs() -> Any:
        rng = np.random.default_rng(seed)
        return np.sort(np.concatenate([c + rng.uniform(size=8) for c in (0.0, 10.0, 20.0)]))

    def check(plan: Any) -> None:
        assert [c.expected for c in plan.contours] == [8, 8, 8]

    return Example(
        build=lambda: ContourPlanner(max_per=10),
        inputs=inputs,
        call=lambda planner, given: planner.solve(given),
        check=check,
        corrupt=lambda plan: replace(plan, contours=plan.contours[:-1]),
        bad=lambda: np.array([1.0, np.nan]),
    )


def certify(seed: int) -> Example:
    """A diagonal matrix whose eigenvalues are known; one is left out, and reported."""
    import numpy as np
    import scipy.sparse as sp

    from icml_deepcontour.solvers import CountEvaluator, EigenProblem

    def check(figures: Any) -> None:
        assert figures["count"] == 10
        assert figures["exact"] == 1
        assert figures["missed"] == 1

    return Example(
        build=lambda: CountEvaluator(0.5, 10.5),
        inputs=lambda: EigenProblem(sp.diags_array(np.arange(1.0, 31.0))),
        call=lambda evaluator, given: evaluator.evaluate(given, np.arange(2.0, 11.0)),
        check=check,
        bad=lambda: EigenProblem(sp.csr_array([[0.0, 1.0], [2.0, 0.0]])),
    )


def eno(seed: int) -> Example:
    """Two channels of 8 x 8 points, five eigenvalues."""
    import torch

    from icml_deepcontour.eno import ENO

    def inputs() -> Any:
        return torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(seed))

    def check(values: Any) -> None:
        assert values.shape == (3, 5)
        assert bool((values.diff(dim=1) > 0).all())

    return Example(
        build=lambda: ENO(2, 5, width=6, modes=3, layers=2, seed=seed),
        inputs=inputs,
        call=lambda module, given: module(given),
        check=check,
        bad=lambda: inputs()[:, :1],
    )


def fit(seed: int) -> Example:
    """Eigenvalues that scale with the field; stopped half-way and resumed it is the same training."""
    import numpy as np

    from icml_deepcontour.training import EnoTraining, FitOptions

    def build() -> EnoTraining:
        rng = np.random.default_rng(seed)
        scale = rng.uniform(1.0, 2.0, size=24)
        fields = np.ones((24, 1, 6, 6)) * scale[:, None, None, None]
        options = FitOptions(width=6, modes=2, layers=1, epochs=8, batch=8, lr=5e-3)
        return EnoTraining(fields, scale[:, None] * np.arange(1.0, 5.0), options, seed=seed)

    def resumed(training: EnoTraining, inputs: None, directory: Path) -> list[dict[str, float]]:
        file = directory / "half.safetensors"
        training.fit(until=4, checkpoint=file)
        return build().fit(checkpoint=file, resume=True)

    def check(rows: list[dict[str, float]]) -> None:
        assert len(rows) == 8
        assert rows[-1]["loss"] < rows[0]["loss"]

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda training, inputs: training.fit(),
        check=check,
        resumed=resumed,
    )


def _solver(seed: int, build: Any, which: tuple[Any, ...]) -> Example:
    from dataclasses import replace

    import numpy as np

    from icml_deepcontour.datasets import plate
    from icml_deepcontour.solvers import EigenProblem

    def problem() -> EigenProblem:
        found = plate(12, seed, size=4)
        return EigenProblem(found.A, found.B, which)

    def check(solution: Any) -> None:
        import scipy.linalg

        given = problem()
        exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
        exact = exact[:6] if which[0] == "SA" else exact[(exact >= which[1]) & (exact < which[2])]
        assert len(exact) >= 3
        np.testing.assert_allclose(solution.values, exact, rtol=1e-8)

    return Example(
        build=build,
        inputs=problem,
        call=lambda solver, given: replace(solver.solve(given), stats=None),
        check=check,
        corrupt=lambda s: replace(s, values=s.values[1:], vectors=s.vectors[:, 1:]),
        bad=lambda: replace(problem(), which=("range", 2.0, 1.0)),
    )
