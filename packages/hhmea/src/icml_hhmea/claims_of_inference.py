"""Claims about the amortised posterior: its predictions, and its calibration."""

from __future__ import annotations

from icml_core import ClaimSuite, Run


def amortised(run: Run, seed: int) -> dict[str, float | list[float]]:
    """A flow trained on simulations of one array; two hidden neurons by it, refined too; simulation-based
    calibration."""
    from icml_hhmea.claim_tasks import score_amortised

    return score_amortised(run, seed)


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    found = suite.measure(seeds={"smoke": 1, "small": 3, "full": 10}, ablations=("no-conditioning",))(
        amortised
    )
    for figure, what in (("npe", "draws of the flow"), ("refined", "draws that gradients have refined")):
        suite.claim(
            f"{figure}-accuracy",
            of=found,
            figure=figure,
            kind="mean",
            at_least=0.85,
            statement=f"Unseen triplets are predicted by {what} with an accuracy of 85 % or more.",
            paper="SBI 0.878 on 37 cells.",
        )
    suite.claim(
        "ranks-are-uniform",
        of=found,
        figure="p",
        kind="every",
        at_least=0.005,
        statement="Ranks of true parameters among draws are uniform: chi-square p above 0.005 for each.",
        paper="Simulation-based inference.",
    )
    suite.claim(
        "intervals-cover",
        of=found,
        figure="coverage",
        kind="every",
        between=(0.84, 0.96),
        statement="Central 90 % intervals cover 84 to 96 % of true parameters.",
        paper="Simulation-based inference.",
    )
    suite.claim(
        "features-inform",
        of=found,
        figure="gain",
        kind="mean",
        at_least=1.0,
        statement="Held-out parameters are likelier under the posterior than under a flow whose features "
        "were dealt to other neurons, by a nat or more.",
        paper="Simulation-based inference.",
        teeth="no-conditioning",
        unit="nats",
    )
