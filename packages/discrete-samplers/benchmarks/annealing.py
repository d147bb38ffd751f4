"""Simulated annealing of a QUBO: ours beside dwave-samplers, the same sweeps and number of reads.

    python benchmarks/annealing.py [--quick] [--threads 1] [--clock wall|cpu]

The mean energy of the reads stands beside the seconds: speed alone says nothing.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

import dimod
import numpy as np
from icml_discrete_samplers import QUBO, mcmc
from measuring import Report, arguments, seconds

SWEEPS, READS = 200, 64


def main() -> None:
    """Run all cases."""
    given = arguments(__doc__ or "")
    report = Report("annealing", given)
    for D in (50,) if given.quick else (50, 200, 1000):
        rng = np.random.default_rng(D)
        Q = np.triu(rng.normal(size=(D, D)) * (rng.random((D, D)) < min(1.0, 20 / D)))
        problem = QUBO(Q, beta=10.0)
        # From a tenth of the coldest inverse temperature, evenly, as many levels as sweeps.
        betas = np.linspace(0.01, 1.0, SWEEPS)

        def ours(p: QUBO = problem, D: int = D, b: np.ndarray = betas) -> mcmc.Chains:
            return mcmc.run(p, READS, "single_site_mh", len(b) * D, D, betas=b, diagnose=False)

        own = -float(ours().log_density.mean()) / problem.beta
        peers: dict[str, tuple[str, float]] = {}
        more = {"mean_energy": own}
        if importlib.util.find_spec("dwave") is not None:
            from dwave.samplers import SimulatedAnnealingSampler

            bqm = dimod.BinaryQuadraticModel(Q, "BINARY")

            def theirs(model: object = bqm) -> object:
                return SimulatedAnnealingSampler().sample(
                    model,
                    num_reads=READS,
                    num_sweeps=SWEEPS,
                    beta_range=(0.1, 10.0),
                    seed=1,
                    beta_schedule_type="linear",
                )

            more["dwave_mean_energy"] = float(theirs().record.energy.mean())  # type: ignore[attr-defined]
            peers["dwave-samplers"] = (version("dwave-samplers"), seconds(theirs, given))
        else:
            print("dwave-samplers is not installed; its column is left out")
        report.add(f"{D} variables, {SWEEPS} sweeps, {READS} reads", seconds(ours, given), peers, **more)


if __name__ == "__main__":
    main()
