"""`eigs` beside SciPy, PRIMME and SLEPc: time and memory over size, on plates and a graph.

python packages/deepcontour/benchmarks/eigensolvers.py [--quick] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.sparse as sp
from icml_core.run import provenance, public, write_json
from icml_deepcontour import eigs
from icml_deepcontour.datasets import graph_laplacian, plate
from scipy.sparse.linalg import eigsh, lobpcg, splu

CASES = {
    "plate, 4900 rows, k = 80": (lambda: plate(70, 0), 80),
    "plate, 10000 rows, k = 60": (lambda: plate(100, 0), 60),
    "plate, 22500 rows, k = 60": (lambda: plate(150, 0), 60),
    "plate, 50176 rows, k = 60": (lambda: plate(224, 0), 60),
    "graph, 10000 points, k = 10": (lambda: graph_laplacian(10_000, 0), 10),
}
QUICK = {
    "plate, 900 rows, k = 20": (lambda: plate(30, 0), 20),
    "graph, 900 points, k = 6": (lambda: graph_laplacian(900, 0), 6),
}
LARGEST_LOBPCG = 12_000


def works(case: str, cases: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Ours first; each gives the k smallest eigenvalues."""
    make, k = cases[case]
    given = make()
    A, B = sp.csc_matrix(given.A), None if given.B is None else sp.csc_matrix(given.B)
    exact = eigs(A, B, ("SA", k))[0]
    rng = np.random.default_rng(0)
    scale = np.maximum(exact, 1e-6 * exact[-1])
    close = np.sort(exact + 1e-2 * scale * rng.standard_normal(k))
    shift = -1e-3 * float(exact[-1])
    middle = float(exact[k // 2] + exact[k // 2 - 1]) / 2
    found: dict[str, Callable[[], Any]] = {
        "ours, predictions off by 1 %": lambda: eigs(A, B, ("SA", k), predictor=close, backend="slice")[0],
        "ours, cold": lambda: eigs(A, B, ("SA", k), backend="slice")[0],
        "ours, garbage": lambda: eigs(A, B, ("SA", k), predictor=close[::-1] ** 2 + 1, backend="slice")[0],
        "ours, four workers": lambda: eigs(A, B, ("SA", k), predictor=close, backend="slice", workers=4)[0],
        "scipy eigsh below the spectrum": lambda: eigsh(A, k, B, sigma=shift, tol=1e-8)[0],
        "scipy eigsh in the middle": lambda: np.sort(eigsh(A, k, B, sigma=middle, tol=1e-8)[0]),
    }
    if A.shape[0] <= LARGEST_LOBPCG:
        found["scipy lobpcg"] = lambda: _lobpcg(A, B, k, shift)
    if importlib.util.find_spec("primme") is not None:
        import primme

        lu = splu(A if B is None else A - shift * B)
        inverse = sp.linalg.LinearOperator(
            A.shape, matvec=lu.solve, matmat=lambda x: lu.solve(np.ascontiguousarray(x))
        )
        found["primme with the same factors"] = lambda: np.sort(
            primme.eigsh(A, k, M=B, which="SA", OPinv=inverse, tol=1e-8)[0]
        )
    if importlib.util.find_spec("slepc4py") is not None:
        found["slepc4py Krylov-Schur"] = lambda: _slepc(A, B, k, shift)
    return found


def _lobpcg(A: Any, B: Any, k: int, shift: float) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(A.shape[0], k))
    if importlib.util.find_spec("pyamg") is not None:
        import pyamg

        M = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)).aspreconditioner()
    else:
        lu = splu(sp.csc_matrix(A - shift * (B if B is not None else sp.eye(A.shape[0]))))
        M = sp.linalg.LinearOperator(A.shape, matvec=lu.solve, matmat=lu.solve)
    return np.sort(lobpcg(A, X, B, M, largest=False, tol=1e-5, maxiter=200)[0])


def _slepc(A: Any, B: Any, k: int, shift: float) -> np.ndarray:
    from petsc4py import PETSc
    from slepc4py import SLEPc

    def matrix(m: Any) -> Any:
        csr = sp.csr_matrix(m)
        return PETSc.Mat().createAIJ(csr.shape, csr=(csr.indptr, csr.indices, csr.data))

    solver = SLEPc.EPS().create()
    solver.setOperators(matrix(A), None if B is None else matrix(B))
    solver.setProblemType(SLEPc.EPS.ProblemType.HEP if B is None else SLEPc.EPS.ProblemType.GHEP)
    solver.setDimensions(k)
    solver.setTarget(shift)
    solver.setWhichEigenpairs(SLEPc.EPS.Which.TARGET_MAGNITUDE)
    solver.getST().setType(SLEPc.ST.Type.SINVERT)
    solver.solve()
    return np.sort([solver.getEigenvalue(i).real for i in range(k)])


def peak(case: str, name: str, quick: bool) -> int | None:
    """Resident memory that one call adds, in a process of its own."""
    command = [sys.executable, __file__, *(["--quick"] if quick else []), "--memory-of", case, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def memory(call: Callable[[], Any]) -> int:
    """Peak of resident memory less what there was before."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))

    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, nothing written")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = QUICK if options.quick else CASES
    if options.memory_of:
        print(memory(works(options.memory_of[0], cases)[options.memory_of[1]]))
        return
    rows: list[dict[str, Any]] = []
    for case in cases:
        seconds, errors, reference = {}, {}, None
        calls = works(case, cases)
        for name, call in calls.items():
            taken = []
            for _ in range(options.repeats):
                begin = time.perf_counter()
                values = call()
                taken.append(time.perf_counter() - begin)
            reference = values if reference is None else reference
            errors[name] = float(np.abs(values - reference).max() / abs(reference).max())
            seconds[name] = min(taken)
        ours, *peers = calls
        print(f"\n{case}")
        figures = {}
        for name in calls:
            figures[name] = {"seconds": seconds[name], "peak_bytes": peak(case, name, options.quick)}
            figures[name]["difference"] = errors[name]
            size = figures[name]["peak_bytes"]
            print(
                f"  {name:34} {seconds[name]:8.3f} s  {'' if size is None else f'{size / 2**20:8.1f} MiB'}"
                f"  x{seconds[name] / seconds[ours]:5.2f}  differs {errors[name]:.0e}",
                flush=True,
            )
        beside = {name: {"version": _version(name), **figures[name]} for name in peers}
        ratios = {name: seconds[name] / seconds[ours] for name in peers}
        rows.append({"case": case, "ours": figures[ours], "peers": beside, "ratios": ratios})
        if not options.quick:
            environment = {**public(provenance()), "threads": os.environ["OMP_NUM_THREADS"]}
            options.out.mkdir(parents=True, exist_ok=True)
            document = {"benchmark": "eigensolvers", "environment": environment, "rows": rows}
            write_json(options.out / "eigensolvers.json", document)


def _version(name: str) -> str:
    return "this distribution" if name.startswith("ours") else version(name.split()[0])


if __name__ == "__main__":
    main()
