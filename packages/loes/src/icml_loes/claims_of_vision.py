"""Claims on images: scikit-learn's digits through a small transformer that was pre-trained without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icml_core import ClaimSuite, Run

if TYPE_CHECKING:
    from icml_loes.digits_vit import DigitsViT

CLIP = "CLIP-B/32, 5 seeds, LOES against last: CIFAR-100 80.6 and 75.6, DTD 70.9 and 63.0, CUB 20.3 and 19.7."
GAINS = ("loes", "loo", "normalized")


def _vit(run: Run) -> DigitsViT:
    from icml_loes.digits_vit import pretrained_vit

    return pretrained_vit(20 if run.scale == "smoke" else 300)


def digits_vit(run: Run, seed: int) -> dict[str, float]:
    """300 labels choose three of six blocks of the class token; a ridge probe is tested on the other 1497."""
    from icml_loes.claim_tasks import Split
    from icml_loes.digits_vit import digit_states, digits

    images, labels = digits()
    if run.scale == "smoke":
        images, labels = images[:200], labels[:200]
    states = digit_states(_vit(run), images)
    split = Split(states, labels, 60 if run.scale == "smoke" else 300, seed)
    figures = split.baselines(3)
    figures["loes"] = split.accuracy(split.ablated(run.ablation, 3, lambda: split.select(3)))
    figures["loo"] = split.accuracy(split.select(3, mode="loo"))
    figures["normalized"] = split.accuracy(split.select(3, normalize_terms=True, orth_reg="auto"))
    figures["all"] = split.accuracy(range(len(split.arrays)))
    return figures


def georeg_training(run: Run, seed: int) -> dict[str, float]:
    """The network and a head on three blocks, fine-tuned on 100 labels with and without GeoReg; 1597 test
    images."""
    import torch

    from icml_loes.claim_tasks import Split
    from icml_loes.digits_vit import digit_states, digits
    from icml_loes.finetuning import FineTuning, FineTuningOptions
    from icml_loes.georeg import spectrum_variance
    from icml_loes.head import LoesHead
    from icml_loes.layered_model import LoesModel

    images, labels = digits()
    if run.scale == "smoke":
        images, labels = images[:200], labels[:200]
    split = Split(digit_states(_vit(run), images), labels, 50 if run.scale == "smoke" else 200, seed)
    selected = split.select(3)
    # Half of the labelled examples train, the other half choose the epoch; test examples do neither.
    order = torch.randperm(len(split.cal), generator=torch.Generator().manual_seed(seed % 2**31)).numpy()
    half = len(order) // 2
    train, validation = split.cal[order[:half]], split.cal[order[half:]]
    epochs = 2 if run.scale == "smoke" else 30
    figures: dict[str, float] = {}
    for name, weight in (("plain", 0.0), ("georeg", 0.1)):
        model = LoesModel(
            _vit(run),
            selected,
            LoesHead([96] * 3, 10, proj_dim=64, seed=seed % 2**31),
            pooling="cls",
            frozen=False,
        )
        options = FineTuningOptions.preset(
            "vision", epochs=epochs, batch=20, lr=3e-3, backbone_lr=3e-4, georeg=weight,
            isotropy=run.ablation != "no-isotropy",
        )  # fmt: skip
        training = FineTuning(
            model,
            images[train],
            labels[train],
            (images[validation], labels[validation]),
            options,
            seed=seed % 2**31,
        )
        training.fit()
        hits = training.predict(images[split.test]).argmax(1).numpy() == labels[split.test]
        figures[f"accuracy_{name}"] = 100 * float(hits.mean())
        z = training.features(images[split.test])
        figures[f"variance_{name}"] = float(spectrum_variance(z))
        scale = float(z.var(0).mean()) ** 2
        figures[f"relative_variance_{name}"] = figures[f"variance_{name}"] / scale
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 5, "full": 10}, ablations=("random",))(digits_vit)
    suite.claim(
        "vision-beats-last",
        of=measure,
        figure="loes",
        baseline="last",
        kind="mean",
        at_least=0.0,
        statement="Three of six blocks, chosen by 300 labels, classify digits better than the last block.",
        paper=CLIP,
        teeth="random",
        unit="points",
    )
    for rival, name in (
        ("last_k", "the last three"),
        ("random", "three at random"),
        ("best_single", "the best one"),
    ):
        suite.claim(
            f"vision-beside-{rival.replace('_', '-')}",
            of=measure,
            figure="loes",
            baseline=rival,
            kind="mean",
            at_least=0.0,
            statement=f"They classify no worse than {name}.",
            paper=CLIP,
            unit="points",
        )
    for mode, label in (("loo", "The leave-one-out mode"), ("normalized", "Normalised terms with shrinkage")):
        suite.claim(
            f"vision-{mode}-never-worse",
            of=measure,
            figure=mode,
            baseline="loes",
            kind="mean",
            at_least=0.0,
            statement=f"{label} chooses no worse than the paper's mode.",
            paper="An extension; not in the paper.",
            unit="points",
        )
    tuned = suite.measure(seeds={"smoke": 1, "small": 5, "full": 10}, ablations=("no-isotropy",))(
        georeg_training
    )
    suite.claim(
        "georeg-flattens-the-spectrum",
        of=tuned,
        figure="variance_georeg",
        baseline="variance_plain",
        kind="ratio",
        at_most=1.0,
        statement="Fine-tuned with GeoReg, fused features of unseen images have a smaller variance "
        "of eigenvalues.",
        paper="Stated; ablation figures are not known to us.",
        teeth="no-isotropy",
        unit="×",
    )
    suite.claim(
        "georeg-flattens-relative-to-size",
        of=tuned,
        figure="relative_variance_georeg",
        baseline="relative_variance_plain",
        kind="ratio",
        at_most=1.0,
        statement="The same relative to the square of the mean eigenvalue, so that shrinking does not count.",
        paper="Not in the paper.",
        unit="×",
    )
    suite.claim(
        "georeg-does-no-harm",
        of=tuned,
        figure="accuracy_georeg",
        baseline="accuracy_plain",
        kind="mean",
        at_least=-0.5,
        statement="The accuracy of 100 labels is not worse by half a point.",
        paper="Stated; figures not known to us.",
        unit="points",
    )
