"""The optimizer against Algorithm 1 written out with SVDs, and everything that it refuses or must not do."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from icml_sso import SSO, Atomic, MuonSphere, build_param_groups, exact_msign, spectral_mup_init_
from icml_sso.precision import stochastic_round
from scipy.optimize import brentq, minimize_scalar
from torch import nn

PRECISE = {"msign_dtype": torch.float64, "msign_steps": 30, "solver_tol": 1e-9}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parameter(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(random(*shape, seed=seed, dtype=dtype))


def with_a_gap(*shape: int) -> nn.Parameter:
    """sigma_2 is half of sigma_1, so that no singular values cross within a few steps."""
    u, s, vh = torch.linalg.svd(random(*shape, dtype=torch.float64), full_matrices=False)
    s[1:] *= 0.5 * s[0] / s[1]
    return nn.Parameter((u * s) @ vh)


def step(optimizer, params, seed):
    for k, p in enumerate(params):
        p.grad = random(*p.shape, seed=1000 * seed + k + 77, dtype=p.dtype)
    optimizer.step()


def norm(w: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(w.detach().double(), ord=2))


def matrices(*params, atomic=None, **more):
    return [{"params": list(params), "kind": "matrix", "atomic": atomic or [Atomic()] * len(params), **more}]


# -- the algorithm
# ------------------------------------------------------------------------------------------------


def algorithm_1(w, gradients, lr, *, beta=0.9, nesterov=True, tangent=True, radius=None, scale=None):
    """arXiv 2601.08393, Algorithm 1, by SVD and Brent's method, in float64."""
    rows, columns = w.shape
    radius = math.sqrt(rows / columns) if radius is None else radius
    scale = math.sqrt(rows / columns) if scale is None else scale
    momentum = torch.zeros_like(w)
    for g in gradients:
        momentum = beta * momentum + (1 - beta) * g
        n = (1 - beta) * g + beta * momentum if nesterov else momentum
        n = n / n.norm()
        left, s, right = torch.linalg.svd(w, full_matrices=False)
        w = w * radius / s[0]
        theta = torch.outer(left[:, 0], right[0])
        lam = 0.0
        if tangent:
            lam = brentq(lambda x, n=n, t=theta: float((t * exact_msign(n + x * t)).sum()), -4, 4, xtol=1e-14)
        w = w - lr * scale * exact_msign(n + lam * theta)
    return w


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("shape", "tangent"), [((6, 15), True), ((15, 6), True), ((6, 15), False)], ids=str)
def test_steps_are_those_of_the_algorithm(shape, tangent, nesterov):
    p = with_a_gap(*shape)
    start = p.detach().clone()
    optimizer = SSO(
        [p], lr=0.05, nesterov=nesterov, power_iters=60, solver="krylov" if tangent else "none", **PRECISE
    )
    gradients = [random(*shape, seed=1000 * k + 500, dtype=torch.float64) for k in range(5)]
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    expected = algorithm_1(start, gradients, 0.05, nesterov=nesterov, tangent=tangent)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("msign_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(60, 60), (48, 100), (100, 48)], ids=str)
def test_updates_are_tangent_and_steepest_whatever_the_precision(shape, msign_dtype):
    """<Theta, Phi> = 0 as far as Theta is known, spectral norm at most 1.04, within 1 % of the optimum."""
    p = with_a_gap(*shape)
    optimizer = SSO([p], lr=0.01, msign_dtype=msign_dtype)
    for seed in range(4):
        before = p.detach().clone()
        p.grad = random(*shape, seed=seed, dtype=torch.float64)
        optimizer.step()
        row = optimizer.stats()["group 0, parameter 0"]
        move = (before * row["retraction"][0] - p.detach()) / (0.01 * math.sqrt(shape[0] / shape[1]))
        left, _, right = torch.linalg.svd(before, full_matrices=False)
        theta = torch.outer(left[:, 0], right[0])
        assert abs(float((move * theta).sum())) < 2e-4
        assert norm(move) < 1.04
        n = 0.1 * p.grad + 0.9 * optimizer.state[p]["momentum"]
        optimum = minimize_scalar(
            lambda x, n=n, t=theta: float(torch.linalg.matrix_norm(n / n.norm() + x * t, ord="nuc")),
            bounds=(-1.0, 1.0),
            method="bounded",
        ).fun
        assert float((n * move).sum() / n.norm()) > 0.99 * optimum


@pytest.mark.parametrize("by_radius", [True, False])
@pytest.mark.parametrize("mode", ["spectral_mup", "identity", "initialize"])
def test_radius_modes(mode, by_radius):
    p = parameter(6, 15, dtype=torch.float64)
    start = p.detach().clone()
    options = {"radius_mode": mode, "radius_scale": 1.5, "scale_update_by_radius": by_radius}
    optimizer = SSO([p], lr=0.05, power_iters=200, **options, **PRECISE)
    p.grad = random(6, 15, seed=5, dtype=torch.float64)
    optimizer.step()
    radius = 1.5 * {"spectral_mup": math.sqrt(6 / 15), "identity": 1.0, "initialize": norm(start)}[mode]
    found = float(optimizer.state[p]["radius"])
    assert found == pytest.approx(radius, rel=1e-2)
    scale = found if by_radius else None
    expected = algorithm_1(start, [p.grad], 0.05, radius=found, scale=scale)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-6)
    assert ("as in the paper's equation" in repr(optimizer)) == by_radius


def test_scale_modes_and_dynamic_retraction():
    for mode, scale in (("align_adamw_rms", 0.2 * math.sqrt(15)), ("shape_scaling", 1.0)):
        p = parameter(6, 15, dtype=torch.float64)
        start, g = p.detach().clone(), random(6, 15, seed=5, dtype=torch.float64)
        optimizer = SSO([p], lr=0.05, scale_mode=mode, power_iters=200, **PRECISE)
        p.grad = g
        optimizer.step()
        torch.testing.assert_close(p.detach(), algorithm_1(start, [g], 0.05, scale=scale), rtol=0, atol=1e-6)
    for factor, sign in ((10.0, -1.0), (1e-3, 1.0)):
        p = nn.Parameter(factor * random(6, 15, dtype=torch.float64))
        start = p.detach().clone()
        optimizer = SSO([p], lr=0.05, retract="dynamic", retract_alpha=0.4, solver="none", **PRECISE)
        p.grad = g
        optimizer.step()
        expected = start * (1 + sign * 0.4 * 0.05) - 0.05 * math.sqrt(6 / 15) * exact_msign(g)
        torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-6)


def test_update_rms_of_the_adamw_alignment():
    """0.2 lr to 20 % for six shapes."""
    for shape in ((64, 64), (32, 128), (128, 32), (16, 200), (48, 96), (96, 80)):
        p = parameter(*shape)
        optimizer = SSO([p], lr=1.0, scale_mode="align_adamw_rms", retract="off")
        start = p.detach().clone()
        p.grad = random(*shape, seed=3)
        optimizer.step()
        rms = float((p.detach() - start).square().mean().sqrt())
        assert rms == pytest.approx(0.2, rel=0.2)


def test_vectors_stay_on_their_sphere_by_the_closed_form():
    p = parameter(1, 12, dtype=torch.float64)
    optimizer = SSO([p], lr=0.1, **PRECISE)
    g = random(1, 12, seed=2, dtype=torch.float64)
    start = p.detach() / p.detach().norm() * math.sqrt(1 / 12)
    p.grad = g.clone()
    optimizer.step()
    theta = start / start.norm()
    flat = g - (g * theta).sum() * theta
    torch.testing.assert_close(p.detach(), start - 0.1 * math.sqrt(1 / 12) * flat / flat.norm())


def test_zero_gradients_retract_and_decay_momentum_but_do_not_move():
    p = parameter(5, 8)
    optimizer = SSO([p], lr=0.1)
    step(optimizer, [p], 1)
    before = optimizer.state[p]["momentum"].clone()
    p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["momentum"], 0.9 * before)
    fresh = parameter(5, 8)
    start = fresh.detach().clone()
    other = SSO([fresh], lr=0.1, power_iters=100)
    fresh.grad = torch.zeros_like(fresh)
    other.step()
    torch.testing.assert_close(fresh.detach(), start * math.sqrt(5 / 8) / norm(start), rtol=1e-4, atol=1e-5)


def test_a_singular_value_that_overtakes_is_found():
    """Its vectors are orthogonal to all that the optimizer keeps: power iterations from them never see it."""
    from icml_sso.singular_vectors import lanczos_norms

    for shape in ((80, 120), (120, 80)):
        left, _ = torch.linalg.qr(random(shape[0], 80, dtype=torch.float64))
        right, _ = torch.linalg.qr(random(shape[1], 80, seed=1, dtype=torch.float64))
        s = torch.linspace(1.0, 0.1, 80, dtype=torch.float64)
        p = nn.Parameter((left[:, :79] * s[:79]) @ right[:, :79].T)
        optimizer = SSO([p], lr=1e-4)
        for seed in range(3):
            step(optimizer, [p], seed)
        block = optimizer.state[p]["v"]
        block -= (block @ right[:, 79:]) @ right[:, 79:].T
        with torch.no_grad():
            p += 1.3 * math.sqrt(shape[0] / shape[1]) * torch.outer(left[:, 79], right[:, 79])
        exact = norm(p)
        assert float(lanczos_norms(p.detach()[None], block[:, 0])) == pytest.approx(exact, rel=1e-6)
        for seed in range(3, 6):  # each step divides by the norm that it found
            exact = norm(p)
            step(optimizer, [p], seed)
        found = optimizer.stats()["group 0, parameter 0"]["sigma"][0]
        assert found == pytest.approx(exact, rel=1e-4)
        assert norm(p) == pytest.approx(math.sqrt(shape[0] / shape[1]), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 50), (50, 1), (20, 90), (90, 48), (64, 64)], ids=str)
def test_norms_are_followed_over_many_steps(shape, dtype):
    """Every step retracts by the exact norm of the weights that it found, to 1e-3."""
    p = parameter(*shape, dtype=dtype)
    optimizer = SSO([p], lr=0.02)
    optimizer.init_state()
    common = random(*shape, seed=4)
    for seed in range(25):
        exact = norm(optimizer.weight(p))
        p.grad = (common + random(*shape, seed=5 + seed)).to(dtype)
        optimizer.step()
        found = optimizer.stats()["group 0, parameter 0"]["sigma"][0]
        assert found == pytest.approx(exact, rel=1e-3)


def test_a_matrix_of_rank_one_is_retracted_and_moves():
    p = nn.Parameter(random(40, 1) @ random(1, 50, seed=1))
    optimizer = SSO([p], lr=0.02)
    for seed in range(4):
        exact = norm(p)
        step(optimizer, [p], seed)
        assert optimizer.stats()["group 0, parameter 0"]["sigma"][0] == pytest.approx(exact, rel=1e-4)


# -- batches, groups, cuts
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "atomic"),
    [
        ((64, 32, 3), Atomic(flatten=True)),
        ((4, 20, 12), Atomic(batch_axes=1)),
        ((24, 9), Atomic(blocks=(8,) * 3)),
    ],
    ids=["convolutions", "experts", "heads"],
)
def test_equal_shapes_together_equal_one_by_one(shape, atomic, count):
    found = []
    for foreach in (True, False):
        params = [parameter(*shape, seed=k, dtype=torch.float64) for k in range(count)]
        # In double precision: in float32 rounding may decide whether a multiplier is within tolerance.
        options = {"msign_dtype": torch.float64, "lr": 0.05, "foreach": foreach}
        optimizer = SSO(matrices(*params, atomic=[atomic] * count), **options)
        for seed in range(2):
            step(optimizer, params, seed)
        found.append(params)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "atomic"),
    [
        ((60, 40), Atomic(blocks=(12,) * 5)),
        ((5, 24, 18), Atomic(batch_axes=1)),
        ((4, 30, 18), Atomic(batch_axes=1, blocks=(15, 15))),
        ((4, 18, 30), Atomic(batch_axes=1, transpose=True, blocks=(15, 15))),
        ((3, 24, 18), Atomic(batch_axes=1, blocks=(8, 4, 8, 4), labels=(0, 1, 0, 1))),
    ],
    ids=["heads", "experts", "gate and up", "stored transposed", "interleaved"],
)
def test_a_part_in_pieces_is_the_part(monkeypatch, shape, atomic):
    """Batches are bounded, and divide a parameter's matrices where they must."""
    import icml_sso.batches as module

    found = []
    for entries in (2**20, 1200, 1):
        monkeypatch.setattr(module, "BATCH_ENTRIES", {"cpu": entries})
        params = [parameter(*shape, seed=k, dtype=torch.float64) for k in range(2)]
        optimizer = SSO(matrices(*params, atomic=[atomic] * 2), lr=0.05, msign_dtype=torch.float64)
        for seed in range(2):
            step(optimizer, params, seed)
        found.append(params)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_convolution_is_one_matrix_of_its_own():
    """Three of (64, 32, 3): each is its own 64 x 96 matrix, retracted to sqrt(64 / 96)."""
    params = [parameter(64, 32, 3, seed=k) for k in range(3)]
    optimizer = SSO(matrices(*params, atomic=[Atomic(flatten=True)] * 3), lr=0.05)
    step(optimizer, params, 0)
    optimizer.retract_()
    for p in params:
        assert norm(p.detach().reshape(64, 96)) == pytest.approx(math.sqrt(64 / 96), rel=1e-3)


def test_groups_keep_their_options_and_zero_is_a_value():
    params = [parameter(6, 9, seed=k, dtype=torch.float64) for k in range(2)]
    groups = [
        {"params": [params[0]], "lr": 1e-3, "weight_decay": 0.1},
        {"params": [params[1]], "lr": 1e-4, "weight_decay": 0.0},
    ]
    optimizer = SSO(groups, lr=0.5, retract="off", weight_decay=0.3, **PRECISE)
    starts = [p.detach().clone() for p in params]
    gradients = [random(6, 9, seed=7 + k, dtype=torch.float64) for k in range(2)]
    for p, g in zip(params, gradients, strict=True):
        p.grad = g
    optimizer.step()
    for p, w, lr, decay in zip(params, starts, (1e-3, 1e-4), (0.1, 0.0), strict=True):
        move = (w * (1 - lr * decay) - p.detach()) / (lr * math.sqrt(6 / 9))
        torch.testing.assert_close(
            torch.linalg.svdvals(move), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-4
        )
    frozen = parameter(4, 4)
    kept = frozen.detach().clone()
    still = SSO([{"params": [frozen], "lr": 0.0}], lr=0.1)
    step(still, [frozen], 1)
    assert torch.equal(frozen, kept)


def test_a_mixed_group_is_divided_with_its_options():
    weight, bias, embedding = parameter(4, 5), parameter(4), parameter(9, 5)
    named = [("layer.weight", weight), ("layer.bias", bias), ("embed_tokens.weight", embedding)]
    optimizer = SSO([{"params": named, "lr": 0.03}])
    kinds = [(g["kind"], g["lr"], g["weight_decay"], g["param_names"]) for g in optimizer.param_groups]
    assert kinds == [
        ("matrix", 0.03, 0.0, ["layer.weight"]),
        ("adamw", 0.03, 0.1, ["layer.bias", "embed_tokens.weight"]),
    ]


def test_the_adamw_groups_are_torchs():
    p, q = parameter(7), parameter(7)
    ours = SSO([p], lr=0.01)
    theirs = torch.optim.AdamW([q], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(5):
            step(ours, [p], seed)
            step(theirs, [q], seed)
    torch.testing.assert_close(p, q, rtol=0, atol=1e-7)


def test_muonsphere_is_sso_without_multiplier():
    params = [parameter(6, 14), parameter(6, 14)]
    muon, none = MuonSphere(params[:1], lr=0.05), SSO(params[1:], lr=0.05, solver="none")
    for seed in range(3):
        for optimizer, p in ((muon, params[0]), (none, params[1])):
            p.grad = random(6, 14, seed=seed)
            optimizer.step()
    assert torch.equal(params[0], params[1])
    assert muon.stats()["group 0, parameter 0"]["lambda"] == [0.0]
    with pytest.raises(ValueError, match="MuonSphere has solver='none'"):
        MuonSphere([parameter(3, 3)], solver="krylov")


# -- what is refused
# ----------------------------------------------------------------------------------------------


def test_axes_that_count_matrices_are_not_guessed():
    """A stack or a convolution without a rule goes to AdamW, and that is said."""
    stack, matrix = parameter(2, 3, 4), parameter(3, 4)
    with pytest.warns(UserWarning, match=r"'w' has shape \[2, 3, 4\], .* AdamW takes it.*build_param_groups"):
        optimizer = SSO([("w", stack), ("m", matrix)])
    kinds = {group["kind"]: group["params"] for group in optimizer.param_groups}
    assert kinds["adamw"] == [stack]
    assert kinds["matrix"] == [matrix]


def test_what_is_no_matrix_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'b' has shape \[4\], but a matrix group.*build_param_groups"):
        SSO([{"params": [("b", parameter(4))], "kind": "matrix"}])
    with pytest.raises(ValueError, match=r"'b' has shape \[\], but"):
        SSO([{"params": [("b", nn.Parameter(torch.tensor(1.0)))], "kind": "matrix"}])
    with pytest.raises(ValueError, match="sum to 5, but it has 4 rows"):
        SSO(matrices(parameter(4, 3), atomic=[Atomic(blocks=(2, 3))]))
    with pytest.raises(ValueError, match="'w' is float16; use bfloat16 or float32"):
        SSO([("w", parameter(4, 3, dtype=torch.float16))])
    with pytest.raises(TypeError, match="'w' is complex"):
        SSO([("w", nn.Parameter(torch.ones(2, 2, dtype=torch.complex64)))])
    with pytest.raises(ValueError, match="kind='muon'"):
        SSO([{"params": [parameter(2, 2)], "kind": "muon"}])
    with pytest.raises(ValueError, match="1 parameters but 2 entries of 'atomic'"):
        SSO([{"params": [parameter(2, 2)], "kind": "matrix", "atomic": [Atomic()] * 2}])
    flat = nn.Parameter(torch.ones(12))
    flat._is_flat_param = True
    with pytest.raises(ValueError, match="use_orig_params=True"):
        SSO([flat])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("radius_mode", "mup", "radius_mode='mup' is not one of spectral_mup"),
        ("scale_mode", "mup", "scale_mode='mup'"),
        ("retract", "soft", "retract='soft'"),
        ("solver", "newton", "solver='newton'"),
        ("master", "bf16", "master='bf16'"),
        ("distributed", "ddp", "distributed='ddp'"),
        ("msign_steps", 0, "msign_steps=0"),
        ("radius_scale", 0.0, "radius_scale=0.0 must be positive"),
        ("lr", -1.0, "lr=-1.0 must be 0 or more"),
        ("momentum", 1.0, "momentum=1.0"),
        ("power_iters", 0, "power_iters=0"),
        ("adamw_betas", (0.9, 1.0), "adamw_betas"),
        ("msign_dtype", torch.int8, "is not one of bfloat16"),
    ],
)
def test_bad_options_are_named(option, value, message):
    with pytest.raises(ValueError, match=message):
        SSO([parameter(3, 4)], **{option: value})


def test_bad_gradients_are_named():
    p = parameter(3, 4)
    optimizer = SSO([("w", p)])
    p.grad = torch.full((3, 4), float("nan"))
    with pytest.raises(FloatingPointError, match="gradient of 'w' holds NaN"):
        optimizer.step()
    assert not optimizer.state[p]
    p.grad = torch.eye(3, 4).to_sparse()
    with pytest.raises(TypeError, match="gradient of 'w' is sparse"):
        optimizer.step()
    zero = nn.Parameter(torch.zeros(3, 4))
    zero.grad = torch.ones(3, 4)
    with pytest.raises(
        ValueError, match=r"cannot place a zero matrix on the sphere; call spectral_mup_init_"
    ):
        SSO([("z", zero)]).step()


def test_skipped_gradients_leave_weights_and_momentum_alone_and_are_counted():
    good, bad = parameter(3, 4), parameter(3, 4)
    optimizer = SSO([good, bad], skip_nonfinite=True, lr=0.1)
    step(optimizer, [good, bad], 0)
    before, momentum, other = (
        bad.detach().clone(),
        optimizer.state[bad]["momentum"].clone(),
        good.detach().clone(),
    )
    good.grad, bad.grad = random(3, 4), torch.full((3, 4), float("inf"))
    optimizer.step()
    assert torch.equal(bad, before)
    assert torch.equal(optimizer.state[bad]["momentum"], momentum)
    assert not torch.equal(good, other)
    assert optimizer.coverage()["skipped"] == 1.0


def test_no_matrix_at_all_is_a_warning():
    p = parameter(7)
    optimizer = SSO([p])
    p.grad = torch.ones(7)
    with pytest.warns(UserWarning, match="AdamW everywhere"):
        optimizer.step()
    layer = nn.Linear(6, 2)
    optimizer = SSO(layer)
    layer(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    assert optimizer.coverage()["share"] == pytest.approx(12 / 14)
    assert optimizer.coverage()["msign_calls"] >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_matrix_sign_never_writes_into_the_momentum(dtype, nesterov):
    p = parameter(6, 8, dtype=dtype)
    optimizer = SSO([p], lr=0.1, nesterov=nesterov, momentum_dtype=dtype)
    g = random(6, 8, seed=3, dtype=dtype)
    p.grad = g.clone()
    optimizer.step()
    work = torch.float64 if dtype == torch.float64 else torch.float32
    expected = torch.zeros(6, 8, dtype=work).lerp(g.to(work), 1.0 - 0.9).to(dtype)
    assert torch.equal(optimizer.state[p]["momentum"], expected)
    assert torch.equal(p.grad, g)


def test_matrix_signs_that_come_out_wrong_are_computed_again(monkeypatch):
    import icml_sso.tangent_multiplier as module

    real = module.msign_rank1

    def spoilt(m, u, v, lam, inv, steps=8, **options):
        phi = real(m, u, v, lam, inv, steps, **options)
        return phi * 4 if options["dtype"] == torch.bfloat16 else phi

    p, q = parameter(12, 20), parameter(12, 20)
    right = SSO([q], lr=0.1, msign_dtype=torch.float32, solver="none")
    step(right, [q], 0)
    monkeypatch.setattr(module, "msign_rank1", spoilt)
    optimizer = SSO([p], lr=0.1, solver="none")
    step(optimizer, [p], 0)
    assert optimizer.coverage()["reruns"] == 1.0
    torch.testing.assert_close(p, q, rtol=0, atol=2e-3)


# -- low precision, fine-tuning
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["fp32", "stochastic"])
def test_bf16_weights_move_by_updates_below_their_precision(master):
    """Updates of 2^-10 of the weights, 100 times in one direction: nothing without masters or random
    rounding.
    """
    p = nn.Parameter(random(48, 64).to(torch.bfloat16))
    spectral_mup_init_(holder := nn.ParameterDict({"w": p}), std=None)
    assert holder["w"] is p
    start = p.detach().clone()
    rms = float(start.float().square().mean().sqrt())
    lr = 2.0**-10 * rms * math.sqrt(64) / math.sqrt(48 / 64)
    optimizer = SSO([p], lr=lr, master=master)
    for seed in range(100):
        p.grad = (random(48, 64, seed=9) + 0.3 * random(48, 64, seed=seed)).to(torch.bfloat16)
        optimizer.step()
    moved = float((p.detach() != start).float().mean())
    assert moved >= 0.95
    optimizer.retract_()
    assert abs(norm(p) / math.sqrt(48 / 64) - 1) < 5e-3


def test_stochastic_rounding_keeps_the_mean():
    x = torch.full((200_000,), 1.0 + 2.0**-10)
    rounded = stochastic_round(x, torch.Generator().manual_seed(0))
    assert set(rounded.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert float(rounded.double().mean()) == pytest.approx(
        1.0 + 2.0**-10, abs=4 * 2.0**-7 * 0.33 / 200_000**0.5
    )
    assert torch.equal(
        stochastic_round(torch.tensor([float("inf")]), torch.Generator().manual_seed(0)).isinf(),
        torch.tensor([True]),
    )


def test_adapters_learn_and_their_base_stays():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = nn.Linear(12, 8, bias=False).requires_grad_(False)
            self.lora_A, self.lora_B = nn.Linear(12, 3, bias=False), nn.Linear(3, 8, bias=False)
            with torch.no_grad():
                self.base_layer.weight.copy_(random(8, 12))
                self.lora_A.weight.copy_(0.3 * random(3, 12, seed=1))
                self.lora_B.weight.zero_()

        def forward(self, x):
            return self.base_layer(x) + self.lora_B(self.lora_A(x))

    model = Adapted()
    base = model.base_layer.weight.detach().clone()
    x = random(64, 12, seed=2)
    target = x @ (base + 0.3 * random(8, 2, seed=3) @ random(2, 12, seed=4)).T
    optimizer = SSO(build_param_groups(model), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(model.base_layer.weight, base)
    assert optimizer.stats()["lora_B.weight"]["lambda"] == [0.0]


# -- state, schedules, compilation
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["torch.save", "dcp", "stochastic"])
def test_ten_and_ten_steps_equal_twenty_bit_for_bit(tmp_path, dtype, how):
    def build():
        params = [
            ("w", parameter(10, 14, dtype=dtype)),
            ("q", parameter(8, 6, dtype=dtype)),
            ("b", parameter(5, dtype=dtype)),
        ]
        master = "stochastic" if how == "stochastic" else "fp32"
        return [p for _, p in params], SSO(params, lr=0.02, master=master)

    params, optimizer = build()
    for seed in range(10):
        step(optimizer, params, seed)
    weights = [p.detach().clone() for p in params]
    if how == "dcp":
        import torch.distributed.checkpoint as dcp

        dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=tmp_path / "c", no_dist=True)
    else:
        torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    resumed, other = build()
    if how == "dcp":
        other.init_state()
        state = {"optimizer": other.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
        state = state["optimizer"]
    else:
        state = torch.load(tmp_path / "state.pt", weights_only=True)
    with torch.no_grad():
        for p, w in zip(resumed, weights, strict=True):
            p.copy_(w)
    other.load_state_dict(state)
    for seed in range(10, 20):
        step(optimizer, params, seed)
        step(other, resumed, seed)
    for a, b in zip(params, resumed, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert {k: t.dtype for k, t in a.items()} == {k: t.dtype for k, t in b.items()}
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("option", "saved", "mine"),
    [
        ("radius_mode", "spectral_mup", "identity"),
        ("radius_scale", 1.0, 2.0),
        ("scale_mode", "spectral_mup", "shape_scaling"),
        ("retract", "hard", "off"),
        ("master", "fp32", "stochastic"),
    ],
)
def test_a_state_of_another_constraint_is_refused_with_both_values(option, saved, mine):
    state = SSO([parameter(4, 6)], **{option: saved}).state_dict()
    with pytest.raises(ValueError, match=rf"{option}={saved!r}.*{option}={mine!r}"):
        SSO([parameter(4, 6)], **{option: mine}).load_state_dict(state)


def test_a_state_of_another_cut_is_refused():
    state = SSO(matrices(parameter(4, 6), atomic=[Atomic(blocks=(2, 2))])).state_dict()
    with pytest.raises(ValueError, match="saved with atomic="):
        SSO([parameter(4, 6)]).load_state_dict(state)


def test_all_state_is_there_before_the_first_step():
    p, b = parameter(4, 6, dtype=torch.bfloat16), parameter(3)
    optimizer = SSO([p, b])
    optimizer.init_state()
    shapes = {k: (tuple(t.shape), t.dtype) for k, t in optimizer.state[p].items()}
    step(optimizer, [p, b], 0)
    assert {k: (tuple(t.shape), t.dtype) for k, t in optimizer.state[p].items()} == shapes
    assert set(shapes) == {"step", "master", "momentum", "v", "lam", "radius"}
    assert shapes["v"] == ((1, 1, 6), torch.float32)  # one vector where the norm is exact anyway
    large = SSO(matrices(q := parameter(72, 40), atomic=[Atomic(blocks=(36, 20, 16))]))
    large.init_state()
    assert large.state[q]["v"].shape == (3, 8, 40)
    twin = copy.deepcopy(optimizer)
    assert len(twin.state) == 2


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_schedulers_change_the_learning_rate_without_recompilation():
    """8 changes by LambdaLR and ReduceLROnPlateau: one compiled graph, and updates that follow the rate."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    p, b = parameter(3, 6), parameter(3)
    p.grad, b.grad = torch.zeros_like(p), torch.zeros_like(b)  # kept: a graph reads them where they are
    optimizer = SSO([p, b], lr=0.1, capturable=True, msign_dtype=torch.float32, momentum=0.0)
    update = torch.compile(optimizer.update, backend=counter)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    moves = []
    for change in range(8):
        p.grad.copy_(random(3, 6, seed=1))
        b.grad.copy_(random(3, seed=1))
        optimizer.prepare()
        lr = optimizer.param_groups[0]["lr"]
        before = p.detach().clone()
        update()
        factor = torch.tensor(optimizer.stats()["group 0, parameter 0"]["retraction"])
        moves.append(float((p.detach() - before * factor).norm()) / lr)
        schedule.step() if change < 4 else plateau.step(1.0)
    assert counter.frame_count == 1
    assert max(moves) == pytest.approx(min(moves), rel=1e-2)  # sqrt(3) s, the norm of Phi


def test_the_step_without_host_reads_equals_the_usual_one():
    found = []
    for capturable in (False, True):
        params = [parameter(20, 24, seed=1), parameter(6)]
        optimizer = SSO(params, lr=0.05, capturable=capturable, msign_dtype=torch.float32, solver_tol=1e-5)
        for seed in range(3):
            step(optimizer, params, seed)
        found.append(params)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="capturable=True needs solver='krylov'"):
        SSO([parameter(3, 3)], capturable=True, solver="bisection")
    with pytest.raises(ValueError, match="capturable=True needs master='fp32'"):
        SSO([parameter(3, 3)], capturable=True, master="stochastic")


def test_accumulated_and_scaled_gradients_work_with_torchs_scaler():
    p = parameter(6, 10)
    optimizer = SSO([p], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    start = p.detach().clone()
    scaler.scale((p * random(6, 10, seed=4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(p, start)
    kept = p.detach().clone()
    p.grad = torch.full_like(p, float("inf"))
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    assert torch.equal(p, kept)
