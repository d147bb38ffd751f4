"""Every row of bad input, and the traps of the method: exhausted ranks, scales, labels that skip."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from icml_loes import LoesTransformer, layer_profile, select_layers
from icml_loes.layers import as_layers
from icml_loes.synthetic import layers_like_a_transformer

E = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = [0, 1, 2] * 4


def spoilt(layer: int, value: float) -> torch.Tensor:
    x = E.clone()
    x[5, layer, 1] = value
    return x


BAD = {
    "two dimensions": ((E[:, 0], Y, 1), ValueError, r"shape \[12, 3\]; expected \[examples, layers, dim\]"),
    "unequal n": (([E[:, 0], E[:5, 1]], Y, 1), ValueError, "layer 1 has 5 examples but layer 0 has 12"),
    "a layer of three": (([E[:, 0], E[:, 1, 0]], Y, 1), ValueError, r"layer 1 has shape \[12\]"),
    "no layer": (([], Y, 1), ValueError, "no layer"),
    "text": (("text", Y, 1), TypeError, "embeddings are str"),
    "integers": ((E.long(), Y, 1), TypeError, "int64"),
    "k = 0": ((E, Y, 0), ValueError, "k=0; expected a whole number"),
    "k = 1.5": ((E, Y, 1.5), ValueError, "k=1.5"),
    "k > L": ((E, Y, 5), ValueError, "k=5 of 4 layers.*clip_k=True"),
    "one example": ((E[:1], [0], 1), ValueError, "1 examples were given"),
    "too few targets": ((E, Y[:5], 1), ValueError, "5 targets were given for 12 examples"),
    "too many targets": ((E, [*Y, 0], 1), ValueError, "13 targets were given for 12 examples"),
    "one class": ((E, [7] * 12, 1), ValueError, "all 12 examples are of one class, 7"),
    "NaN": ((spoilt(2, float("nan")), Y, 1), ValueError, "layer 2 has NaN or infinity, first in example 5"),
    "infinity": ((spoilt(1, float("inf")), Y, 1), ValueError, "layer 1 has NaN or infinity"),
    "NaN target": ((E, [float("nan")] * 12, 1), ValueError, "target 0 is NaN"),
    "objects": ((E, [object()] * 12, 1), ValueError, "objects of several types"),
    "no labels at all": ((E, np.full((12, 2), 3), 1), ValueError, "neither one-hot"),
    "three axes": ((E, np.zeros((12, 2, 2)), 1), ValueError, r"shape \[12, 2, 2\]"),
    "all constant": ((torch.ones(12, 4, 3), Y, 1), ValueError, "all 4 layers are constant"),
}


@pytest.mark.parametrize(("arguments", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input_is_named(arguments, error, match):
    with pytest.raises(error, match=match):
        select_layers(*arguments)


OPTIONS = {
    "task": ({"task": "ranking"}, "task='ranking' is not one of"),
    "classes that are no integers": ({"task": "classification", "targets": [0.5] * 12}, "such as 0.5"),
    "floating classes": ({"task": "classification", "targets": [1.0, 0.0] * 6}, "of dtype float64"),
    "no targets": ({"task": "classification", "targets": None}, "task='classification' needs targets"),
    "no targets to regress": ({"task": "regression", "targets": None}, "needs targets"),
    "mode": ({"mode": "fast"}, "mode='fast'"),
    "loo without labels": ({"mode": "loo", "task": "label_free"}, "mode='loo' needs targets"),
    "reg": ({"reg": 0.0}, "reg=0.0"),
    "orth_reg": ({"orth_reg": "none"}, "orth_reg='none'"),
    "alpha": ({"alpha": -1.0}, "alpha=-1.0"),
    "pca": ({"pca": 0}, "pca=0"),
    "class weight": ({"class_weight": "heavy"}, "class_weight='heavy'"),
    "missing class weight": ({"class_weight": {0: 1.0}}, r"\[1, 2\]"),
    "weights of a regression": ({"task": "regression", "class_weight": "balanced"}, "needs classes"),
    "names": ({"names": ["a"]}, "1 names were given for 4 layers"),
}


@pytest.mark.parametrize(("options", "match"), OPTIONS.values(), ids=OPTIONS)
def test_bad_options_are_named(options, match):
    options = {"targets": Y, **options}
    with pytest.raises(ValueError, match=match):
        select_layers(E, options.pop("targets"), 1, **options)


def test_clip_k_takes_all_layers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sorted(select_layers(E, Y, 9, clip_k=True).selected) == [0, 1, 2, 3]


def test_constant_layers_are_left_out_with_a_warning():
    x = E.clone()
    x[:, 1] = 3.0
    with pytest.warns(UserWarning, match="layers 1 are constant"):
        found = select_layers(x, Y, 2)
    assert 1 not in found.selected
    assert found.notes == ["constant over the examples, and left out: 1"]
    with pytest.warns(UserWarning, match="constant"), pytest.raises(ValueError, match="k=4 of 3 layers"):
        select_layers(x, Y, 4)


def test_class_numbers_that_skip_change_nothing():
    renamed = [{0: 0, 1: 5, 2: 9}[c] for c in Y]
    assert select_layers(E, renamed, 2).scores == select_layers(E, Y, 2).scores
    words = [{0: "ape", 1: "bee", 2: "cat"}[c] for c in Y]
    assert select_layers(E, words, 2).scores == select_layers(E, Y, 2).scores


def test_two_classes_have_no_triangle_and_the_trace_says_so():
    found = select_layers(E, [0, 1] * 6, 2)
    assert found.trace[1]["area"] == [0.0] * 3
    assert "two classes span no triangle: the term is 0" in found.trace[1]["notes"]


def test_an_exhausted_rank_is_said_and_labels_have_no_say():
    layers, labels = layers_like_a_transformer(30, [40] * 5)
    with pytest.warns(UserWarning, match="with 30 examples the columns of layer . leave nothing orthogonal"):
        found = select_layers(layers, labels, 3)
    assert found.exhausted
    assert [row["exhausted"] for row in found.trace] == [False, True, True]
    assert found.trace[1]["rank"] == 29
    assert any("rank exhausted" in note for note in found.trace[1]["notes"])
    step = found.trace[1]
    assert np.ptp(step["loss"]) < 1e-6 * np.ptp(step["score"])
    shuffled = labels[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = select_layers(layers, shuffled, 3)
    assert other.selected == found.selected


@pytest.mark.parametrize("options", [{"orth_reg": "auto"}, {"pca": "auto"}, {"mode": "loo"}], ids=str)
def test_what_prevents_exhaustion(options):
    layers, labels = layers_like_a_transformer(30, [40] * 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = select_layers(layers, labels, 3, **options)
    assert not found.exhausted
    loss = np.array(found.trace[1]["loss"])
    assert np.ptp(loss) > 0.01 * loss.mean()


def test_one_layer_times_a_hundred_changes_nothing_with_normalised_terms():
    layers, labels = layers_like_a_transformer(50, [12] * 5)
    scaled = [100 * v if i == 2 else v for i, v in enumerate(layers)]
    for options in ({"normalize_terms": True}, {"normalize_terms": True, "orth_reg": "auto"}):
        plain = select_layers(layers, labels, 4, **options)
        other = select_layers(scaled, labels, 4, **options)
        assert plain.selected == other.selected
        np.testing.assert_allclose(plain.scores, other.scores, rtol=1e-6, atol=1e-6)
    x = np.stack([v.numpy() for v in layers], 1)
    y = np.stack([v.numpy() for v in scaled], 1)
    for scale, same in (("layer", True), (None, False)):
        how = {"k": 4, "scale": scale, "options": {"normalize_terms": True}}
        one = LoesTransformer(**how).fit_transform(x, labels.numpy())
        two = LoesTransformer(**how).fit_transform(y, labels.numpy())
        assert np.allclose(one, two, rtol=1e-9) == same


def test_the_papers_mode_is_decided_by_isotropy_where_a_layer_is_white():
    layers, labels = layers_like_a_transformer(200, [4] * 3)
    white, _ = torch.linalg.qr(torch.randn(200, 4, generator=torch.Generator().manual_seed(1)).double())
    white = white - white.mean(0)
    layers[1] = torch.linalg.qr(white)[0] * 200**0.5
    found = select_layers(layers, labels, 1)
    assert found.selected == [1]
    assert found.profile["isotropy"][1] > 1e5
    assert select_layers(layers, labels, 1, alpha=0.0).selected != [1]


def test_hidden_states_drop_the_embedding_and_say_so():
    states = tuple(torch.randn(12, 5, 3, generator=torch.Generator().manual_seed(i)) for i in range(4))
    with pytest.warns(UserWarning, match="of 4 hidden states the first"):
        found = as_layers(states)
    assert len(found) == 3
    torch.testing.assert_close(found.values[0], states[1].mean(1))
    mask = torch.tensor([[1, 1, 0, 0, 0]] * 12)
    with pytest.warns(UserWarning, match="of 4 hidden states"):
        found = as_layers({"hidden_states": states}, attention_mask=mask)
    torch.testing.assert_close(found.values[2], states[3][:, :2].mean(1))


def test_layers_by_name():
    found = select_layers({"a": E[:, 0], "b": E[:, 1]}, Y, 1)
    assert found.names == ["a", "b"]


def test_constant_prediction_scores():
    from icml_loes.scores import classification_scores
    from sklearn.metrics import balanced_accuracy_score, matthews_corrcoef

    truth = np.array([0] * 90 + [1] * 10)
    found = classification_scores(truth, np.zeros(100, dtype=int))
    assert found == {"accuracy": 0.9, "balanced_accuracy": 0.5, "mcc": 0.0}
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    b[:80] = a[:80]
    found = classification_scores(a, b)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(a, b))
    assert found["mcc"] == pytest.approx(matthews_corrcoef(a, b))


def test_profile_refuses_what_selection_refuses():
    with pytest.raises(ValueError, match="layer 2 has NaN"):
        layer_profile(spoilt(2, float("nan")), {"y": Y})


@pytest.mark.parametrize("n", [30, 100])
def test_exhaustion_among_duplicates_is_seen_below_full_rank(n):
    layers, labels = layers_like_a_transformer(n, [40] * 4)
    twice = torch.arange(n) // 5 * 5  # n / 5 different examples, each five times
    with pytest.warns(UserWarning, match="leave nothing orthogonal"):
        found = select_layers([v[twice] for v in layers], labels[twice], 2)
    assert found.trace[1]["exhausted"]
    assert found.trace[1]["rank"] == n // 5 - 1
