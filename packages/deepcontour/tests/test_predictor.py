"""The predictor: sorted by construction, calibrated, saved and refused where it does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from icml_core.errors import NeedsError
from icml_deepcontour import Predictor, eigs, spectral_features
from icml_deepcontour.datasets import (
    FIELD,
    family,
    graph_laplacian,
    laplacian,
    piezo,
    plate,
    scaled,
    uniform_plate,
    waveguide,
)
from icml_deepcontour.eno import ENO, SpectralLayer, eno_loss
from icml_deepcontour.fem import morley_plate
from icml_deepcontour.molecules import hydrogen_chain
from icml_deepcontour.predictor import conformal_quantile, spacing_of
from icml_deepcontour.training import EnoTraining, FitOptions, Split
from scipy.stats import wasserstein_distance

SIZE = 8


@pytest.fixture(scope="module")
def plates():
    found = family(plate, 160, 0, n=12, size=SIZE)
    values = np.array(
        [
            scipy.linalg.eigh(p.A.toarray(), p.B.toarray(), eigvals_only=True, subset_by_index=[0, 9])
            for p in found
        ]
    )
    return found, np.array([p.fields for p in found]), values


@pytest.fixture(scope="module")
def trained(plates):
    _, fields, values = plates
    return Predictor(FitOptions(width=12, modes=3, layers=2, epochs=40, lr=1e-2), seed=1).fit(fields, values)


def test_it_beats_the_mean_of_the_training_set(plates, trained):
    _, fields, values = plates
    test = trained.split_.test
    predicted, _ = trained.predict(fields[test])
    mean = values[trained.split_.train].mean(axis=0)
    assert np.abs(predicted - values[test]).mean() < 0.6 * np.abs(mean - values[test]).mean()
    assert (np.diff(predicted, axis=1) > 0).all()
    assert trained.test_error_["relative"] < 0.2


def test_saved_and_loaded_it_predicts_the_same(tmp_path, plates, trained):
    _, fields, _ = plates
    trained.save(tmp_path / "p.safetensors")
    loaded = Predictor.load(tmp_path / "p.safetensors")
    for a, b in zip(trained.predict(fields[:3]), loaded.predict(fields[:3]), strict=True):
        assert np.array_equal(a, b)


def test_eigs_takes_a_predictor_and_fields(plates, trained):
    instances, fields, values = plates
    found, _, stats = eigs(
        instances[0].A,
        instances[0].B,
        ("SA", 8),
        predictor=trained,
        fields=fields[0],
        backend="slice",
        return_stats=True,
    )
    np.testing.assert_allclose(found, values[0, :8], rtol=1e-8)
    assert stats.count.exact
    with pytest.raises(ValueError, match="needs fields="):
        eigs(instances[0].A, instances[0].B, ("SA", 8), predictor=trained)


def test_training_stops_and_continues_bit_for_bit(tmp_path, plates):
    _, fields, values = plates
    options = FitOptions(width=6, modes=2, layers=1, epochs=20)
    whole = Predictor(options).fit(fields, values)
    file = tmp_path / "c.safetensors"

    class StopError(Exception):
        pass

    def stop(row):
        if row["epoch"] == 12:
            raise StopError

    with pytest.raises(StopError):
        Predictor(options).fit(fields, values, checkpoint=file, progress=stop)
    again = Predictor(options).fit(fields, values, checkpoint=file, resume=True)
    assert whole.history_ == again.history_
    assert np.array_equal(whole.predict(fields)[0], again.predict(fields)[0])


def test_groups_stand_on_one_side_of_the_split():
    groups = np.repeat(np.arange(12), 5)
    split = Split.of(60, FitOptions(), 0, groups)
    parts = [set(groups[p]) for p in (split.train, split.validation, split.test, split.calibration)]
    assert sum(map(len, parts)) == 12
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]


def test_conformal_quantiles_cover_new_errors():
    rng = np.random.default_rng(0)
    spacing = np.linspace(1, 3, 6)
    errors = np.abs(rng.normal(size=(400, 6))) * spacing
    q = conformal_quantile(errors[:200], spacing, 0.95)
    np.testing.assert_allclose(q, 1.96 * spacing, rtol=0.25)
    assert abs((errors[200:] <= q).mean() - 0.95) < 0.03
    exact = np.sort(errors[:200, 0])[int(np.ceil(201 * 0.95)) - 1]
    assert q[0] == pytest.approx(exact)
    few = conformal_quantile(errors[:4], spacing, 0.95)
    assert (few > 0.5 * spacing).all()


def test_the_wasserstein_term_is_scipys():
    a = torch.tensor([[1.0, 2.0, 4.0, 7.0]], dtype=torch.float64)
    b = torch.tensor([[1.5, 2.2, 3.0, 8.0]], dtype=torch.float64)
    assert float((a - b).abs().mean()) == pytest.approx(wasserstein_distance(a[0], b[0]))
    assert float(eno_loss(b, b)) == 0.0
    assert float(eno_loss(a, b)) > 0.0


def test_the_spectral_layer_is_the_product_of_low_modes():
    layer = SpectralLayer(2, 3).double()
    torch.nn.init.zeros_(layer.point.weight)
    torch.nn.init.zeros_(layer.point.bias)
    x = torch.randn(1, 2, 12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    F = np.fft.rfft2(x.numpy())
    weight = torch.view_as_complex(layer.weight.detach()).numpy()
    out = np.zeros_like(F)
    for i in range(3):
        for j in range(3):
            out[0, :, i, j] = F[0, :, i, j] @ weight[0, :, :, i, j]
            out[0, :, 9 + i, j] = F[0, :, 9 + i, j] @ weight[1, :, :, i, j]
    np.testing.assert_allclose(layer(x).detach().numpy(), np.fft.irfft2(out, s=(12, 10)), atol=1e-12)


def test_untrained_it_predicts_the_trend():
    values = torch.tensor([[1.0, 2.0, 4.0], [1.0, 3.0, 5.0]], dtype=torch.float64)
    model = ENO(1, 3, width=4, modes=2, layers=1)
    model.set_trend(torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), values)
    torch.nn.init.zeros_(model.head[-1].weight)
    found = model(torch.zeros(1, 1, 8, 8))
    torch.testing.assert_close(found, torch.tensor([[1.0, 2.5, 4.5]]), rtol=1e-5, atol=1e-5)


def test_negative_spectra_and_features_are_learnt():
    instances = family(waveguide, 24, 0, n=10, size=SIZE)
    values = np.array([np.linalg.eigvalsh(i.A.toarray())[:5] for i in instances])
    assert values.min() < 0
    x = np.array([spectral_features(i.A) for i in instances])
    assert x.shape == (24, 64)
    model = Predictor(epochs=40, width=8, layers=2, lr=3e-3).fit(x, values)
    predicted, q95 = model.predict(x[:2])
    assert predicted.shape == (2, 5)
    assert np.isfinite(predicted).all()
    assert (q95 > 0).all()
    assert model.history_[-1]["loss"] < 0.7 * model.history_[0]["loss"]


def test_features_hold_traces_and_counts():
    A = laplacian((9, 10))
    found = spectral_features(A)
    exact = np.linalg.eigvalsh(A.toarray())
    diagonal = A.diagonal()
    assert found[58] == 0.0  # nothing below zero
    assert found[59] == pytest.approx((exact < np.median(diagonal) * (1 - 1e-10)).mean())
    assert np.exp(found[23]) == pytest.approx(diagonal.max())


def test_spacings_are_means_over_five():
    np.testing.assert_allclose(spacing_of(np.array([[0.0, 1, 3, 6, 10]]))[2], 10 / 4)


def bad(**options):
    return Predictor(FitOptions(width=4, modes=2, layers=1, epochs=1), **options)


@pytest.mark.parametrize(
    ("fields", "values", "message"),
    [
        (np.ones((5, 3)), np.ones((4, 2)), r"fields \[5, 3\] and eigenvalues \[4, 2\]"),
        (np.ones((5, 1, 4, 4)), np.tile([2.0, 1.0], (5, 1)), "must rise"),
        (np.full((5, 1, 4, 4), np.nan), np.ones((5, 2)), "must be finite"),
        (np.ones((2, 1, 4, 4)), np.ones((2, 2)), "too few"),
    ],
)
def test_bad_training_sets_are_refused(fields, values, message):
    with pytest.raises(ValueError, match=message):
        bad().fit(fields, values)


def test_bad_fields_files_and_options_are_refused(tmp_path, trained):
    with pytest.raises(ValueError, match=r"fields have shape \[1, 3, 8, 8\]; .* \[B, 2, 8, 8\]"):
        trained.predict(np.ones((1, 3, SIZE, SIZE)))
    with pytest.raises(ValueError, match="not finite"):
        trained.predict(np.full((1, 2, SIZE, SIZE), np.nan))
    with pytest.raises(RuntimeError, match="not been fitted"):
        bad().predict(np.ones((1, 1, 4, 4)))
    with pytest.raises(TypeError, match="unknown options depth"):
        Predictor(depth=3)
    with pytest.raises(ValueError, match="lr above 0"):
        FitOptions(lr=0)
    with pytest.raises(FileNotFoundError):
        Predictor.load(tmp_path / "none")
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no safetensors file"):
        Predictor.load(tmp_path / "x")
    torch_file = tmp_path / "y.safetensors"
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, str(torch_file), {"format": "other"})
    with pytest.raises(ValueError, match="not a predictor"):
        Predictor.load(torch_file)
    save_file({"a": torch.ones(1)}, str(torch_file), {"format": "icml-deepcontour-predictor", "about": "{}"})
    with pytest.raises(ValueError, match="is damaged"):
        Predictor.load(torch_file)


def test_plates_converge_to_the_closed_form():
    errors = []
    for n in (15, 31):
        values, _ = eigs(uniform_plate(n).A, uniform_plate(n).B, ("SA", 4))
        exact = np.pi**4 * np.array([4.0, 25.0, 25.0, 64.0])
        errors.append(np.abs(values / exact - 1).max())
    assert errors[1] < errors[0] / 3.5 < 0.05


def test_morley_plates_converge_to_the_clamped_square():
    """Uniform clamped square, frequency parameter 35.985 (A. W. Leissa, 1973): lambda_1 = 1294.9."""
    found = [eigs(p.A, p.B, ("SA", 1))[0][0] for p in (morley_plate(r, 0) for r in (4, 5))]
    assert found[0] < found[1]  # from below, as for every non-conforming plate element
    assert 0.4 * 1294.9 < found[1] < 1.6 * 1294.9
    assert morley_plate(3, 0).B.nnz > morley_plate(3, 0).B.shape[0]


def test_hydrogen_levels_are_those_of_the_dense_problem():
    chain = hydrogen_chain(40, 0)
    exact = scipy.linalg.eigh(chain.A.toarray(), chain.B.toarray(), eigvals_only=True)
    values, _, stats = eigs(chain.A, chain.B, ("SA", 10), backend="slice", return_stats=True)
    np.testing.assert_allclose(values, exact[:10], rtol=1e-9)
    assert stats.count.exact


@pytest.mark.parametrize(
    ("make", "channels"),
    [
        (lambda s: plate(8, s), 2),
        (lambda s: piezo(4, s), 2),
        (lambda s: waveguide(8, s), 1),
        (lambda s: graph_laplacian(60, s), 1),
    ],
    ids=["plate", "piezo", "waveguide", "graph"],
)
def test_families_are_deterministic_and_hermitian(make, channels):
    one, same, other = make(0), make(0), make(1)
    assert abs(one.A - same.A).max() == 0
    assert abs(one.A - other.A).max() > 0
    assert abs(one.A - one.A.T).max() <= 1e-12 * abs(one.A).max()
    assert one.fields.shape == (channels, FIELD, FIELD)
    np.testing.assert_allclose(scaled(one, 2.0).A.toarray(), 2 * one.A.toarray())


def test_bad_sizes_and_missing_libraries_are_named(monkeypatch):
    for call in (
        lambda: plate(1, 0),
        lambda: graph_laplacian(3, 0),
        lambda: laplacian((1,)),
        lambda: morley_plate(0, 0),
        lambda: hydrogen_chain(0, 0),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
    monkeypatch.setitem(__import__("sys").modules, "skfem", None)
    with pytest.raises(NeedsError, match="scikit-fem"):
        morley_plate(2, 0)
    monkeypatch.setitem(__import__("sys").modules, "pyscf", None)
    with pytest.raises(NeedsError, match="pyscf"):
        hydrogen_chain(2, 0)


def test_a_first_eigenvalue_below_all_of_the_training_set_is_finite():
    """The offset lies 3 gaps below the training set, and what is below it counts as just above."""
    model = ENO(1, 4, width=4, modes=2, layers=1)
    y = torch.tensor([[-1.0, 0.0, 1.0, 2.0], [-0.9, 0.1, 1.1, 2.2]])
    model.set_trend(torch.ones(2, 1, 8, 8), y)
    assert float(model.offset) < -3.5
    for lowest in (-1.5, -50.0):
        exact = torch.tensor([[lowest, 0.0, 1.0, 2.0]])
        assert bool(eno_loss(model(torch.ones(1, 1, 8, 8)), exact, model.offset).isfinite())


def test_rigid_modes_are_no_ratio():
    model = ENO(1, 4, width=4, modes=2, layers=1)
    y = torch.tensor([[1e-13, 1.0, 2.0, 3.0], [3e-11, 1.0, 2.0, 3.0]], dtype=torch.float64)
    model.set_trend(torch.ones(2, 1, 8, 8), y)
    assert float(model.offset) < -1
    assert 1 < float(model.first) < 10


def test_a_validation_that_is_never_finite_is_an_error(monkeypatch):
    training = EnoTraining(
        np.random.default_rng(0).normal(size=(12, 1, 8, 8)),
        np.tile(np.arange(1.0, 5.0), (12, 1)),
        FitOptions(width=4, modes=2, layers=1, epochs=2),
    )
    monkeypatch.setattr(training, "_validate", lambda *a: float("nan"))
    with pytest.raises(FloatingPointError, match="finite in none of 2 epochs"):
        training.fit()
