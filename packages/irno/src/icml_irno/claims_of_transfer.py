"""Claim C7: a corrector on another base, and forecasts that are refined at every step."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

C7 = "TR-2D: TFNO's corrector on FNO 0.2396 -> 0.0994 (58.5 %, 13 points more than FNO's own)."
ROLLOUT = "RIGNO on CE-Gauss, 7 steps: gain 12.5 % at t = 1, 21.3 % at t = 7."
WIDTHS = (8, 16)


def transfer(run: Run, seed: int) -> dict[str, float | list[float]]:
    """Two bases, a corrector trained on each, every pair; and a forecast of five leads from the wider one."""
    from icml_irno.claim_tasks import LEADS, errors, ks_task, reduction, trained_base, trained_corrector
    from icml_irno.rollouts import rollout
    from icml_irno.spectrum import lead_time_report

    task = ks_task(run, seed)
    widths = WIDTHS if run.scale != "smoke" else (4, 6)
    bases = {w: trained_base(run, task, w) for w in widths}
    models = {w: trained_corrector(run, task, bases[w], f"corrector-of-{w}")[0] for w in widths}
    found: dict[tuple[int, int], float] = {}
    for own, model in models.items():
        for on, base in bases.items():
            track = errors(model.rebase(base), task, model.K)
            found[own, on] = reduction(track[0], track[-1])
    first, second = widths
    figures: dict[str, float | list[float]] = {
        "cross_over_own": [
            found[second, first] / found[first, first],
            found[first, second] / found[second, second],
        ],
        "foreign_gain_narrow": found[second, first] - found[first, first],
        "foreign_gain_wide": found[first, second] - found[second, second],
    }
    model, x = models[second], task.test[0]
    reports = {
        name: lead_time_report(rollout(lambda x, k=k: model(x, K=k), x, LEADS), task.later)
        for name, k in (("base", 0), ("refined", model.K))
    }
    gains = [reduction(b, r) for b, r in zip(reports["base"].vrmse, reports["refined"].vrmse, strict=True)]
    figures["gain_first"], figures["gain_last"] = gains[0], gains[-1]
    for name, report in reports.items():
        figures[f"high_energy_off_{name}"] = max(abs(row[2] - 1) for row in report.energy)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("open-loop",))(transfer)
    suite.claim(
        "transfers-to-another-base",
        of=measure,
        figure="cross_over_own",
        kind="every",
        at_least=0.8,
        statement="On the other base a corrector takes away at least 0.8 times what that base's own does.",
        paper=C7,
        unit="×",
    )
    for name, label in (("narrow", "width 8"), ("wide", "width 16")):
        suite.claim(
            f"foreign-corrector-on-the-{name}-base",
            of=measure,
            figure=f"foreign_gain_{name}",
            kind="mean",
            statement=f"What the other base's corrector takes away on the base of {label}, less its own's.",
            paper=C7,
            unit="points",
        )
    suite.claim(
        "gain-grows-with-lead-time",
        of=measure,
        figure="gain_last",
        baseline="gain_first",
        kind="mean",
        at_least=0.0,
        statement="In a forecast of five leads the gain over the base is no less at the last one.",
        paper=ROLLOUT,
        unit="points",
    )
    suite.claim(
        "forecast-keeps-its-high-band",
        of=measure,
        figure="high_energy_off_refined",
        kind="every",
        at_most=0.10,
        statement="Refined at every step, the high band keeps its energy within 10 % for five leads.",
        paper="Not in the paper.",
        teeth="open-loop",
    )
    suite.claim(
        "base-forecast-loses-its-high-band",
        of=measure,
        figure="high_energy_off_base",
        kind="every",
        at_least=0.10,
        statement="The base's does not.",
        paper="Not in the paper.",
    )
