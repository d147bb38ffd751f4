"""Training the head: it learns, resumes bit for bit, keeps the best epoch, and weighs classes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from icml_loes import FineTuning, FineTuningOptions, LoesHead, LoesModel
from icml_loes.digits_vit import DigitsViT, digits
from icml_loes.finetuning import _schedule

QUICK = FineTuningOptions(epochs=6, batch=16, lr=2e-2)


def data(n: int = 90, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    x = torch.randn(n, 2, 6, generator=g)
    x[:, 0, :3] += 2.5 * torch.eye(3)[labels]
    return x, labels.numpy()


def head(seed: int = 0) -> LoesHead:
    return LoesHead([6, 6], 3, proj_dim=8, seed=seed)


def test_it_learns_and_keeps_the_best_epoch():
    x, y = data()
    training = FineTuning(head(), x[:60], y[:60], (x[60:], y[60:]), QUICK)
    done = training.fit()
    scores = [row["accuracy"] for row in done.rows]
    assert max(scores) > 0.85
    assert scores[done.best_epoch] == max(scores)
    hits = training.predict(x[60:]).argmax(1).numpy() == y[60:]
    assert hits.mean() == pytest.approx(max(scores))
    assert {"loss", "georeg", "accuracy", "balanced_accuracy", "mcc"} < set(done.rows[0])


def test_stopped_after_any_epoch_it_is_the_same_training(tmp_path):
    x, y = data()
    whole = FineTuning(head(), x, y, (x, y), QUICK)
    expected = whole.fit()
    for stop in (1, 5):
        file = tmp_path / f"{stop}.safetensors"
        FineTuning(head(), x, y, (x, y), QUICK).fit(until=stop, checkpoint=file)
        again = FineTuning(head(7), x, y, (x, y), QUICK)
        found = again.fit(checkpoint=file, resume=True)
        assert found.rows == expected.rows
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, again.model.state_dict()[name])
    with pytest.raises(ValueError, match=r"options\.lr was"):
        FineTuning(head(), x, y, (x, y), replace(QUICK, lr=1.0)).fit(checkpoint=file, resume=True)
    with pytest.raises(ValueError, match="needs checkpoint="):
        whole.fit(resume=True)


def test_georeg_flattens_what_it_trains():
    from icml_loes.georeg import spectrum_variance

    x, y = data()
    found = {}
    for weight in (0.0, 1.0):
        training = FineTuning(head(), x, y, options=replace(QUICK, epochs=20, georeg=weight, spread=False))
        training.fit()
        found[weight] = float(spectrum_variance(training.features(x)))
    assert found[1.0] < found[0.0]


def test_balanced_loss_is_that_of_weighted_classes():
    x, y = data()
    kept = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y != 0)[:10]])
    training = FineTuning(head(), x[kept], y[kept], options=replace(QUICK, balanced=True))
    counts = np.bincount(y[kept])
    weight = torch.tensor(len(kept) / (3 * counts), dtype=torch.float32)
    logits = torch.randn(len(kept), 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor(y[kept])
    expected = torch.nn.functional.cross_entropy(logits, labels, weight)
    torch.testing.assert_close(training._loss(logits, labels), expected)


def test_several_labels_an_example():
    x, y = data()
    several = np.stack([y == 0, y > 0], 1).astype(int)
    training = FineTuning(
        LoesHead([6, 6], 2, proj_dim=8), x, several, (x, several), replace(QUICK, epochs=15)
    )
    assert training.fit().rows[-1]["exact_match"] > 0.9


def test_backbone_and_head_together():
    images, labels = digits()
    model = LoesModel(DigitsViT(16, 2, 2), [1], LoesHead([16], 10, proj_dim=8), pooling="cls", frozen=False)
    before = model.backbone.blocks[0].qkv.weight.detach().clone()
    options = FineTuningOptions.preset("vision", epochs=2, batch=32, lr=1e-2, backbone_lr=1e-3)
    training = FineTuning(model, images[:64], labels[:64], options=options)
    rows = training.fit().rows
    assert rows[1]["loss"] < rows[0]["loss"]
    assert not torch.equal(before, model.backbone.blocks[0].qkv.weight)
    assert [len(g["params"]) > 0 for g in training._optimizer().param_groups] == [True, True]


def test_schedule_warms_up_and_decays():
    factors = [_schedule(s, 100, 0.1) for s in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == 1.0
    assert factors[55] == pytest.approx(0.5 * (1 + math.cos(math.pi * 45 / 90)))
    assert factors[99] < 1e-3


def test_presets_are_the_papers():
    assert FineTuningOptions.preset("text") == FineTuningOptions()
    vision = FineTuningOptions.preset("vision")
    assert (vision.epochs, vision.weight_decay, vision.backbone_lr) == (20, 1e-4, 1e-5)
    assert FineTuningOptions.preset("audio", epochs=3).batch == 64
    with pytest.raises(ValueError, match="modality='video'"):
        FineTuningOptions.preset("video")


def test_bad_input():
    x, y = data()
    with pytest.raises(ValueError, match="5 labels for 90 examples"):
        FineTuning(head(), x, y[:5])
    with pytest.raises(ValueError, match="from 0 to 3 but the head has 3"):
        FineTuning(head(), x, np.append(y[:-1], 3))
    with pytest.raises(ValueError, match="0 and 1 for each of 3"):
        FineTuning(head(), x, np.zeros((90, 2), dtype=int))
    with pytest.raises(ValueError, match="epochs and batch"):
        FineTuning(head(), x, y, options=FineTuningOptions(epochs=0))
    with pytest.raises(FloatingPointError, match="not finite"):
        FineTuning(head(), x * float("inf"), y, options=QUICK).fit()
