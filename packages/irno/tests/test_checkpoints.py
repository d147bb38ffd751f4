"""Files of correctors: bit-equal in a fresh process, without unpickling, refused where they are damaged."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from icml_core import NeedsError
from icml_irno import (
    FNO,
    IRNO,
    Refiner,
    Statistics,
    load_fno,
    load_irno,
    load_well_base,
    make_refiner,
    save_fno,
    save_irno,
)
from torch import nn


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_fresh_process_gives_the_same_bits(tmp_path, dtype):
    base = FNO((4, 4), 1, 2, 4, n_layers=1, seed=1)
    refiner = Refiner(
        1, 2, base_channels=4, depth=1, padding=("circular", "reflect"), upsampling="periodic", seed=2
    )
    model = IRNO(base.to(dtype).eval().requires_grad_(False), refiner.to(dtype), 0.7, 4, scale=[0.5, 2.0])
    model.lam, model.shape, model.spacing = (0.5, 1.5), (8, 8), (0.1, 0.2)
    x = random(2, 1, 8, 8).to(dtype)
    statistics = Statistics(torch.tensor([1.0]).double(), torch.tensor([2.0]).double())
    save_irno(model, tmp_path / "irno.safetensors", x=statistics, history=3)
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import numpy as np, torch\nfrom icml_irno import load_irno\n"
        f"model, data = load_irno({str(tmp_path / 'irno.safetensors')!r})\n"
        f"x = torch.from_numpy(np.load({str(tmp_path / 'x.npy')!r}))\n"
        "torch.set_num_threads(1)\n"
        f"np.save({str(tmp_path / 'h.npy')!r}, model(x).detach().numpy())\n"
        "assert (model.lam, model.shape, model.spacing) == ((0.5, 1.5), (8, 8), (0.1, 0.2))\n"
        "assert data['history'] == 3\n"
        "assert data['x'].std.tolist() == [2.0] and data['y'] is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = model.eval()(x).detach().numpy()
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(np.load(tmp_path / "h.npy"), expected)


@pytest.mark.parametrize("kind", ["unet", "resnet", "convnext", "fno"])
def test_every_corrector_comes_back_around_another_base(tmp_path, kind):
    options = {"modes": 4} if kind == "fno" else {}
    refiner = make_refiner(kind, 1, 1, base_channels=4, depth=1, dims=1, **options)
    model = IRNO(nn.Sequential(nn.Identity()), refiner, 0.5, 2)
    save_irno(model, tmp_path / "m.safetensors")
    again, _ = load_irno(tmp_path / "m.safetensors", base=nn.Identity())
    x = random(2, 1, 12)
    assert torch.equal(again(x), model.eval()(x))
    alone, _ = load_irno(tmp_path / "m.safetensors")
    assert float(alone(x, K=0).abs().max()) == 0


def test_a_mask_comes_back(tmp_path):
    mask = torch.tensor([True] * 6 + [False] * 2)
    model = IRNO(nn.Identity(), Refiner(1, 1, base_channels=4, depth=1, dims=1), mask=mask)
    save_irno(model, tmp_path / "m.safetensors")
    again, _ = load_irno(tmp_path / "m.safetensors", nn.Identity())
    assert bool(torch.isnan(again(random(1, 1, 8))[..., 6:]).all())


def test_a_base_comes_back(tmp_path):
    base = FNO((4,), 1, 1, 4, n_layers=1, positional_embedding=None, seed=5)
    save_fno(base, tmp_path / "b.safetensors", history=2)
    again, data = load_fno(tmp_path / "b.safetensors")
    x = random(2, 1, 9)
    assert torch.equal(again(x), base.eval()(x))
    assert data["history"] == 2


class Custom(nn.Module):
    out_channels = 1


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        load_irno(tmp_path / "none")
    evil = tmp_path / "evil.safetensors"
    evil.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(ValueError, match="is no safetensors file"):
        load_irno(evil)
    save_fno(FNO((4,), 1, 1, 4, n_layers=1), tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="holds 'icml-irno-fno'; expected a file of icml-irno"):
        load_irno(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="has no config to build it from"):
        save_irno(IRNO(None, Custom()), tmp_path / "c.safetensors")
    model = IRNO(None, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    model.refiner.config["base_channels"] = 5
    save_irno(model, tmp_path / "d.safetensors")
    with pytest.raises(ValueError, match="is damaged"):
        load_irno(tmp_path / "d.safetensors")


def test_published_models_are_read_from_a_folder_only(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks config.json and model.safetensors"):
        load_well_base(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    try:
        import the_well  # noqa: F401
    except ImportError:
        with pytest.raises(NeedsError, match="the-well"):
            load_well_base(tmp_path)
