"""Claims on L_max: the worst distance over several lengths, LeakGFN beside three losses, and one network
for all lengths.
"""

from __future__ import annotations

from icml_core import ClaimSuite, Run

LENGTHS = {"smoke": (6,), "small": (6, 8, 10, 12), "full": (6, 8, 10, 12)}
RANGE = {"smoke": (4, 6), "small": (6, 12), "full": (6, 12)}
STEPS = {"smoke": 2, "small": 300, "full": 4000}
LOSSES = ("leak", "fm", "tb", "db")
WORLDS = ("brackets", "chains")


def cut_lengths(run: Run, seed: int) -> dict[str, float]:
    """The worst total variation over lengths and two worlds for each loss.

    The ablation draws by the chemical flow: the share that ends within the limit is left out.
    """
    from icml_leakgfn import trainings

    worst = dict.fromkeys(LOSSES, 0.0)
    by_length: dict[str, float] = {}
    for name in WORLDS:
        for length in LENGTHS[run.scale]:
            world = trainings.small_world(name, length, horizon=length)
            for loss in LOSSES:
                gfn = trainings.train(world, loss, seed, steps=STEPS[run.scale])
                drawn_by = gfn
                if loss == "leak" and run.ablation == "chemical-policy":
                    drawn_by = trainings.ChemicalPolicy(gfn)
                apart, _ = trainings.distance(world, drawn_by)
                worst[loss] = max(worst[loss], apart)
                by_length[f"{loss}_{name}_{length}"] = apart
    return {f"worst_{name}": value for name, value in worst.items()} | by_length


def one_network(run: Run, seed: int) -> dict[str, float]:
    """The worst total variation and leak of one network over all lengths, with twice the steps of one length.

    The ablation does not tell the network what remains of the budget.
    """
    from icml_leakgfn import trainings

    low, high = RANGE[run.scale]
    figures: dict[str, float] = {"worst": 0.0, "worst_cut": 0.0}
    for name in WORLDS:
        world = trainings.small_world(name, high, horizon=high)
        gfn = trainings.train(
            world,
            "leak",
            seed,
            steps=2 * STEPS[run.scale],
            budgets=(low, high),
            hindsight=2,
            alpha=1.0,
            budget_aware=run.ablation != "untold-budget",
        )
        for length in LENGTHS[run.scale]:
            apart, cut = trainings.distance(world, gfn, length)
            figures["worst"] = max(figures["worst"], apart)
            figures["worst_cut"] = max(figures["worst_cut"], cut)
            figures[f"{name}_{length}"] = apart
    return figures


def exact_tables(run: Run, seed: int) -> dict[str, float]:
    """The loss of exact tables by state and budget, on any ways and budgets: a miss of one network is one
    of training, not of its equations.

    The ablation tells the tables a budget that is larger by one.
    """
    import math

    from icml_leakgfn import trainings
    from icml_leakgfn.tables import exact_tables, loss_of_tables

    low, high = RANGE["smoke"] if run.scale == "smoke" else (6, 10)
    losses = []
    for name in WORLDS:
        world = trainings.small_world(name, high, horizon=high)
        budgets = range(low, high + 1)
        table = exact_tables(world.env, world.reward, budgets)
        log_eps = math.log(0.1 * trainings.least_reward(world))
        shift = int(run.ablation == "mistaken-budget")
        losses.append(loss_of_tables(table, world.reward, budgets, seed=seed, log_eps=log_eps, shift=shift))
    return {"loss": max(losses)}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("chemical-policy",))(
        cut_lengths
    )
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
            teeth="chemical-policy",
        )
    paper = "The paper trains anew for each; the bound is ours."
    one = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("untold-budget",))(one_network)
    suite.claim(
        "one-network-for-all-lengths",
        of=one,
        figure="worst",
        kind="mean",
        at_most=0.1,
        statement="One network that is told what remains of the budget serves L_max 6 to 12, with twice the "
        "steps of one length.",
        paper=paper,
        unit="total variation",
        teeth="untold-budget",
    )
    tables = suite.measure(seeds={"smoke": 1, "small": 3, "full": 10}, ablations=("mistaken-budget",))(
        exact_tables
    )
    suite.claim(
        "exact-tables-by-budget-have-no-loss",
        of=tables,
        figure="loss",
        kind="every",
        at_most=1e-20,
        statement="Exact flows under every budget satisfy the loss of mixed budgets, hindsight and walks.",
        paper=paper,
        teeth="mistaken-budget",
    )
