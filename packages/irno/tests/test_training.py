"""Training: its loss against the formula, modes, resumption, masks, precision, compilation, processes."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from icml_irno import (
    IRNO,
    FNORefiner,
    Refiner,
    Training,
    TrainingOptions,
    fit,
    fit_base,
    spectral_loss,
    vrmse,
)
from icml_irno.objective import Objective, Truth, detached_loss, unrolled_loss
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operator(seed: int = 0, **options: object) -> IRNO:
    return IRNO(lambda x: 0.5 * x, Refiner(1, 1, base_channels=4, depth=1, dims=1, seed=seed), **options)


def data(n: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    x = random(n, 1, 16)
    return x, x + 0.5 * x.roll(1, -1)


def test_the_unrolled_loss_is_the_papers_formula():
    model = operator(alpha=0.3).double()
    x, y = (t.double() for t in data(4))
    objective = Objective(beta_spec=0.7, lam=(1.0, 2.0))
    truth = Truth.of(y, objective, None)
    found = unrolled_loss(model, x, 0.5 * x, truth, objective, K=3, fp_weight=0.02)
    h, expected = 0.5 * x, 0.0
    for lam in (1.0, 1.5, 2.0):
        h = h + 0.3 * model.refiner(torch.cat([x, h], 1))
        expected += ((h - y) ** 2).mean() + 0.7 * spectral_loss(h, y, lam)
    expected = expected / 3 + 0.02 * (model.refiner(torch.cat([x, y], 1)) ** 2).mean()
    torch.testing.assert_close(found, expected)


def test_activations_that_are_computed_anew_give_the_same_gradient(monkeypatch):
    x, y = data(4)
    objective, gradients = Objective(), []
    for first in (2, 100):
        monkeypatch.setattr("icml_irno.objective.CHECKPOINT_FROM", first)
        model = operator(alpha=0.3)
        unrolled_loss(
            model, x, 0.5 * x, Truth.of(y, objective, None), objective, K=5, fp_weight=0.0
        ).backward()
        gradients.append([p.grad for p in model.refiner.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_the_detached_terms_are_those_of_the_sum_with_gradients_of_one_step():
    model = operator(alpha=0.3).double()
    x, y = (t.double() for t in data(4))
    objective = Objective(beta_spec=0.7)
    truth = Truth.of(y, objective, None)
    parts = [detached_loss(model, x, 0.5 * x, truth, objective, K=3, k=k, fp_weight=0.06) for k in range(3)]
    whole = unrolled_loss(model, x, 0.5 * x, truth, objective, K=3, fp_weight=0.02)
    torch.testing.assert_close(sum(parts) / 3, whole)
    with torch.no_grad():
        h = model.iterates(x, 1)[1]
    step = h + 0.3 * model.refiner(torch.cat([x, h], 1))
    loss = ((step - y) ** 2).mean() + 0.7 * spectral_loss(step, y, 1.5)
    own = torch.autograd.grad(loss, list(model.refiner.parameters()))
    found = torch.autograd.grad(parts[1], list(model.refiner.parameters()))
    for a, b in zip(found, own, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", ["detached", "unroll", "curriculum"])
def test_every_mode_takes_error_away(mode):
    model = operator()
    history = fit(model, data(), data(), mode=mode, epochs=15, batch=8, lr=1e-2)
    assert (model.alpha, model.K) == ((1.0, 3) if mode == "detached" else (0.2, 6))
    rows = history.rows
    assert rows[history.best_epoch]["vrmse"] < 0.6 * history.base_vrmse
    assert history.headroom
    assert history.best_epoch == min(range(15), key=lambda e: rows[e]["mse"])
    x, y = data()
    reached = float(vrmse(model(x), y, reduction="mean").detach())
    assert reached == pytest.approx(rows[history.best_epoch]["vrmse"], rel=1e-4)


def test_what_the_user_chose_goes_before_the_mode():
    model = operator(alpha=0.5, K=4)
    fit(model, data(8), epochs=1)
    assert (model.alpha, model.K) == (0.5, 4)
    fit(model, data(8), epochs=1, alpha=0.25)
    assert (model.alpha, model.K) == (0.25, 4)
    assert TrainingOptions().resolved(operator()).beta_spec == 0.1
    assert TrainingOptions(mode="unroll").resolved(operator()).beta_spec == 1.0


def test_stopped_and_resumed_is_the_same_training(tmp_path):
    options = TrainingOptions(epochs=4, batch=8, lr=1e-2, augment="shift", residual_scale=True)
    whole = operator()
    rows = Training(whole, data(), data(8), options, seed=3).fit().rows
    first, second, file = operator(), operator(), tmp_path / "half.safetensors"
    Training(first, data(), data(8), options, seed=3).fit(until=2, checkpoint=file)
    again = Training(second, data(), data(8), options, seed=3).fit(checkpoint=file, resume=True)
    assert again.rows == rows
    for a, b in zip(whole.refiner.parameters(), second.refiner.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="another training"):
        Training(operator(), data(), data(8), options, seed=4).fit(checkpoint=file, resume=True)
    with pytest.raises(ValueError, match="needs checkpoint="):
        Training(operator(), data(), None, options).fit(resume=True)


class Frames(Dataset):
    """Samples as the Well's dataset gives them: frames last but one axis, fields last."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_fields": random(2, 8, 8, 3, seed=i), "output_fields": random(1, 8, 8, 3, seed=i + 100)}


def test_data_of_every_kind():
    x, y = data()
    kinds = [(x.numpy(), y.numpy()), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=8)]
    results = []
    for kind in kinds:
        model = operator()
        results.append(fit(model, kind, epochs=1, batch=8, lr=1e-2).rows[0]["loss"])
    assert results[0] == results[1]
    assert all(math.isfinite(r) for r in results)
    for kind in (Frames(), DataLoader(Frames(), batch_size=4)):
        model = IRNO(lambda x: x[:, 3:], Refiner(6, 3, base_channels=4, depth=1), K=2)
        assert math.isfinite(fit(model, kind, kind, epochs=1, batch=4).rows[0]["loss"])


def test_frames_lie_side_by_side_oldest_first():
    from icml_irno.batches import Batches

    x, y, _ = next(Batches(Frames(), 2).epoch())
    item = Frames()[1]["input_fields"]
    assert x.shape == (2, 6, 8, 8)
    for t in range(2):
        for f in range(3):
            assert torch.equal(x[1, 3 * t + f], item[t, :, :, f])
    assert y.shape == (2, 3, 8, 8)


def test_what_stands_under_the_mask_reaches_no_gradient():
    mask = torch.ones(16, dtype=torch.bool)
    mask[4:7] = False
    states = []
    for rubbish in (0.0, 1e9, math.nan):
        x, y = (t.clone() for t in data())
        x[..., 4:7], y[..., 4:7] = rubbish, rubbish
        model = operator()
        history = fit(model, (x, y), (x, y), epochs=2, batch=8, lr=1e-2, mask=mask)
        assert math.isfinite(history.rows[-1]["vrmse"])
        states.append([p.detach().clone() for p in model.refiner.parameters()])
    for other in states[1:]:
        for a, b in zip(states[0], other, strict=True):
            assert torch.equal(a, b)
    assert bool(torch.isnan(model(x)[..., 4:7]).all())


def test_masks_of_samples():
    x, y = (t.clone() for t in data(8))
    mask = torch.rand(8, 1, 16, generator=torch.Generator().manual_seed(0)) > 0.2
    y[~mask] = math.nan
    history = fit(operator(), (x, y, mask), epochs=1, batch=4)
    assert math.isfinite(history.rows[0]["loss"])


def test_a_target_that_is_not_finite_is_named():
    x, y = data()
    y = y.clone()
    y[3, 0, 2], y[17] = math.nan, math.inf
    with pytest.raises(ValueError, match="NaN or infinity in samples 3, 17; remove them, or give mask="):
        fit(operator(), (x, y))
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    with pytest.raises(ValueError, match="in samples 3, 17"):
        fit(operator(), loader, epochs=1)


def test_nothing_to_refine_is_said():
    x = random(16, 1, 16)
    y = x + 1e-3 * random(16, 1, 16, seed=1)
    model = IRNO(lambda x: x, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    with pytest.warns(UserWarning, match="no headroom"):
        history = fit(model, (x, y), (x, y), epochs=1, lr=1e-9)
    assert history.headroom is False


def test_a_loss_that_is_not_finite_stops():
    with pytest.raises(FloatingPointError, match="lower lr="):
        fit(IRNO(lambda x: x, Blow(), alpha=1.0, K=1), data(8), epochs=1)


class Blow(nn.Module):
    out_channels = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(math.inf))

    def forward(self, xh: torch.Tensor) -> torch.Tensor:
        return self.weight * xh[:, 1:]


class Odd(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"a": 1}


BAD = {
    "mode": ({"mode": "its"}, "mode='its'"),
    "epochs": ({"epochs": 0}, "epochs and batch from 1 on"),
    "lr": ({"lr": 0.0}, "lr above 0"),
    "lam": ({"lam": (-1.0, 2.0)}, "from 0 on"),
    "fp_warmup": ({"fp_warmup": -1}, "fp_warmup are finite, from 0 on"),
    "beta_fp": ({"beta_fp": math.nan}, "are finite, from 0 on"),
    "beta_spec": ({"beta_spec": math.nan}, "are finite, from 0 on"),
    "lam_nan": ({"lam": (1.0, math.nan)}, "are finite, from 0 on"),
    "clip": ({"clip": math.nan}, "clip from 0 on"),
    "max_steps": ({"max_steps": 0}, "max_steps where it is given"),
    "augment": ({"augment": "flip"}, "augment='flip'"),
    "K": ({"K": 0}, "K=0"),
    "alpha": ({"alpha": -0.1}, "alpha=-0.1"),
}


@pytest.mark.parametrize(("options", "match"), BAD.values(), ids=BAD)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        fit(operator(), data(8), **options)


def test_bad_data():
    x, y = data(8)
    with pytest.raises(TypeError, match="data is a tuple of 1"):
        fit(operator(), (x,))
    with pytest.raises(TypeError, match="data is a int"):
        fit(operator(), 3)
    with pytest.raises(TypeError, match="y has dtype torch.int64"):
        fit(operator(), (x, y.long()))
    with pytest.raises(TypeError, match="complex64"):
        fit(operator(), (x, np.zeros((8, 1, 16), dtype=np.complex64)))
    with pytest.raises(ValueError, match="as many samples"):
        fit(operator(), (x, y[:4]))
    with pytest.raises(ValueError, match="both need one shape"):
        fit(operator(), (x, y.repeat(1, 1, 2)), epochs=1)
    with pytest.raises(ValueError, match="mask has shape"):
        fit(operator(), (x, y, torch.ones(8, 2, 16)))
    with pytest.raises(TypeError, match="a sample has the keys a"):
        fit(operator(), Odd())


def test_bfloat16_and_compilation_train_like_float32():
    results = {}
    for name, options in {"plain": {}, "amp": {"amp": True}}.items():
        model = operator()
        results[name] = fit(model, data(), data(), epochs=6, batch=8, lr=1e-2, **options).rows[-1]["vrmse"]
    assert results["amp"] == pytest.approx(results["plain"], rel=0.15)


@pytest.mark.parametrize("kind", ["unet", "fno"])
def test_a_compiled_step_equals_an_eager_one(kind):
    corrector = (
        Refiner(1, 1, base_channels=4, depth=1, dims=1)
        if kind == "unet"
        else FNORefiner(1, 1, 4, depth=1, modes=4, dims=1)
    )
    model = IRNO(lambda x: 0.5 * x, corrector, alpha=1.0, K=3)
    x, y = data(4)
    objective = Objective(beta_spec=0.5)
    truth = Truth.of(y, objective, None)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return detached_loss(model, x, 0.5 * x, truth, objective, K=3, k=2, fp_weight=0.01)

    parameters = list(corrector.parameters())
    eager = torch.autograd.grad(loss(x), parameters)
    torch._dynamo.reset()
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), parameters)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


PROCESS = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from icml_irno import FNORefiner
rank, world, file, out = int(sys.argv[1]), 2, sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
net = FNORefiner(1, 1, 4, depth=1, modes=4, dims=1)
x = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0))
parallel = DistributedDataParallel(net)
parallel(x[2 * rank : 2 * rank + 2]).square().mean().backward()
if rank == 0:
    torch.save([p.grad for p in net.parameters()], out)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")
def test_two_processes_equal_one(tmp_path):
    code = [sys.executable, "-c", PROCESS]
    arguments = [str(tmp_path / "store"), str(tmp_path / "gradients.pt")]
    workers = [subprocess.Popen([*code, str(rank), *arguments]) for rank in range(2)]
    try:
        assert [w.wait(timeout=400) for w in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    net = FNORefiner(1, 1, 4, depth=1, modes=4, dims=1)
    x = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0))
    net(x).square().mean().backward()
    assert not any(p.is_complex() for p in net.parameters())
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    for a, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-7)


def test_memory_of_a_detached_step_is_that_of_one_iterate():
    """Bytes that autograd keeps between the passes, counted by its own hooks."""

    def kept(K: int, detached: bool) -> int:
        model, total, seen = operator(alpha=0.5), 0, set()
        x, y = data(8)
        objective = Objective(beta_spec=0.0)
        truth = Truth.of(y, objective, None)

        def pack(t: torch.Tensor) -> torch.Tensor:
            nonlocal total
            key = (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes())
            if key not in seen:
                seen.add(key)
                total += key[1]
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            if detached:
                loss = detached_loss(model, x, 0.5 * x, truth, objective, K=K, k=K - 2, fp_weight=0.0)
            else:
                loss = unrolled_loss(model, x, 0.5 * x, truth, objective, K=K, fp_weight=0.0)
            loss.backward()
        return total

    one = kept(1, detached=False)
    assert kept(4, detached=True) <= 1.4 * one
    assert kept(4, detached=False) > 2.5 * one


def test_a_base_is_trained_and_resumed(tmp_path):
    from icml_irno import FNO

    def base() -> FNO:
        return FNO((6,), 1, 1, 6, n_layers=1, positional_embedding=None)

    options = {"epochs": 6, "batch": 8, "lr": 1e-2, "augment": "shift"}
    whole = base()
    rows = fit_base(whole, data(), data(8), **options)
    assert rows[-1]["vrmse"] < 0.7 * rows[0]["vrmse"]
    file = tmp_path / "base.safetensors"

    def stop(row: dict[str, float]) -> None:
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_base(base(), data(), data(8), checkpoint=file, callbacks=[stop], **options)
    second = base()
    assert fit_base(second, data(), data(8), checkpoint=file, resume=True, **options) == rows
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="must be positive"):
        fit_base(base(), data(), epochs=0)


def test_no_warning_in_an_ordinary_training():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(operator(), data(), data(8), epochs=4, batch=8, lr=1e-2)
    assert not [w for w in caught if "icml_irno" in w.filename]


def test_arrays_in_float64_train_a_corrector_in_float32():
    x, y = (t.numpy().astype(np.float64) for t in data(8))
    model = IRNO(None, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    double = fit(model, (x, y), (x, y), epochs=1, batch=4, lr=1e-2).rows
    model = IRNO(None, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    assert double == fit(model, data(8), data(8), epochs=1, batch=4, lr=1e-2).rows
    base = nn.Conv1d(1, 1, 1)
    assert math.isfinite(fit_base(base, (x, y), (x, y), epochs=1)[0]["vrmse"])


def test_a_bad_target_of_shuffled_data_is_named_by_its_own_index():
    class Bad(Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
            return random(1, 16, seed=i), torch.full((1, 16), math.nan if i == 11 else 1.0)

    from icml_irno.batches import Batches

    batches = Batches(Bad(), 4)
    for seed in range(3):
        with pytest.raises(ValueError, match="in samples 11; remove"):
            list(batches.epoch(torch.Generator().manual_seed(seed)))
    with pytest.raises(ValueError, match="in samples 11; remove"):
        list(Batches(DataLoader(Bad(), batch_size=4)).epoch())
    shuffled = DataLoader(Bad(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"in samples \d+ of the loader's batch 0; remove"):
        list(Batches(shuffled).epoch())


def test_channels_that_are_constant_stay_out_of_every_vrmse():
    x = random(16, 2, 16)
    y = x.clone()
    y[:, 1] = 3.0
    model = IRNO(lambda x: 0.5 * x, Refiner(2, 2, base_channels=4, depth=1, dims=1), K=1)
    with pytest.warns(UserWarning, match="are constant"):
        history = fit(model, (x, y), (x, y), epochs=1, lr=1e-9)
    exact = float(vrmse(0.5 * x[:, :1], y[:, :1], reduction="mean"))
    assert history.base_vrmse == pytest.approx(exact, rel=1e-5)
    assert history.rows[0]["vrmse"] < 2
    base = nn.Conv1d(2, 2, 1)
    assert fit_base(base, (x, y), (x, y), epochs=1, lr=1e-3)[0]["vrmse"] < 5


def test_the_vrmse_under_a_mask_is_that_of_the_points_that_exist():
    mask = torch.ones(16, dtype=torch.bool)
    mask[4:12] = False
    x, y = (t.clone() for t in data(8))
    y = y + 100  # a mean far from 0, where zeros under the mask would pass for variance
    model = operator(alpha=1.0, K=1)
    history = fit(model, (x, y), (x, y), epochs=1, lr=1e-9, mask=mask, beta_spec=0.0)
    error = (0.5 * x - y)[..., mask].square().sum(-1) / 16
    deviation = (y[..., mask] - y[..., mask].mean(-1, keepdim=True)).square().sum(-1) / 15
    assert history.base_vrmse == pytest.approx(float(torch.sqrt(error / deviation).mean()), rel=1e-4)


def test_the_scale_of_the_residual_is_its_standard_deviation_over_points_that_exist():
    mask = torch.ones(16, dtype=torch.bool)
    mask[4:7] = False
    x, y = (t.clone() for t in data(20))
    y = y + 5
    spoilt = y.clone()
    spoilt[..., 4:7] = math.nan
    model = operator()
    Training(model, (x, spoilt), None, TrainingOptions(residual_scale=True, batch=8), mask=mask)
    exact = (y - 0.5 * x)[..., mask].std(correction=0)
    assert float(model.scale) == pytest.approx(float(exact), rel=1e-5)


def test_a_number_of_steps_ends_a_training_within_an_epoch(tmp_path):
    def training() -> Training:
        options = TrainingOptions(batch=8, lr=1e-2, max_steps=10)
        return Training(operator(), data(), data(8), options)

    seen: list[int] = []
    whole = training()
    rows = whole.fit(each_step=seen.append).rows
    assert seen == list(range(1, 11))
    assert [row["epoch"] for row in rows] == [0, 1, 2]  # of 4, 4 and 2 batches
    assert rows[-1]["lr"] < 0.1 * 1e-2
    file = tmp_path / "half.safetensors"
    training().fit(until=2, checkpoint=file)
    assert training().fit(checkpoint=file, resume=True).rows == rows


def test_passes_count_the_fixed_point_term_where_it_is_taken():
    counts = {}
    for beta in (0.0, 0.01):
        options = {"mode": "unroll", "K": 2, "epochs": 1, "batch": 8, "beta_fp": beta}
        counts[beta] = fit(operator(), data(8), **options).rows[0]["passes"]
    assert counts == {0.0: 16.0, 0.01: 24.0}


def test_the_fixed_point_term_is_taken_in_float32_under_autocast():
    class Tiny(nn.Module):
        out_channels = 1

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(2, 1, 1)

        def forward(self, xh: torch.Tensor) -> torch.Tensor:
            return self.layer(xh) + 1e-3

    from icml_irno.objective import fixed_point_loss

    x, y = data(4)
    model = IRNO(None, Tiny())
    with torch.autocast("cpu", torch.bfloat16):
        found = fixed_point_loss(model, x, Truth(y, None, None), 1.0)
        expected = model.correction(x, y).float().square().mean()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
