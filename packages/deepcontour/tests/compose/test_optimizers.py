"""Another package's optimizer trains the predictor, whose guesses the certified solver takes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from icml_core import Registry
from icml_deepcontour import eigs
from icml_deepcontour.datasets import family, plate
from icml_deepcontour.training import EnoTraining, FitOptions

OPTIMIZERS = [e.name for e in Registry.discover(strict=False).entries(contract="TorchOptimizer")]


def exact(given, k):
    return scipy.linalg.eigh(
        given.A.toarray(), given.B.toarray(), eigvals_only=True, subset_by_index=[0, k - 1]
    )


@pytest.fixture(scope="module")
def solved():
    instances = family(plate, 16, seed=1, n=14)
    return np.array([i.fields for i in instances]), np.array([exact(i, 8) for i in instances])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_predictor_trained_by_any_plug_in_serves_the_certified_solver(name, solved):
    options = FitOptions(epochs=6, batch=4, lr=1e-2, optimizer=name, width=4, modes=3, layers=1)
    training = EnoTraining(*solved, options)
    rows = training.fit()
    assert min(row["loss"] for row in rows[1:]) < rows[0]["loss"]
    new = plate(14, 99)
    with torch.no_grad():
        guesses = training.model.eval()(torch.as_tensor(new.fields[None], dtype=torch.float32))[0].numpy()
    values, _, stats = eigs(new.A, new.B, ("SA", 8), predictor=guesses, backend="slice", return_stats=True)
    np.testing.assert_allclose(values, exact(new, 8), rtol=1e-8)
    assert stats.count.exact
