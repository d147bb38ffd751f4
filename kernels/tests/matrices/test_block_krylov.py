"""Followed singular triplets against LAPACK's SVD: matrices that stay, that move, and awkward ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from icml_kernels.matrices.block_krylov import BLOCK, EXACT, block_vectors, krylov_top, start_block
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.retract_axpy import retract_axpy, retract_axpy_


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_values(rows: int, columns: int, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """One matrix of random singular vectors and given singular values."""
    count = len(values)
    left, _ = torch.linalg.qr(random(rows, count, seed=seed))
    right, _ = torch.linalg.qr(random(columns, count, seed=seed + 1))
    return ((left * values) @ right.T)[None]


def followed(w: torch.Tensor, calls: int, depth: int = 2):
    """A block's triplets of a matrix that does not change."""
    found = krylov_top(w, start_block(w, block_vectors(*w.shape[1:])), depth)
    for turn in range(1, calls):
        found = krylov_top(w, found.block, depth, turn=turn)
    return found


def assert_triplet(w: torch.Tensor, found, tolerance: float) -> None:
    values = torch.linalg.svdvals(w.double())[:, 0]
    torch.testing.assert_close(found.sigma.double(), values, rtol=tolerance, atol=0)
    assert bool((found.sigma.double() <= values * (1 + 1e-6)).all())
    for vector in (found.u, found.v):
        torch.testing.assert_close(vector.norm(dim=1), torch.ones_like(found.sigma), rtol=0, atol=1e-5)
    torch.testing.assert_close(matvec(w, found.v), found.sigma[:, None] * found.u, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(3, 60, 90), (2, 90, 60), (1, 70, 70), (2, 8, 300), (2, 300, 8)], ids=str)
def test_triplets_are_lapacks(shape, dtype):
    w = random(*shape, dtype=dtype)
    found = followed(w, 8)
    assert_triplet(w, found, 1e-6)
    left, _, right = torch.linalg.svd(w.double(), full_matrices=False)
    overlap = (left[:, :, 0] * found.u).sum(1) * (right[:, 0] * found.v).sum(1)
    torch.testing.assert_close(overlap, torch.ones_like(overlap), rtol=0, atol=1e-5)


def test_few_rows_or_columns_are_exact_at_once_and_need_one_vector():
    for shape in ((2, EXACT, 200), (2, 200, EXACT), (3, 5, 7)):
        w = random(*shape)
        assert block_vectors(*shape[1:]) == 1
        assert_triplet(w, krylov_top(w, start_block(w, 1)), 1e-12)
    assert block_vectors(EXACT + 1, 200) == BLOCK
    w = random(1, 64, 80)  # eight blocks span everything
    assert_triplet(w, krylov_top(w, start_block(w), 7), 1e-12)


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (torch.cat([torch.ones(30), torch.linspace(0.9, 0.1, 30)]), 1e-6),  # one value thirty times
        (torch.linspace(1.0, 0.99, 60), 1e-5),  # everything within a hundredth
        (torch.cat([torch.linspace(1.0, 0.999, 20), torch.linspace(0.9, 0.0, 40)]), 5e-4),
        (torch.ones(60), 1e-6),
    ],
    ids=["degenerate", "narrow", "cluster", "orthogonal"],
)
def test_clusters_larger_than_the_block(values, tolerance):
    w = with_values(80, 70, values.double())
    assert_triplet(w, followed(w, 1), 2e-2)
    assert_triplet(w, followed(w, 10), tolerance)


def test_more_depth_is_sharper_and_never_above():
    w = random(1, 150, 200)
    exact = float(torch.linalg.matrix_norm(w, ord=2))
    errors = [1 - float(krylov_top(w, start_block(w), depth).sigma) / exact for depth in range(1, 7)]
    assert all(a >= b - 1e-12 for a, b in pairwise(errors))
    assert -1e-12 < errors[-1] < 1e-3 < errors[0]


@pytest.mark.parametrize("shape", [(96, 128), (128, 96)], ids=str)
def test_a_moving_cluster_is_followed(shape):
    """Steps of 2 % and retractions, as in training: in the end most singular values are near the largest."""
    w = random(1, *shape, dtype=torch.float32)
    w = w / torch.linalg.matrix_norm(w, ord=2)
    found = krylov_top(w, start_block(w), 7)
    common = random(1, *shape, seed=1, dtype=torch.float32)
    worst = 0.0
    for turn in range(60):
        found = krylov_top(w, found.block, turn=turn)
        exact = torch.linalg.matrix_norm(w, ord=2)
        worst = max(worst, float((1 - found.sigma / exact).abs()))
        step = common + random(1, *shape, seed=2 + turn, dtype=torch.float32)
        left, _, right = torch.linalg.svd(step, full_matrices=False)
        w = w / found.sigma[:, None, None] + 0.02 * left @ right
    assert worst < 1e-3
    gram = found.block @ found.block.mT
    torch.testing.assert_close(gram[0], torch.eye(BLOCK), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("size", "calls"), [(1.5, 2), (1.2, 4), (1.05, 12)], ids=str)
def test_a_direction_that_no_vector_sees_is_found(size, calls):
    """It appears at once, with a larger singular value, orthogonal to all vectors of the block."""
    values = torch.linspace(1.0, 0.0, 99, dtype=torch.float64)
    left, _ = torch.linalg.qr(random(120, 100))
    right, _ = torch.linalg.qr(random(110, 100, seed=1))
    old = ((left[:, 1:] * values) @ right[:, 1:].T)[None]
    block = followed(old, 20).block
    block = block - (block @ right[:, :1]) @ right[:, :1].T
    w = old + size * torch.outer(left[:, 0], right[:, 0])
    for turn in range(calls):
        found = krylov_top(w, block, turn=100 + turn)
        block = found.block
    assert float(found.sigma) > 1.0 + 0.5 * (size - 1.0)
    for turn in range(4):
        found = krylov_top(w, found.block, turn=200 + turn)
    assert float(found.sigma) == pytest.approx(size, rel=1e-4)
    assert abs(float(found.v[0] @ right[:, 0])) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("shape", [(60, 70), (70, 60), (1, 9), (9, 1), (1, 1), (20, 90)], ids=str)
def test_zero_and_rank_one(shape):
    vectors = block_vectors(*shape)
    zero = torch.zeros(2, *shape)
    found = krylov_top(zero, start_block(zero, vectors))
    for turn in range(3):
        found = krylov_top(zero, found.block, turn=turn)
        assert torch.equal(found.sigma, torch.zeros(2))
        assert torch.equal(found.u, torch.zeros(2, shape[0]))
        torch.testing.assert_close(found.v.norm(dim=1), torch.ones(2))
        assert bool(found.block.isfinite().all())
    one = random(1, shape[0], 1, dtype=torch.float32) @ random(1, 1, shape[1], seed=1, dtype=torch.float32)
    mixed = torch.cat([one, zero[:1]])  # a zero matrix beside others of its batch
    found = krylov_top(mixed, found.block, turn=4)
    assert_triplet(mixed[:1], type(found)(*(t[:1] for t in found)), 1e-5)
    assert float(found.sigma[1]) == 0.0
    for turn in range(3):
        found = krylov_top(mixed, found.block, turn=5 + turn)
        assert bool(found.block.isfinite().all())
    assert_triplet(mixed[:1], type(found)(*(t[:1] for t in found)), 1e-5)


def test_a_batch_equals_its_members_and_a_sum_over_processes_the_whole():
    w = random(3, 70, 50)
    block = start_block(w)
    together = krylov_top(w, block, turn=3)
    for k in range(3):
        alone = krylov_top(w[k : k + 1], block[k : k + 1], turn=3)
        torch.testing.assert_close(together.sigma[k : k + 1], alone.sigma)
    reduced = krylov_top(w, block, turn=3, reduce=lambda t: t)
    torch.testing.assert_close(reduced.sigma, together.sigma)
    torch.testing.assert_close(reduced.u, together.u)
    small = random(2, 200, 20)
    reduced = krylov_top(small, start_block(small, 1), reduce=lambda t: t)
    assert_triplet(small, reduced, 1e-12)


def test_vectors_that_depend_on_each_other_do_no_harm():
    w = random(1, 60, 60)
    block = start_block(w)
    twice = torch.cat([block[:, :1]] * 7 + [block[:, 1:2]], dim=1)
    found = krylov_top(w, twice)
    for turn in range(12):
        found = krylov_top(w, found.block, turn=turn)
    assert_triplet(w, found, 1e-6)
    found = krylov_top(w, torch.zeros_like(block))
    assert bool(found.block.isfinite().all())
    assert float(found.sigma) > 0.0


def test_products_with_matrices_in_16_bits_go_piece_by_piece():
    wide = random(2, 300, 500).to(torch.bfloat16)  # longer than a piece
    vector = random(2, 500, dtype=torch.float32)
    expected = (wide.float() @ vector[:, :, None])[:, :, 0]
    torch.testing.assert_close(matvec(wide, vector), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(matvec(wide.mT.contiguous().mT, vector), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5, 8), (40, 40, 90), (2, 300, 500)], ids=str)
def test_a_retraction_in_place_is_that_of_the_op(shape):
    w, phi = random(*shape, dtype=torch.float32), random(*shape, seed=1).to(torch.bfloat16)
    scale, alpha = (
        random(shape[0], seed=2, dtype=torch.float32),
        random(shape[0], seed=3, dtype=torch.float32),
    )
    expected = retract_axpy(w, scale, phi, alpha)
    turned = w.mT.contiguous().mT
    for weight in (w, turned):
        retract_axpy_(weight, scale, phi, alpha)
        torch.testing.assert_close(weight, expected)


def test_bad_arguments_are_named():
    w = random(2, 40, 50)
    with pytest.raises(TypeError, match=r"w has dtype torch.bfloat16; convert it to float32"):
        krylov_top(w.bfloat16(), start_block(w))
    with pytest.raises(ValueError, match=r"w has shape \[40, 50\]; expected \[batch, rows, columns\]"):
        krylov_top(w[0], start_block(w))
    with pytest.raises(ValueError, match=r"block has shape \[2, 8, 40\]; expected \[2, vectors, 50\]"):
        krylov_top(w, start_block(w.mT))
    with pytest.raises(ValueError, match=r"depth=0"):
        krylov_top(w, start_block(w), 0)
    with pytest.raises(ValueError, match=r"the block has 1 vectors; matrices of 40 x 50 need at least 2"):
        krylov_top(w, start_block(w, 1))
