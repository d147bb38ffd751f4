"""GeoReg against eigenvalues and the formula by hand; the head against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_core.randomness import seeded
from icml_loes import GeoRegLoss, LoesHead, LoesModel
from icml_loes.digits_vit import DigitsViT
from icml_loes.georeg import georeg, spectrum_variance


def batch(n: int, dim: int, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, dim, generator=g, dtype=torch.float64) * torch.rand(
        dim, generator=g, dtype=torch.float64
    )
    return z, torch.arange(n) % classes


@settings(max_examples=25, deadline=None)
@given(n=st.integers(3, 30), dim=st.integers(2, 30), seed=st.integers(0, 99))
def test_value_is_that_of_the_eigenvalues(n, dim, seed):
    z, labels = batch(n, dim, 3, seed)
    centred = (z - z.mean(0)).numpy()
    values = np.linalg.eigvalsh(centred.T @ centred / (n - 1) + 1e-4 * np.eye(dim))
    assert float(spectrum_variance(z)) == pytest.approx(values.var(ddof=1), rel=1e-8, abs=1e-12)
    gram, eigh = (GeoRegLoss(spectrum=s, seed=seed)(z, labels) for s in ("gram", "eigh"))
    assert float(gram) == pytest.approx(float(eigh), rel=1e-8, abs=1e-10)


def test_value_by_hand():
    z = torch.tensor([[0.0, 0], [4, 0], [0, 3], [0, 0], [4, 0], [0, 3]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    values = np.linalg.eigvalsh(np.cov(z.numpy().T) + 1e-4 * np.eye(2))
    expected = 0.1 * (values.var(ddof=1) - math.log(6 + 1e-6))
    for triangles in ("one", "all"):
        assert float(georeg(z, labels, triangles=triangles)) == pytest.approx(expected, rel=1e-12)
    assert float(georeg(z, labels, weight=0.2)) == pytest.approx(2 * expected, rel=1e-12)


@pytest.mark.parametrize(("n", "dim"), [(20, 6), (6, 20)])
def test_gradient_is_that_of_the_eigenvalues_where_both_exist(n, dim):
    z, labels = batch(n, dim, 3)
    gradients = []
    for spectrum in ("gram", "eigh"):
        leaf = z.clone().requires_grad_()
        GeoRegLoss(spectrum=spectrum, triangles="all")(leaf, labels).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


def test_gradient_is_finite_for_equal_eigenvalues():
    # A cross: all eigenvalues equal; and a batch below its width: all but n - 1 equal.
    cross = torch.cat([torch.eye(6), -torch.eye(6)]).double().requires_grad_()
    GeoRegLoss(triangles="all")(cross, torch.arange(12) % 3).backward()
    assert bool(torch.isfinite(cross.grad).all())
    few = torch.randn(4, 50, dtype=torch.float32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    GeoRegLoss()(few, torch.tensor([0, 1, 2, 0])).backward()
    assert bool(torch.isfinite(few.grad).all())
    equal = torch.zeros(6, 4, dtype=torch.float64).requires_grad_()
    GeoRegLoss()(equal, torch.arange(6) % 3).backward()
    assert bool(torch.isfinite(equal.grad).all())


def test_second_derivatives():
    z, labels = batch(7, 4, 3)
    assert torch.autograd.gradgradcheck(
        lambda v: GeoRegLoss(triangles="all")(v, labels), (z.requires_grad_(),)
    )


@pytest.mark.parametrize("labels", [[0] * 6, [0, 1] * 3])
def test_fewer_than_three_classes_cost_nothing(labels):
    z = batch(6, 4)[0].requires_grad_()
    loss = GeoRegLoss()(z, torch.tensor(labels))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_one_triple_on_average_is_all():
    z, labels = batch(40, 6, 5)
    loss = GeoRegLoss(isotropy=False)
    g = torch.Generator().manual_seed(0)
    drawn = np.mean([float(loss(z, labels, generator=g)) for _ in range(2000)])
    assert drawn == pytest.approx(float(GeoRegLoss(isotropy=False, triangles="all")(z, labels)), rel=0.02)


def test_descent_flattens_the_spectrum_and_spreads_the_classes():
    z, labels = batch(32, 8)
    start = float(spectrum_variance(z))
    leaf = z.clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    loss = GeoRegLoss(1.0, spread=False)
    for _ in range(50):
        optimizer.zero_grad()
        loss(leaf, labels).backward()
        optimizer.step()
    assert float(spectrum_variance(leaf.detach())) < 0.5 * start


def test_bad_input_of_the_loss():
    z, labels = batch(6, 4)
    with pytest.raises(ValueError, match="weight=-1"):
        GeoRegLoss(-1)
    with pytest.raises(ValueError, match="triangles='two'"):
        GeoRegLoss(triangles="two")
    with pytest.raises(ValueError, match=r"labels \[5\]"):
        GeoRegLoss()(z, labels[:5])
    with pytest.raises(TypeError, match="whole numbers"):
        GeoRegLoss()(z, labels.double())
    with pytest.raises(TypeError, match="floating"):
        GeoRegLoss()(z.long(), labels)
    with pytest.raises(ValueError, match="two columns"):
        GeoRegLoss()(z[:, :1], labels)


@pytest.mark.parametrize("fusion", ["concat", "mean", "sum", "learnable"])
def test_head_is_its_definition(fusion):
    g = torch.Generator().manual_seed(0)
    layers = [torch.randn(5, 6, generator=g), torch.randn(5, 6, generator=g)]
    head = LoesHead([6, 6], 3, proj_dim=4, fusion=fusion).eval()
    parts = []
    for project, x in zip(head.projections, layers, strict=True):
        norm, linear = project[0], project[1]
        y = torch.nn.functional.layer_norm(x, (6,), norm.weight, norm.bias)
        parts.append(torch.nn.functional.gelu(y @ linear.weight.T + linear.bias))
    z = {
        "concat": torch.cat(parts, 1), "mean": sum(parts) / 2, "sum": sum(parts), "learnable": sum(parts) / 2,
    }[fusion]  # fmt: skip
    torch.testing.assert_close(head.features(layers), z)
    norm, _, linear = head.classifier
    expected = (
        torch.nn.functional.layer_norm(z, z.shape[1:], norm.weight, norm.bias) @ linear.weight.T + linear.bias
    )
    torch.testing.assert_close(head(layers), expected)
    torch.testing.assert_close(head(torch.stack(layers, 1)), expected)


def test_bad_heads():
    with pytest.raises(ValueError, match="fusion='max'"):
        LoesHead([4], 2, fusion="max")
    with pytest.raises(ValueError, match="dropout=1"):
        LoesHead([4], 2, dropout=1)
    with pytest.raises(ValueError, match=r"widths \[4\] were given; the head was made for \[4, 4\]"):
        LoesHead([4, 4], 2)([torch.zeros(1, 4)])


def test_a_model_of_backbone_and_head_sees_what_the_collector_sees():
    from icml_loes import collect_states

    vit, x = DigitsViT(16, 3, 2), torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0))
    states = collect_states(vit, [x], pooling="cls")
    head = LoesHead([16, 16], 3, proj_dim=4)
    frozen = LoesModel(vit, [2, 0], head, pooling="cls").eval()
    torch.testing.assert_close(frozen(x), head([states.layers[2], states.layers[0]]))
    frozen.train()
    frozen(x).sum().backward()
    assert all(p.grad is None for p in vit.parameters())
    with seeded(0):
        tuned = LoesModel(
            DigitsViT(16, 3, 2), [0, 1], LoesHead([16, 16], 3, proj_dim=4), pooling="cls", frozen=False
        )
    tuned(x).sum().backward()
    assert tuned.backbone.blocks[0].qkv.weight.grad is not None
    assert tuned.backbone.blocks[2].qkv.weight.grad is None  # above the deepest chosen block
    with pytest.raises(ValueError, match=r"blocks \[7\] of 3"):
        LoesModel(vit, [7], LoesHead([16], 3))
