"""Claims on time: the second head beside plain flow matching, batches beside one at a time, the exact
solver.
"""

from __future__ import annotations

from icml_core import ClaimSuite, Run


def cost(run: Run, seed: int) -> dict[str, float]:
    """Seconds of a training step, of trajectories in batches and one at a time, and of the exact solver.

    The ablation has a network of its own for λ instead of a head.
    """
    from icml_leakgfn.timings import solver_seconds, step_seconds, trajectory_rates

    quick = run.scale == "smoke"
    leak, plain = step_seconds(seed, 2 if quick else 40, two_networks=run.ablation == "two-networks")
    batched, alone = trajectory_rates(seed, 2 if quick else 24)
    seconds, states = solver_seconds(3 if quick else 5)
    return {
        "step_leak": leak,
        "step_plain": plain,
        "batched": batched,
        "alone": alone,
        "solver_microseconds": seconds / states * 1e6,
    }


def memory(run: Run, seed: int) -> dict[str, float]:
    """Bytes that the exact solver adds for each state, in a process of its own; at the full scale for over
    a million states.
    """
    from icml_leakgfn.timings import solver_memory

    blocks = {"smoke": 3, "small": 5, "full": 6}[run.scale]
    seconds, states, added, peak = solver_memory(blocks)
    return {"bytes": added / states, "peak": float(peak), "states": float(states), "seconds": seconds}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measure and claims of this module."""
    measure = suite.measure(
        seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("two-networks",), exclusive=True
    )(cost)
    suite.claim(
        "the-head-is-cheap",
        of=measure,
        figure="step_leak",
        baseline="step_plain",
        kind="ratio",
        at_most=1.3,
        statement="A step with the second head takes at most 1.3 times that of plain flow matching.",
        paper="Plug and play; no figure.",
        teeth="two-networks",
    )
    suite.claim(
        "batches-beside-one-at-a-time",
        of=measure,
        figure="batched",
        baseline="alone",
        kind="ratio",
        at_least=10.0,
        statement="Trajectories a second, 256 at a time, are at least ten times those of a loop over batches "
        "of one, with the same network.",
        paper="The official code runs threads of batches of one.",
    )
    suite.claim(
        "a-million-states-a-minute",
        of=measure,
        figure="solver_microseconds",
        kind="every",
        at_most=60.0,
        statement="The exact solver takes less than 60 microseconds a state of a fragment world, enumeration "
        "included.",
        paper="Ours: 10^6 states in a minute.",
        unit="µs",
    )
    held = suite.measure(seeds={"smoke": 1, "small": 1, "full": 1}, exclusive=True)(memory)
    suite.claim(
        "a-million-states-in-two-gigabytes",
        of=held,
        figure="bytes",
        kind="every",
        at_most=2000.0,
        statement="The exact solver adds less than 2,000 bytes a state of a fragment world.",
        paper="Ours: 10^6 states in two gigabytes.",
        unit="bytes",
    )
