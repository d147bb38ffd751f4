"""The dual and primal forms against the algorithm as published, scikit-learn's ridge and NumPy's
eigenvalues."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_loes import LayerSelection, SelectionProblem, select_layers
from icml_loes.direct import direct_selection
from icml_loes.isotropy import isotropy
from icml_loes.layer_grams import LayerGrams
from icml_loes.layers import as_layers
from icml_loes.synthetic import layers_like_a_transformer
from sklearn.linear_model import Ridge

pytestmark = pytest.mark.filterwarnings("ignore:with .* examples the columns")

SHAPES = {
    "dual throughout": (40, [48] * 5),
    "primal throughout": (150, [12] * 5),
    "primal, then dual": (60, [32] * 5),
    "just exhausted": (33, [32] * 5),
    "widths differ": (50, [16, 24, 8, 40, 12]),
    "wider than 512": (30, [520] * 3),
}


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(labels).double()


def triples_of(result) -> list[torch.Tensor]:
    return [torch.tensor(row["triples"], dtype=torch.int64).reshape(-1, 3) for row in result.trace]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_layers_and_scores_are_those_of_the_published_algorithm(shape, seed):
    layers, labels = layers_like_a_transformer(*shape, seed=seed)
    found = select_layers(layers, labels, 3, generator=seed)
    chosen, trace = direct_selection(layers, one_hot(labels), labels, 3, triples=triples_of(found))
    assert found.selected == chosen
    for ours, theirs in zip(found.trace, trace, strict=True):
        assert ours["candidates"] == theirs["candidates"]
        np.testing.assert_allclose(ours["score"], theirs["score"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float32_embeddings_choose_what_float64_chooses(shape):
    layers, labels = layers_like_a_transformer(*shape)
    wide = select_layers([v.float().double() for v in layers], labels, 3)
    narrow = select_layers([v.float() for v in layers], labels, 3)
    assert narrow.selected == wide.selected
    np.testing.assert_allclose(narrow.scores, wide.scores, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_works(dtype):
    layers, labels = layers_like_a_transformer(40, [16] * 4)
    given = torch.stack([v.to(dtype) for v in layers], 1)
    assert select_layers(given, labels, 2).selected == select_layers(given.float(), labels, 2).selected


@pytest.mark.parametrize("n", [30, 200])
def test_first_loss_is_the_training_error_of_scikit_learns_ridge(n):
    layers, labels = layers_like_a_transformer(n, [24] * 4)
    y = one_hot(labels).numpy()
    found = select_layers(layers, labels, 1, reg=0.3)
    for layer, loss in zip(layers, found.trace[0]["loss"], strict=True):
        predicted = Ridge(alpha=0.3).fit(layer.numpy(), y).predict(layer.numpy())
        assert loss == pytest.approx(((predicted - y) ** 2).mean(), rel=1e-9)


@pytest.mark.parametrize("n", [30, 200])
def test_balanced_weights_are_those_of_a_weighted_ridge(n):
    layers, labels = layers_like_a_transformer(n, [24] * 4)
    labels = torch.where(labels == 3, 0, labels)  # class 0 is twice as large
    y = one_hot(labels).numpy()
    weight = (1 / np.bincount(labels))[labels]
    weight /= weight.mean()
    found = select_layers(layers, labels, 1, reg=0.3, class_weight="balanced")
    for layer, loss in zip(layers, found.trace[0]["loss"], strict=True):
        ridge = Ridge(alpha=0.3).fit(layer.numpy(), y, sample_weight=weight)
        error = (weight[:, None] * (ridge.predict(layer.numpy()) - y) ** 2).mean()
        assert loss == pytest.approx(error, rel=1e-9)


def test_multi_hot_targets_are_multi_output_ridge_without_triangles():
    layers, labels = layers_like_a_transformer(60, [10] * 4)
    y = np.stack([labels % 2 == 0, labels > 1, labels > 0], 1).astype(float)
    found = select_layers(layers, y, 2, reg=0.3)
    assert found.task == "multilabel"
    for layer, loss in zip(layers, found.trace[0]["loss"], strict=True):
        predicted = Ridge(alpha=0.3).fit(layer.numpy(), y).predict(layer.numpy())
        assert loss == pytest.approx(((predicted - y) ** 2).mean(), rel=1e-9)
    assert found.trace[1]["area"] == [0.0] * 3
    assert any("no class centroids" in note for note in found.trace[1]["notes"])


@pytest.mark.parametrize("columns", [None, 3])
def test_regression(columns):
    layers, _ = layers_like_a_transformer(80, [9] * 4)
    y = layers[2][:, 0] * 2 + 1 if columns is None else layers[2][:, :columns]
    found = select_layers(layers, y, 2, alpha=0.0)
    assert found.task == "regression"
    assert found.selected[0] == 2
    assert found.metrics["r2"] > 0.99


def test_soft_labels_equal_hard_ones_where_they_are_hard():
    layers, labels = layers_like_a_transformer(60, [10] * 4)
    hard = select_layers(layers, labels, 2)
    assert select_layers(layers, one_hot(labels), 2).scores == hard.scores
    soft = 0.8 * one_hot(labels) + 0.05
    assert select_layers(layers, soft, 2).task == "soft"


def test_without_labels_isotropy_then_redundancy_choose():
    layers, _ = layers_like_a_transformer(60, [10] * 4)
    found = select_layers(layers, None, 3)
    iso = [isotropy(v) for v in layers]
    assert found.task == "none"
    assert found.selected[0] == int(np.argmax(iso))
    chosen, trace = direct_selection(layers, None, None, 3)
    assert found.selected == chosen
    for ours, theirs in zip(found.trace, trace, strict=True):
        np.testing.assert_allclose(ours["score"], theirs["score"], rtol=1e-9)


@pytest.mark.parametrize(("n", "dim"), [(20, 6), (6, 20), (30, 513), (600, 30)])
def test_isotropy_is_that_of_the_eigenvalues(n, dim):
    x = layers_like_a_transformer(n, [dim])[0][0]
    centred = (x - x.mean(0)).numpy()
    values = np.linalg.eigvalsh(centred.T @ centred / n)
    if dim > 512:
        values = values[-min(n, dim) :]
    assert isotropy(x) == pytest.approx(values.mean() / (values.std() + 1e-6), rel=1e-9)
    every = np.linalg.eigvalsh(centred.T @ centred / n)
    assert isotropy(x, "dimension") == pytest.approx(1 / (every.std() / every.mean() + 1e-6), rel=1e-9)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_redundancies_of_all_pairs_from_centred_gram_matrices(wide, shift):
    layers, _ = layers_like_a_transformer(20, [8, 12, 5])
    layers = [v + shift for v in layers]
    found = LayerGrams(as_layers(layers), wide=wide).redundancies()
    for i, a in enumerate(layers):
        for j, b in enumerate(layers):
            expected = (a.T @ b).norm() / (a.norm() * b.norm())
            assert float(found[i, j]) == pytest.approx(float(expected), rel=1e-10)


def test_gram_matrices_beyond_the_limit_are_computed_again(monkeypatch):
    layers, labels = layers_like_a_transformer(40, [48] * 5)
    kept = select_layers(layers, labels, 3, class_weight="balanced")
    monkeypatch.setattr("icml_loes.layer_grams.KEPT_BYTES", 0)
    monkeypatch.setattr("icml_loes.complement_dual.CHUNK_BYTES", 1)
    found = select_layers(layers, labels, 3, class_weight="balanced")
    np.testing.assert_allclose(found.scores, kept.scores, rtol=1e-12)


OPTIONS = {
    "paper": {},
    "balanced": {"class_weight": "balanced"},
    "normalised": {"normalize_terms": True},
    "shrunk": {"orth_reg": "auto"},
    "normalised and shrunk": {"normalize_terms": True, "orth_reg": "auto"},
    "principal columns": {"pca": "auto"},
    "three columns": {"pca": 3, "normalize_terms": True},
    "leave one out": {"mode": "loo"},
    "leave one out, balanced": {"mode": "loo", "class_weight": "balanced"},
    "all triangles": {"triangles": "all"},
}


@pytest.mark.parametrize("n", [24, 90])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_mode_verifies_by_columns_and_eigenvalues(options, n):
    layers, labels = layers_like_a_transformer(n, [20, 16, 24, 20], classes=3)
    labels = torch.where(torch.arange(n) < n // 3, 0, labels)
    problem = SelectionProblem(layers, labels)
    found = select_layers(layers, labels, 3, **options)
    found.verify(problem)
    with pytest.raises(ValueError, match="has score"):
        replace(found, scores=[s - 0.1 for s in found.scores]).verify(problem)
    broken = [{**row, "loss": [2 * v + 1 for v in row["loss"]]} for row in found.trace]
    with pytest.raises(ValueError, match="differs"):
        replace(found, trace=broken).verify(problem)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(12, 40), dim=st.integers(2, 30))
def test_the_order_of_examples_and_the_names_of_classes_do_not_matter(seed, n, dim):
    layers, labels = layers_like_a_transformer(n, [dim] * 3, classes=3, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = select_layers(layers, labels, 2, triangles="all")
        moved = select_layers([v[order] for v in layers], labels[order] * 5 + 2, 2, triangles="all")
    np.testing.assert_allclose(plain.trace[0]["score"], moved.trace[0]["score"], rtol=1e-7, atol=1e-9)
    assert plain.selected[0] == moved.selected[0]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_rotation_of_a_layer_does_not_matter(seed):
    layers, labels = layers_like_a_transformer(30, [8] * 3, seed=seed)
    g = torch.Generator().manual_seed(seed)
    turned = [v @ torch.linalg.qr(torch.randn(8, 8, generator=g, dtype=torch.float64))[0] for v in layers]
    np.testing.assert_allclose(
        select_layers(turned, labels, 2).scores, select_layers(layers, labels, 2).scores, rtol=1e-7
    )


def test_a_solver_and_a_function_agree():
    layers, labels = layers_like_a_transformer(40, [10] * 4)
    solver = LayerSelection(k=2, seed=3, mode="loo")
    assert solver.solve(SelectionProblem(layers, labels)) == select_layers(
        layers, labels, 2, generator=3, mode="loo"
    )
    assert len(solver.solve(SelectionProblem(layers, labels), k=3).selected) == 3


def test_metrics_of_unbalanced_classes():
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(100, 3, 5, generator=g, dtype=torch.float64)
    labels = torch.tensor([0] * 90 + [1] * 10)
    found = select_layers(noise, labels, 1)
    assert found.metrics["accuracy"] >= 0.85
    assert found.metrics["balanced_accuracy"] < 0.6
    assert set(found.metrics) == {"accuracy", "balanced_accuracy", "mcc"}
