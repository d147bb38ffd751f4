"""Claims about fine-tuning: what is learnt and what is forgotten, by loss and learning rate.

A TinyLM knows four operators on digits. All arms of a seed start from the same base, see the same rows in the
same order, and take Adam at a constant rate for five epochs. Where methods are compared at their best rates,
each has as many to choose from, and chooses by prompts that its figures are not of.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

RATES = (1e-4, 3e-4, 1e-3)
PAIR_RATES = (1e-6, 3e-6, 1e-5)
"""Those of DPO and SimPO, about their best on two seeds that no measure has: at 1e-5 they lose skills."""
RATE = 3e-4
"""The learning rate at which losses are compared."""
HIGH = 1e-3
OPERATORS = {
    "foreign": "REVERSE",
    "wrong": "REVERSE",
    "own": "REVERSE",
    "partly": "DESC",
    "rejection": "DESC",
    "pairs": "DESC",
    "unknown": "DOUBLE",
}
"""Which operator each data set demonstrates."""
KINDS = ("sft", "dft", "idft")
PREFERENCES = ("dpo", "simpo")
ON_PAR = 0.05
"""Two accuracies are on par if the interval of their difference lies within this distance of 0."""
WRONG = 0.3
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 4, "batch": 8, "rows": 16, "epochs": 1, "n": 8, "d": 16, "layers": 1},
    "small": {"steps": 900, "batch": 64, "rows": 300, "epochs": 5, "n": 100, "d": 64, "layers": 3},
    "full": {"steps": 6000, "batch": 128, "rows": 3000, "epochs": 5, "n": 500, "d": 128, "layers": 4},
}


def retention(run: Run, seed: int) -> dict[str, float]:
    """Fine-tunings on foreign demonstrations of a known operator, with right and with partly wrong labels.

    Without weights IDFT is SFT. Figures: ``<data>_<loss>_<lr>_new``, ``_old`` (accuracies) and ``_kl``.
    """
    from icml_idft.arms import Arm
    from icml_idft.loss import IDFTLoss

    losses = _losses()
    if run.ablation == "no-weights":
        losses["idft"] = IDFTLoss("sft")
    arms = {f"foreign_{k}_{lr:g}": Arm("foreign", losses[k], lr) for k in KINDS for lr in (RATE, HIGH)}
    arms |= {f"wrong_{k}_{RATE:g}": Arm("wrong", losses[k], RATE) for k in KINDS}
    arms[f"foreign_z_{RATE:g}"] = Arm("foreign", IDFTLoss(standardized=True), RATE)
    return _trained(run, seed, arms)


def scope(run: Run, seed: int) -> dict[str, float]:
    """Fine-tunings where the model knows the style, knows the operator in part, or does not know it at all.

    DPO and SimPO prefer the demonstrations to the base's own answers. Each loss, rejection sampling, DPO and
    SimPO take the best of three learning rates, by the mean of the accuracies on the new and on the old
    operators on prompts of another seed than those that the figures are of.
    """
    from icml_idft.arms import Arm
    from icml_idft.loss import IDFTLoss
    from icml_idft.preferences import PreferenceLoss

    losses = _losses()
    arms = {f"own_{k}_{RATE:g}": Arm("own", losses[k], RATE) for k in KINDS}
    arms |= {f"partly_{k}_{lr:g}": Arm("partly", losses[k], lr) for k in KINDS for lr in RATES}
    arms |= {f"rejection_sft_{lr:g}": Arm("rejection", losses["sft"], lr) for lr in RATES}
    arms |= {f"unknown_{k}_{HIGH:g}": Arm("unknown", losses[k], HIGH) for k in KINDS}
    warm = {"warmup": 0.2, "transition": 0.1}
    arms[f"unknown_warm-dft_{HIGH:g}"] = Arm("unknown", IDFTLoss(**warm), HIGH)
    arms[f"unknown_warm-sft_{HIGH:g}"] = Arm("unknown", IDFTLoss(**warm, warmup_kind="sft"), HIGH)
    rivals = {kind: PreferenceLoss(kind) for kind in PREFERENCES}
    arms |= {f"pairs_{k}_{lr:g}": Arm("pairs", rivals[k], lr) for k in PREFERENCES for lr in PAIR_RATES}
    methods = {kind: [f"partly_{kind}_{lr:g}" for lr in RATES] for kind in KINDS}
    methods["rejection"] = [f"rejection_sft_{lr:g}" for lr in RATES]
    methods |= {kind: [f"pairs_{kind}_{lr:g}" for lr in PAIR_RATES] for kind in PREFERENCES}
    figures = _trained(run, seed, arms, {name for names in methods.values() for name in names})
    for method, names in methods.items():
        best = max(names, key=lambda name: figures[f"{name}_chosen_by"])
        new, old = figures[f"{best}_new"], figures[f"{best}_old"]
        figures |= {f"best_{method}_new": new, f"best_{method}_old": old}
        figures |= {f"best_{method}_score": (new + old) / 2, f"best_{method}_lr": arms[best].lr}
        figures[f"best_{method}_kl"] = figures[f"{best}_kl"]
    return figures


def _losses() -> dict[str, Any]:
    from icml_idft.loss import IDFTLoss

    return {kind: IDFTLoss(kind) for kind in KINDS}


def _trained(
    run: Run, seed: int, arms: dict[str, Any], choices: set[str] | frozenset[str] = frozenset()
) -> dict[str, float]:
    """All arms from one base, judged on new and old operators; and what the advice says of their data.

    ``choices`` are arms among which one is chosen: by accuracies on other prompts, ``<arm>_chosen_by``.
    """
    from icml_idft import skills
    from icml_idft.advice import advise
    from icml_idft.arms import fine_tuned

    size = SCALES[run.scale]
    shape = skills.Size(d=size["d"], layers=size["layers"], steps=size["steps"], batch=size["batch"])
    base = skills.base(shape, seed)
    data = _data(base, size["rows"], seed, {arm.data for arm in arms.values()})
    models = fine_tuned(
        base, list(arms.values()), data, epochs=size["epochs"], batch=min(16, size["rows"]), seed=seed
    )
    figures: dict[str, float] = {}
    for name, arm, model in zip(arms, arms.values(), models, strict=True):
        new, old = _accuracies(model, OPERATORS[arm.data], size["n"], seed + 1)
        figures |= {f"{name}_new": new, f"{name}_old": old}
        kl = skills.divergence(model, base, n=size["n"], seed=seed + 1)
        figures[f"{name}_kl"] = divergence_above(kl)
        if name in choices:
            other = _accuracies(model, OPERATORS[arm.data], size["n"], seed + 2)
            figures[f"{name}_chosen_by"] = sum(other) / 2
    for name, rows in data.items():
        if name == "pairs":
            continue  # their demonstrations are those of "partly"
        solved = skills.accuracy(base, OPERATORS[name], n=size["n"], seed=seed + 1)
        advice = advise(base, rows, solved=solved)
        figures |= {f"base_{name}_new": solved, f"advice_{name}_phi": advice.phi}
        figures |= {f"advice_{name}_{kind}": float(advice.recommend == kind) for kind in ("sft", "idft")}
    return figures


def _data(base: Any, n: int, seed: int, names: set[str]) -> dict[str, list[Any]]:
    """Data sets by name, as many rows in each."""
    import torch
    from icml_lm.tasks.digit_ops import tokenizer

    from icml_idft import skills
    from icml_idft.preferences import own_pairs
    from icml_idft.rejection import rejection_sample

    makers = {
        "foreign": {},
        "wrong": {"wrong": WRONG},
        "own": {"foreign": False},
        "partly": {},
        "unknown": {"foreign": False},
    }
    data: dict[str, list[Any]] = {
        name: skills.demonstrations(OPERATORS[name], n, seed=seed, **makers[name])
        for name in makers
        if name in names
    }
    if "pairs" in names:
        demonstrations = skills.demonstrations(OPERATORS["pairs"], n, seed=seed)
        data["pairs"] = own_pairs(
            base,
            tokenizer(),
            demonstrations,
            max_new_tokens=skills.LONGEST,
            generator=torch.Generator().manual_seed(seed),
        )
    if "rejection" not in names:
        return data
    examples = skills.task(skills.PARTLY).sample(n, seed=seed)
    rows = [{"prompt": e.prompt, "answer": e.answer} for e in examples]
    right = rejection_sample(
        base,
        tokenizer(),
        rows,
        lambda row, text: skills.stripped(text) == row["answer"],
        samples=8,
        max_new_tokens=skills.LONGEST,
        batch=128,
        generator=torch.Generator().manual_seed(seed),
    )
    # A base that solves nothing leaves nothing to learn from; the demonstrations stand in.
    by_prompt = {e.prompt: e for e in examples}
    own = [skills.encoded(by_prompt[r["prompt"]], r["response"]) for r in right]
    data["rejection"] = [own[i % len(own)] for i in range(n)] if own else data["partly"]
    return data


def _accuracies(model: Any, operator: str, n: int, seed: int) -> tuple[float, float]:
    """On the operator that was trained, and the mean of those that were known."""
    from icml_idft import skills

    old = [o for o in skills.KNOWN if o != operator]
    new = skills.accuracy(model, operator, n=n, seed=seed)
    return new, sum(skills.accuracy(model, o, n=n, seed=seed) for o in old) / len(old)


def divergence_above(value: float) -> float:
    """A divergence as a figure of a ratio: rounding may leave a model that did not move slightly below 0."""
    return max(value, 1e-9)


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    several = {"smoke": 1, "small": 5, "full": 5}
    suite.measure(seeds=several, ablations=("no-weights",))(retention)
    suite.measure(seeds=several)(scope)
    _claim_retention(suite)
    _claim_best_rates(suite)
    _claim_scope(suite)
    _claim_advice(suite)


def _claim_retention(suite: ClaimSuite) -> None:
    paper = (
        "Averages over mathematics sets above SFT and on par with DPO and SimPO (a figure; no table seen)."
    )
    at = f"_{RATE:g}"
    suite.claim(
        "old-skills-kept",
        of=retention,
        figure=f"foreign_idft{at}_old",
        baseline=f"foreign_sft{at}_old",
        kind="mean",
        at_least=0.1,
        statement="Foreign demonstrations of a known skill, lr 3e-4: other skills are above SFT's by 0.1.",
        paper=paper,
        teeth="no-weights",
        unit="accuracy",
    )
    suite.claim(
        "closer-to-the-base",
        of=retention,
        figure=f"foreign_idft{at}_kl",
        baseline=f"foreign_sft{at}_kl",
        kind="ratio",
        at_most=0.5,
        statement="In the same trainings KL(base || tuned) is at most half of SFT's.",
        paper=paper,
        teeth="no-weights",
    )
    suite.claim(
        "new-skill-as-good",
        of=retention,
        figure=f"foreign_idft{at}_new",
        baseline=f"foreign_sft{at}_new",
        kind="mean",
        at_least=-0.02,
        statement="The skill that was trained is as good as after SFT.",
        paper=paper,
        unit="accuracy",
    )
    suite.claim(
        "old-skills-beside-dft",
        of=retention,
        figure=f"foreign_idft{at}_old",
        baseline=f"foreign_dft{at}_old",
        kind="mean",
        at_least=0.0,
        statement="Other skills are above DFT's.",
        paper=paper,
        unit="accuracy",
    )
    suite.claim(
        "wrong-labels-closer-to-the-base",
        of=retention,
        figure=f"wrong_idft{at}_kl",
        baseline=f"wrong_sft{at}_kl",
        kind="ratio",
        at_most=0.5,
        statement="With 30 % wrong labels KL(base || tuned) is at most half of SFT's.",
        paper=paper,
        teeth="no-weights",
    )
    suite.claim(
        "wrong-labels-do-less-harm",
        of=retention,
        figure=f"wrong_idft{at}_new",
        baseline=f"wrong_sft{at}_new",
        kind="mean",
        at_least=0.0,
        statement="With 30 % wrong labels the trained skill is at least as good as after SFT.",
        paper=paper,
        unit="accuracy",
    )
    suite.claim(
        "standardised-phi",
        of=retention,
        figure=f"foreign_z{at}_old",
        baseline=f"foreign_idft{at}_old",
        kind="mean",
        statement="Other skills with φ in standard deviations, less those with φ in nats (ours).",
        paper="Not in the paper.",
        unit="accuracy",
    )


def _claim_best_rates(suite: ClaimSuite) -> None:
    for other, name in (("sft", "SFT"), ("dft", "DFT"), ("rejection", "rejection sampling")):
        suite.claim(
            f"learns-and-keeps-beside-{other}",
            of=scope,
            figure="best_idft_score",
            baseline=f"best_{other}_score",
            kind="mean",
            at_least=0.0,
            statement=f"A skill known in part, each at its best lr: mean of new and old less {name}'s.",
            paper="Generalises like reinforcement learning at SFT's price.",
            unit="accuracy",
        )
    for other, name in (("dpo", "DPO"), ("simpo", "SimPO")):
        suite.claim(
            f"on-par-with-{other}",
            of=scope,
            figure="best_idft_score",
            baseline=f"best_{other}_score",
            kind="mean",
            between=(-ON_PAR, ON_PAR),
            statement=f"There the mean of new and old is {name}'s, give or take {ON_PAR:g}.",
            paper=f"On par with {name} (averages over mathematics sets; a figure, no table seen).",
            unit="accuracy",
        )
    for method in (*KINDS, "rejection", *PREFERENCES):
        for what in ("new", "old"):
            suite.claim(
                f"best-{method}-{what}",
                of=scope,
                figure=f"best_{method}_{what}",
                kind="mean",
                statement=f"{method}, at its best lr: accuracy on the {what} skills.",
                paper="No figure.",
                unit="accuracy",
            )


def _claim_scope(suite: ClaimSuite) -> None:
    ours = "Not in the paper: where the method does not help."
    suite.claim(
        "in-style-sft-forgets-least",
        of=scope,
        figure=f"own_sft_{RATE:g}_old",
        baseline=f"own_idft_{RATE:g}_old",
        kind="mean",
        at_least=0.0,
        statement="Demonstrations in the model's own style: other skills after SFT less those after IDFT.",
        paper=ours,
        unit="accuracy",
    )
    suite.claim(
        "high-rate-protects-nobody",
        of=retention,
        figure=f"foreign_idft_{HIGH:g}_old",
        kind="mean",
        at_most=0.8,
        statement="At lr 1e-3 other skills fall below 0.8 with IDFT too.",
        paper=ours,
        unit="accuracy",
    )
    suite.claim(
        "sft-teaches-the-unknown",
        of=scope,
        figure=f"unknown_sft_{HIGH:g}_new",
        kind="mean",
        at_least=0.5,
        statement="SFT teaches an operator that the base gives about no probability.",
        paper=ours,
        unit="accuracy",
    )
    for label, arm in (("idft", "idft"), ("dft", "dft"), ("published-warmup", "warm-dft")):
        suite.claim(
            f"{label}-cannot-teach-the-unknown",
            of=scope,
            figure=f"unknown_{arm}_{HIGH:g}_new",
            kind="mean",
            at_most=0.3,
            statement=f"{label} does not learn it."
            if arm != "warm-dft"
            else "IDFT with the published warm-up, which starts as DFT, does not learn it either.",
            paper=ours,
            unit="accuracy",
        )
    suite.claim(
        "sft-warmup-teaches-the-unknown",
        of=scope,
        figure=f"unknown_warm-sft_{HIGH:g}_new",
        baseline=f"unknown_warm-dft_{HIGH:g}_new",
        kind="mean",
        at_least=0.0,
        statement="A warm-up that starts as SFT (ours) learns more of it than the published one.",
        paper=ours,
        unit="accuracy",
    )
    suite.claim(
        "teaching-the-unknown-costs-the-known",
        of=scope,
        figure=f"unknown_sft_{HIGH:g}_old",
        kind="mean",
        statement="Other skills after SFT on the unknown operator.",
        paper=ours,
        unit="accuracy",
    )


def _claim_advice(suite: ClaimSuite) -> None:
    for data, kind, of in (("foreign", "idft", retention), ("own", "sft", scope), ("unknown", "sft", scope)):
        suite.claim(
            f"advice-{data}",
            of=of,
            figure=f"advice_{data}_{kind}",
            kind="every",
            at_least=1.0,
            statement=f"Before a training on {data} demonstrations the advice is {kind}, which wins there.",
            paper="Not in the paper.",
        )
