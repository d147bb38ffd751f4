"""Claims on worlds that can be enumerated: the right distribution, the leak of flow matching, what λ
learns.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

WORLDS = ("brackets", "grid", "fragments")
# Steps of the three worlds; the molecules have the most states to learn.
STEPS = {"smoke": (3, 3, 3), "small": (600, 800, 1000), "full": (6000, 6000, 10_000)}
BATCH = {"smoke": 4, "small": 64, "full": 64}


def theorem(run: Run, seed: int) -> dict[str, float]:
    """Flows that satisfy every equation, by construction: valid flows of a random backward policy, and
    chemical ones that carry any further flow beyond the boundary.

    The ablation samples from the chemical flow instead.
    """
    from icml_leakgfn.tables import constructed_flows

    found = constructed_flows(seed, valid=run.ablation != "chemical-policy")
    return {"distance": found.distance, "loss": found.loss, "loss_of_others": found.loss_of_others}


def distributions(run: Run, seed: int) -> dict[str, float]:
    """LeakGFN and plain flow matching on three worlds, judged by exact dynamic programming.

    The ablation has one flow instead of two: it is plain flow matching.
    """
    from icml_leakgfn import trainings

    figures: dict[str, float] = {}
    for name, steps in zip(WORLDS, STEPS[run.scale], strict=True):
        world = trainings.small_world(name, horizon=8 if name == "brackets" else None)
        batch = BATCH[run.scale]
        plain = trainings.train(world, "fm", seed, steps=steps, batch=batch)
        apart, leak = trainings.distance(world, plain)
        figures[f"plain_{name}"], figures[f"plain_leak_{name}"] = apart, leak
        figures[f"leak_ratio_{name}"] = leak / world.exact.leak(world.cut_reward)
        figures[f"third_{name}"] = apart / 3
        if run.ablation == "one-flow":
            figures[f"distance_{name}"], figures[f"cut_{name}"] = apart, leak
            continue
        gfn = trainings.train(world, "leak", seed, steps=steps, batch=batch, walk=0.0)
        figures[f"distance_{name}"], figures[f"cut_{name}"] = trainings.distance(world, gfn)
    return figures


def reachability(run: Run, seed: int) -> dict[str, float]:
    """λ beside λ* on every edge, in worlds whose full space is longer than L_max: brackets 8 of 14, the grid
    10 of 21, molecules 3 of 4 blocks. Both flows are given uniform P_B, as λ* has.

    The ablations: the chemical flow is not anchored at finished objects (the paper's loss), which leaves its
    size free; or the backward policies are left free, so that λ is not determined where several ways lead to
    an object.
    """
    import numpy as np
    from scipy.stats import spearmanr

    from icml_leakgfn import trainings

    figures: dict[str, float] = {}
    smoke = run.scale == "smoke"
    lengths = {
        "brackets": (4, 6) if smoke else (8, 14),
        "grid": (3, None),
        "fragments": (2, 3) if smoke else (3, 4),
    }
    options: dict[str, Any] = dict(trainings.FOR_FRACTIONS)
    options["anchor"] = run.ablation != "free-chemical-flow"
    if run.ablation == "free-backward":
        options["uniform_backward"] = 0.0
    for name, steps in zip(WORLDS, STEPS[run.scale], strict=True):
        length, horizon = lengths[name]
        world = trainings.small_world(name, None if name == "grid" else length, horizon)
        options["eps"] = trainings.EPS_OF_LEAST * trainings.least_reward(world)
        gfn = trainings.train(world, "leak", seed, steps=steps, batch=BATCH[run.scale], **options)
        learnt, exact = trainings.learnt_fractions(world, gfn)
        figures[f"auroc_{name}"] = trainings.area_under_curve(learnt, exact > 0)
        figures[f"spearman_{name}"] = float(spearmanr(learnt, exact).statistic)
        figures[f"ceiling_{name}"] = trainings.spearman_ceiling(exact)
        figures[f"miscalibration_{name}"] = float(np.abs(learnt - exact).mean())
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    proof = suite.measure(seeds={"smoke": 1, "small": 5, "full": 20}, ablations=("chemical-policy",))(theorem)
    paper = "If all losses vanish, P_F ends in R(x)/Z on finished objects and nowhere else, for any F_chem."
    suite.claim(
        "vanishing-losses-give-the-target",
        of=proof,
        figure="distance",
        kind="every",
        at_most=1e-9,
        statement="Where every equation holds, the policy's exact distribution is R/Z on finished objects, "
        "whatever the chemical flow carries beyond the boundary.",
        paper=paper,
        unit="total variation",
        teeth="chemical-policy",
    )
    suite.claim(
        "the-loss-of-such-flows-is-0",
        of=proof,
        figure="loss",
        kind="every",
        at_most=1e-12,
        statement="The loss of such flows is 0.",
        paper=paper,
    )
    measure = suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("one-flow",))(distributions)
    worlds = {
        "brackets": "words of brackets up to 8 (22 finished, 56 cut off)",
        "grid": "the grid 8^3 with 30 % forbidden ends, cut at half of its longest walk",
        "fragments": "molecules of 8 fragments, 4 at most",
    }
    paper = "Theorem; its figures are qualitative."
    for name, words in worlds.items():
        suite.claim(
            f"right-distribution-{name}",
            of=measure,
            figure=f"distance_{name}",
            kind="mean",
            at_most=0.05,
            statement=f"The exact total variation to the target is below 0.05: {words}.",
            paper=paper,
            unit="total variation",
            teeth="one-flow" if name == "grid" else None,
        )
        suite.claim(
            f"a-third-of-flow-matching-{name}",
            of=measure,
            figure=f"distance_{name}",
            baseline=f"third_{name}",
            kind="mean",
            at_most=0.0,
            statement=f"It is below a third of plain flow matching's, of as many steps: {words}.",
            paper=paper,
            unit="total variation",
            teeth="one-flow",
        )
        suite.claim(
            f"no-leak-{name}",
            of=measure,
            figure=f"cut_{name}",
            kind="mean",
            at_most=0.005,
            statement=f"Less than 0.5 % of trajectories are cut off: {words}.",
            paper=paper,
            teeth="one-flow",
        )
        suite.claim(
            f"flow-matching-leaks-{name}",
            of=measure,
            figure=f"leak_ratio_{name}",
            kind="mean",
            between=(0.8, 1.2),
            statement=f"Plain flow matching is cut off as often as Z_cut / (Z_valid + Z_cut) says: {words}.",
            paper="Flow matching leaks; qualitative.",
            unit="× closed form",
        )
    learning = suite.measure(
        seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("free-chemical-flow", "free-backward")
    )(reachability)
    teeth = {"brackets": "free-chemical-flow", "grid": "free-backward", "fragments": "free-backward"}
    paper = "λ learns reachability without labels; a qualitative figure."
    for name in worlds:
        suite.claim(
            f"fraction-tells-reachable-{name}",
            of=learning,
            figure=f"auroc_{name}",
            kind="mean",
            at_least=0.95,
            statement="λ tells edges behind which something can be finished within the budget from the "
            "others.",
            paper=paper,
            unit="AUROC",
        )
        suite.claim(
            f"fraction-ranks-as-exact-{name}",
            of=learning,
            figure=f"spearman_{name}",
            kind="mean",
            at_least=0.8,
            statement="λ ranks edges as the exact F_valid / F_chem does.",
            paper=paper,
            unit="Spearman",
            teeth=teeth[name],
        )
        suite.claim(
            f"ceiling-of-ties-{name}",
            of=learning,
            figure=f"ceiling_{name}",
            kind="mean",
            statement="What Spearman's coefficient reaches at most for a ranking without ties, since λ* has "
            "many: 0 where nothing is in reach, 1 where everything is.",
            paper=paper,
            unit="Spearman",
        )
        suite.claim(
            f"fraction-is-calibrated-{name}",
            of=learning,
            figure=f"miscalibration_{name}",
            kind="mean",
            statement="Mean distance of λ to the exact F_valid / F_chem over all edges.",
            paper=paper,
        )
