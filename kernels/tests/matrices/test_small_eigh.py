"""Eigenvalues of small symmetric matrices: the definition, and what the operator refuses."""

from __future__ import annotations

import pytest
import torch
from icml_kernels import small_eigh
from icml_kernels.matrices.small_eigh import LARGEST
from icml_kernels.matrices.small_eigh.cases import SIZES, matrices, random, worst_error
from icml_kernels.testing import check_raw_ops


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [*SIZES, LARGEST + 6])
def test_the_definition(size, dtype):
    a = torch.stack(list(matrices(size).values())).to(dtype)
    assert worst_error(a, *small_eigh(a)) <= 20


def test_only_the_lower_triangle_is_read():
    a = random(2, 9, 9)
    spoilt = a + torch.full_like(a, float("nan")).triu(1)
    expected = torch.linalg.eigvalsh(a.tril() + a.tril(-1).mT)
    torch.testing.assert_close(small_eigh(spoilt)[0], expected)


def test_the_raw_operator_is_well_formed():
    a = random(2, 5, 3)
    call = torch.ops.icml.small_eigh
    assert check_raw_ops(lambda: call(a @ a.mT), ()) == {"icml::small_eigh"}


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"a has dtype torch.bfloat16; convert it to float32"):
        small_eigh(torch.zeros(1, 2, 2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"a has shape \[2, 3\]; expected \[batch, size, size\]"):
        small_eigh(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"a has shape \[1, 2, 3\]; expected \[batch, size, size\]"):
        small_eigh(torch.zeros(1, 2, 3))
