"""Claims on molecules of 105 fragments: LeakGFN beside flow matching of equal budget, and two preferences."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

TASKS = {"qed": "qed", "sa": "sa", "similarity": "similarity:celecoxib"}
STEPS = {"smoke": 2, "small": 600, "full": 10_000}
DRAWN = {"smoke": 12, "small": 500, "full": 1000}
# Width, steps of message passing and trajectories a step; the paper's are 128 to 256, 8 and 8.
SIZES = {"smoke": (8, 1, 2), "small": (48, 3, 8), "full": (128, 8, 8)}


def _generator(run: Run, score, loss: str, seed: int, **options):  # type: ignore[no-untyped-def]
    from icml_leakgfn.molecules import MoleculeGenerator

    hidden, message_steps, _ = SIZES[run.scale]
    return MoleculeGenerator(
        score,
        max_blocks=8,
        loss=loss,
        hidden=hidden,
        message_steps=message_steps,
        seed=seed,
        device="cpu",
        on_error="floor",
        **options,
    )


def _explore(run: Run, loss: str) -> float:
    """1 where λ is to be left out."""
    return float(loss == "leak" and run.ablation == "chemical-policy")


def tasks(run: Run, seed: int) -> dict[str, float]:
    """The harmonic mean of mean score, diversity and uniqueness of the best hundred, for three scores.

    The ablation draws by the chemical flow: the share that ends within the limit is left out.
    """
    from icml_leakgfn.metrics import MoleculeMetrics
    from icml_leakgfn.rewards import Shaping

    figures: dict[str, float] = {}
    batch = SIZES[run.scale][2]
    for task, score in TASKS.items():
        shaping = Shaping(0.01, 0.3, 6.0) if task == "similarity" else None
        for loss in ("leak", "fm"):
            generator = _generator(run, score, loss, seed, shaping=shaping).fit(STEPS[run.scale], batch)
            drawn = generator.sample(DRAWN[run.scale], seed=seed, explore=_explore(run, loss))
            found = MoleculeMetrics().evaluate(drawn)
            figures[f"{loss}_{task}"] = float(found["harmonic_mean"] or 0.0)
            figures[f"{loss}_{task}_top"] = float(found["top_mean"] or 0.0)
            figures[f"{loss}_{task}_cut"] = float(found["cut"] or 0.0)
    return figures


def preferences(run: Run, seed: int) -> dict[str, float]:
    """The area that mean scores dominate under five preferences between QED and SA, for both losses; what is
    cut off scores 0.

    The ablation draws by the chemical flow.
    """
    import numpy as np
    import torch

    from icml_leakgfn.conditions import PreferenceReward, hypervolume
    from icml_leakgfn.fragments import FragmentEnv
    from icml_leakgfn.gfn import LeakGFN
    from icml_leakgfn.rewards import Shaping
    from icml_leakgfn.scores import qed, synthetic_accessibility

    hidden, message_steps, batch = SIZES[run.scale]
    env = FragmentEnv(max_blocks=6)
    figures = {}
    for loss in ("leak", "fm"):
        reward = PreferenceReward(
            [qed, synthetic_accessibility], shaping=Shaping(0.01, 0.8, 6.0), on_error="floor"
        )
        chosen = {"hidden": hidden, "message_steps": message_steps, "seed": seed, "device": "cpu"}
        gfn = LeakGFN(env, reward, loss=loss, **chosen).fit(STEPS[run.scale] // 2, batch)  # type: ignore[arg-type]
        points = []
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            weights = torch.tensor([share, 1 - share])
            drawn = gfn.sample(
                max(4, DRAWN[run.scale] // 5), seed=seed, condition=weights, explore=_explore(run, loss)
            )
            points.append(np.nan_to_num(drawn.score_raw, nan=0.0).mean(axis=0))
        figures[f"hypervolume_{loss}"] = hypervolume(np.array(points))
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("chemical-policy",))(tasks)
    paper = (
        "HM of three seeds: JNK3 .653 against .403 (FM), GSK3B .760 against .716, DRD2 .829 against "
        ".775, QED "
        ".926 against .926, SA .923 against .922."
    )
    for task in ("qed", "sa"):
        suite.claim(
            f"not-below-flow-matching-{task}",
            of=measure,
            figure=f"leak_{task}",
            baseline=f"fm_{task}",
            kind="mean",
            at_least=-0.005,
            statement=f"On {task.upper()} the harmonic mean is not below flow matching's by more than 0.005, "
            "at equal steps.",
            paper=paper,
            teeth="chemical-policy",
        )
    suite.claim(
        "above-flow-matching-on-similarity",
        of=measure,
        figure="leak_similarity",
        baseline="fm_similarity",
        kind="mean",
        at_least=0.0,
        statement="On similarity to a drug, a stand-in for activity, the harmonic mean is above flow "
        "matching's.",
        paper=paper,
        teeth="chemical-policy",
    )
    both = suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("chemical-policy",))(
        preferences
    )
    suite.claim(
        "two-preferences",
        of=both,
        figure="hypervolume_leak",
        baseline="hypervolume_fm",
        kind="mean",
        at_least=0.0,
        statement="Under preferences between QED and SA the dominated area is not below flow matching's.",
        paper="Improves multi-objective and pocket-conditioned generation, as a plug-in.",
        teeth="chemical-policy",
    )
