"""Claims on L_max: the worst distance over several lengths, LeakGFN beside three other losses."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

LENGTHS = {"smoke": (6,), "small": (6, 8, 10, 12), "full": (6, 8, 10, 12)}
STEPS = {"smoke": 2, "small": 300, "full": 4000}
OTHERS = ("fm", "tb", "db")


def cut_lengths(run: Run, seed: int) -> dict[str, float]:
    """The worst total variation over lengths and two worlds for each loss; and of one network for all
    lengths."""
    from icml_leakgfn import trainings

    steps = STEPS[run.scale]
    worst = dict.fromkeys(("leak", "one_network", *OTHERS), 0.0)
    by_length: dict[str, float] = {}
    lengths = LENGTHS[run.scale]
    for name in ("brackets", "chains"):
        for length in lengths:
            world = trainings.small_world(name, length, horizon=length)
            for loss in ("leak", *OTHERS):
                apart, _ = trainings.distance(world, trainings.train(world, loss, seed, steps=steps))
                worst[loss] = max(worst[loss], apart)
                by_length[f"{loss}_{name}_{length}"] = apart
        longest = trainings.small_world(name, lengths[-1], horizon=lengths[-1])
        one = trainings.train(longest, "leak", seed, steps=2 * steps, budgets=(lengths[0], lengths[-1]))
        for length in lengths:
            apart, _ = trainings.distance(longest, one, length)
            worst["one_network"] = max(worst["one_network"], apart)
    return {f"worst_{name}": value for name, value in worst.items()} | by_length


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measure and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5})(cut_lengths)
    paper = (
        "HM on DRD2 at L_max 6, 8, 10, 12: LeakGFN .865, .797, .517, .435; TB .906, .933, .132, .106; "
        "DB .926, .934, .136, .096. (TB and DB are better at 6 and 8 there.)"
    )
    for loss, words in (("fm", "flow matching"), ("tb", "trajectory balance"), ("db", "detailed balance")):
        suite.claim(
            f"robust-to-length-beside-{loss}",
            of=measure,
            figure="worst_leak",
            baseline=f"worst_{loss}",
            kind="mean",
            at_most=0.0,
            statement=f"Over L_max 6 to 12 in two worlds the worst distance is below {words}'s.",
            paper=paper,
            unit="total variation",
        )
    suite.claim(
        "one-network-for-all-lengths",
        of=measure,
        figure="worst_one_network",
        kind="mean",
        at_most=0.1,
        statement="One network that is told what remains of the budget serves L_max 6 to 12, with twice the "
        "steps of one length.",
        paper="The paper trains anew for each; the bound is ours.",
        unit="total variation",
    )
