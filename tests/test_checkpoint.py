"""States of long jobs: they come back bit for bit, and nothing else is taken for one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_core.checkpoint import load_state, save_state, stored_identity
from safetensors.torch import save_file

KIND = "a-training"
WHAT = {"model": {"layers": 2}, "steps": 100}
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal with types, and NaN equal to itself."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@settings(deadline=None)
@given(tree=TREES)
def test_any_tree_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("states") / "state.safetensors"
    save_state(path, {"tree": tree}, kind=KIND, identity=WHAT)
    assert same(load_state(path, kind=KIND, identity=WHAT), {"tree": tree})


def test_an_optimizer_comes_back_and_goes_on_bit_by_bit(tmp_path):
    def training():
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        return layer, torch.optim.AdamW(layer.named_parameters(), lr=0.1, amsgrad=True)

    def steps(layer, optimizer, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            x = torch.full((2, 4), float(step % 3) + 0.5)
            layer(x).square().mean().backward()
            optimizer.step()

    with torch.random.fork_rng():
        whole = training()
        steps(*whole, 0, 10)
        part = training()
        steps(*part, 0, 4)
        path = tmp_path / "state.safetensors"
        state = {"layer": part[0].state_dict(), "optimizer": part[1].state_dict()}
        save_state(path, state, kind=KIND, identity=WHAT)
        again = training()
    read = load_state(path, kind=KIND, identity=WHAT)
    again[0].load_state_dict(read["layer"])
    again[1].load_state_dict(read["optimizer"])
    steps(*again, 4, 10)
    for name, value in whole[0].state_dict().items():
        assert torch.equal(value, again[0].state_dict()[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64])
def test_tensors_of_every_kind(tmp_path, dtype):
    tensors = [
        torch.tensor(1).to(dtype),
        torch.zeros(0, 3, dtype=dtype),
        torch.arange(6).to(dtype).view(2, 3).T,
    ]
    path = tmp_path / "state.safetensors"
    save_state(path, {"tensors": tensors, "dtype": dtype}, kind=KIND, identity=WHAT)
    read = load_state(path, kind=KIND, identity=WHAT)
    assert read["dtype"] is dtype
    for a, b in zip(tensors, read["tensors"], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_a_tensor_that_stands_twice_is_kept_twice(tmp_path):
    shared = torch.arange(3)
    path = tmp_path / "state.safetensors"
    save_state(path, {"a": shared, "b": shared, "c": shared[1:]}, kind=KIND, identity=WHAT)
    read = load_state(path, kind=KIND, identity=WHAT)
    assert [read[name].tolist() for name in "abc"] == [[0, 1, 2], [0, 1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("value", "says"), [({1.5: 0}, "keys"), (object(), "is a object"), ({1, 2}, "is a set")]
)
def test_what_a_checkpoint_does_not_hold(tmp_path, value, says):
    path = tmp_path / "state.safetensors"
    with pytest.raises(TypeError, match=says):
        save_state(path, {"x": value}, kind=KIND, identity=WHAT)
    assert not list(tmp_path.iterdir())


def test_another_training_is_refused_with_the_difference(tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(path, {}, kind=KIND, identity=WHAT)
    other = {"model": {"layers": 3}, "steps": 200}
    with pytest.raises(ValueError, match=r"model.layers was 2, now 3; steps was 100, now 200"):
        load_state(path, kind=KIND, identity=other)
    with pytest.raises(ValueError, match=r"training: model.layers was 2, now 3$"):
        load_state(path, kind=KIND, identity=other, may_differ=("steps",))
    assert load_state(path, kind=KIND, identity={**WHAT, "steps": 9}, may_differ=("steps",)) == {}
    with pytest.raises(ValueError, match="holds 'a-training', not the state of a b-training"):
        load_state(path, kind="b-training", identity=WHAT)


def test_files_that_are_no_checkpoint(tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises(FileNotFoundError):
        load_state(path, kind=KIND, identity=WHAT)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="no safetensors file"):
        load_state(path, kind=KIND, identity=WHAT)
    save_state(path, {"a": torch.ones(1000)}, kind=KIND, identity=WHAT)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no safetensors file"):
        load_state(path, kind=KIND, identity=WHAT)


OURS = {"kind": KIND, "format": "1", "identity": "{}", "tree": "{}"}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"kind": "other"}, "holds 'other'"),
        ({**OURS, "format": "9"}, "format 9"),
        ({**OURS, "identity": "{"}, "metadata are damaged"),
        ({**OURS, "tree": '{"os": 1}'}, "unknown tag 'os'"),
        ({**OURS, "tree": '{"tensor": "b"}'}, "tree is damaged"),
        ({**OURS, "tree": '{"value": 1}'}, "not a dict"),
        (
            {**OURS, "tree": '{"list":[' * 40 + '{"value":1}' + "]}" * 40},
            "nested deeper",
        ),
        ({**OURS, "tree": '{"list":[' * 9999}, "metadata are damaged"),
        ({**OURS, "tree": '{"dict": [[[], {"value": 1}]]}'}, "tree is damaged"),
        ({**OURS, "tree": "[1]"}, "tree is damaged"),
        ({**OURS, "tree": '"text"'}, "tree is damaged"),
        ({**OURS, "tree": '{"dtype": "nn"}'}, "no dtype"),
        ({**OURS, "tree": '{"list": []}'}, "not a dict"),
    ],
)
def test_damaged_checkpoints_are_refused(tmp_path, metadata, message):
    save_file({"a": torch.zeros(1)}, tmp_path / "c.safetensors", metadata)
    with pytest.raises(ValueError, match=message):
        load_state(tmp_path / "c.safetensors", kind=KIND, identity={})


def test_a_file_says_what_it_is_the_state_of(tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(path, {"x": torch.zeros(2)}, kind="thing", identity={"options": {"width": 3}})
    assert stored_identity(path, kind="thing") == {"options": {"width": 3}}
    with pytest.raises(ValueError, match="not the state of a other"):
        stored_identity(path, kind="other")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        stored_identity(tmp_path / "none", kind="thing")
    path.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="is no safetensors file"):
        stored_identity(path, kind="thing")
