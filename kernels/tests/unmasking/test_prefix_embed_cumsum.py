"""Prefix sums of masked paths against a one-hot layer, finite differences, and compiled graphs."""

from __future__ import annotations

import pytest
import torch
from icml_kernels import prefix_embed_cumsum
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
    use_route,
)
from icml_kernels.unmasking.prefix_embed_cumsum.cases import CASES, arguments

SMALL = arguments(2, 4, 2, 3, (0, 1, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(prefix_embed_cumsum), case.arguments(), dtype=dtype, order=1)


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_equals_a_linear_layer_of_one_hot_symbols(route):
    """Prefix by prefix, with the mask as one more symbol."""
    weight, x, order, _ = arguments(5, 7, 3, 4, ())
    sizes = torch.tensor([0, 2, 3, 7])
    with use_route(route):
        found = prefix_embed_cumsum(weight, x, order, sizes)
    for t, size in enumerate(sizes.tolist()):
        state = torch.full_like(x, 3)
        shown = order[:, :size]
        state.scatter_(1, shown, x.gather(1, shown))
        hot = torch.nn.functional.one_hot(state, 4).double().flatten(1)
        torch.testing.assert_close(found[t], hot @ weight.flatten(0, 1), rtol=1e-13, atol=1e-13)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(prefix_embed_cumsum, SMALL, order=1) == {
        "icml::prefix_embed_cumsum",
        "icml::prefix_embed_cumsum_backward",
    }


def test_derivatives():
    check_derivatives(prefix_embed_cumsum, SMALL)


def test_compiled():
    check_compiled(lambda *given: prefix_embed_cumsum(*given, trusted=True), SMALL)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    inputs = cast(arguments(7, 9, 3, 11, (0, 1, 4, 8)), torch.float32)
    results = []
    for shares in (1, 2, 5):
        monkeypatch.setattr(
            "icml_kernels.unmasking.prefix_embed_cumsum.cpu.threads", lambda shares=shares: shares
        )
        results.append(derivatives(prefix_embed_cumsum, inputs, order=1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments_are_named():
    weight, x, order, sizes = SMALL
    with pytest.raises(TypeError, match=r"x has dtype torch.int32; expected torch.int64"):
        prefix_embed_cumsum(weight, x.int(), order, sizes)
    with pytest.raises(ValueError, match=r"x has symbols 0 to 2; expected 0 to 1"):
        prefix_embed_cumsum(weight, torch.tensor([[0, 1, 2, 0]] * 2), order, sizes)
    with pytest.raises(ValueError, match="no permutation"):
        prefix_embed_cumsum(weight, x, torch.zeros_like(order), sizes)
    with pytest.raises(ValueError, match="must not fall"):
        prefix_embed_cumsum(weight, x, order, sizes.flip(0))
    with pytest.raises(ValueError, match=r"order has shape \[1, 4\]"):
        prefix_embed_cumsum(weight, x, order[:1], sizes)
    with pytest.raises(TypeError, match="weight has dtype"):
        prefix_embed_cumsum(weight.half(), x, order, sizes)
