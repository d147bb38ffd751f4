import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from icml_flashschnet.checkpoint import load_model, save_model, weight_shapes
from icml_flashschnet.compression import compress
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from safetensors import safe_open
from safetensors.torch import save_file

CONFIG = SchNetConfig(n_types=4, hidden=6, filters=5, n_rbf=4, r_cut=5.0, layers=2, out=(7, 3), rbf="expnorm")
RELEASED = Path(__file__).parent / "data"


def model(**changes):
    return FlashSchNet(replace(CONFIG, **changes), seed=3, kernel="torch")


def energy(network):
    generator = torch.Generator().manual_seed(1)
    pos = torch.rand(8, 3, generator=generator) * 4
    types = torch.randint(0, 4, (8,), generator=generator)
    return network.energy_forces(pos.to(network.dtype), types)[0].item()


def rewrite(path, *, change=lambda tensors: tensors, **metadata):
    """The same file with other tensors or metadata; None takes a key away."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = {**file.metadata(), **metadata}
    save_file(change(tensors), path, {k: v for k, v in known.items() if v is not None})


@pytest.mark.parametrize("tabulated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_goes_there_and_back(tmp_path, tabulated, dtype):
    network = model().to(dtype)
    if tabulated:
        network, _ = compress(network, tol=1e-5)
    save_model(tmp_path / "m.safetensors", network, notes={"data": "peptides"}, units={"length": "nm"})
    saved = load_model(tmp_path / "m.safetensors", expected=CONFIG, kernel="torch")
    assert saved.network.config == CONFIG
    assert saved.network.dtype == dtype
    assert energy(saved.network) == energy(network)
    assert saved.notes == {"data": "peptides"}
    assert saved.units == {"length": "nm"}
    assert saved.prior is None
    state = network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in saved.network.state_dict().items())
    assert set(weight_shapes(CONFIG, tabulated)) == set(state)


def test_units_are_in_the_file_even_where_nobody_gave_them(tmp_path):
    save_model(tmp_path / "m.safetensors", model())
    assert load_model(tmp_path / "m.safetensors").units == {"length": "Å", "energy": "kcal/mol"}


@pytest.mark.parametrize("file", sorted(RELEASED.glob("model-format-*.safetensors")), ids=lambda f: f.stem)
def test_models_of_released_formats_still_load(file):
    saved = load_model(file, kernel="torch")
    assert energy(saved.network) == pytest.approx(float(saved.notes["energy"]), rel=1e-6)


def test_another_configuration_is_refused_with_the_differing_keys(tmp_path):
    save_model(tmp_path / "m.safetensors", model())
    with pytest.raises(ValueError, match=r"r_cut is 5.0, expected 6.0; layers is 2, expected 3"):
        load_model(tmp_path / "m.safetensors", expected=replace(CONFIG, layers=3, r_cut=6.0))


def test_missing_and_surplus_weights_are_named(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(path, model())

    def renamed(tensors):
        tensors["lin.weight"] = tensors.pop("readout.0.weight")
        return tensors

    rewrite(path, change=renamed)
    with pytest.raises(ValueError, match=r"missing: readout.0.weight; surplus: lin.weight"):
        load_model(path)


def test_hostile_files_are_refused_before_anything_is_built(tmp_path):
    path = tmp_path / "m.safetensors"

    def attempt(message, **options):
        save_model(path, model())
        rewrite(path, **options)
        with pytest.raises(ValueError, match=message):
            load_model(path)

    config = json.loads(json.dumps(CONFIG.__dict__))
    huge = json.dumps({**config, "hidden": 10**12})
    attempt(r"embedding.weight has shape \[4, 6\], the configuration says \[4, 1000000000000\]", config=huge)
    attempt("cannot be a network of 1000000000 layers", config=json.dumps({**config, "layers": 10**9}))
    attempt("filters must be an integer", config=json.dumps({**config, "filters": "5; import os"}))
    attempt("unknown \\['code'\\]", config=json.dumps({**config, "code": "x"}))
    attempt("config is not JSON", config="{")
    attempt("config must be a JSON object", config="[]")
    attempt("has format '2'", format="2")
    attempt("has format 'none'", format=None)
    attempt("no model file of icml-flashschnet: it holds 'other'", kind="other")
    attempt(
        "readout.2.weight holds values that are not finite",
        change=lambda t: {**t, "readout.2.weight": torch.full((1, 3), float("nan"))},
    )
    attempt("must all be float32 or all float64", change=lambda t: {n: v.half() for n, v in t.items()})
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ValueError, match="is no safetensors file"):
        load_model(path)
    with pytest.raises(FileNotFoundError, match="no model file"):
        load_model(tmp_path / "absent.safetensors")


def test_a_half_compressed_model_is_not_saved(tmp_path):
    network = model()
    network.interactions[0].filter = compress(network)[0].interactions[0].filter
    with pytest.raises(ValueError, match="compress all layers or none"):
        save_model(tmp_path / "m.safetensors", network)
    assert not list(tmp_path.iterdir())
