"""A step on a GPU never makes the host wait: on CUDA tensors without numbers, which need no device.

FakeTensors have a device, a shape and a dtype only, so that whatever looks at a number raises. What else
waits (a copy between host and device, torch.linalg's decompositions) the mode below refuses. The launchers of
the Triton kernels run; the kernels themselves do not. An operator without a kernel runs as its definition.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from icml_kernels.matrices.krylov_sign import reference
from icml_sso import SSO, Atomic, MuonSphere
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

KERNELS = ("small_eigh", "ns_syrk", "rank1_load", "retract_axpy")
DEFINITIONS = {
    "krylov_sign_entry": reference.sign_entry,
    "krylov_sign_root": reference.sign_root,
    "krylov_sign_root_near": reference.sign_root_near,
}
READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2"}
READS |= {"bincount", "repeat_interleave", "allclose", "unique_consecutive", "unique_dim"}
COPIES = {"_to_copy", "copy_", "_copy_from", "_foreach_copy_", "lift_fresh", "_pin_memory"}
NORMS = {"linalg_vector_norm"}  # what a step has of torch.linalg; most of the rest looks at an error code
REFUSALS = (RuntimeError, DataDependentOutputException, DynamicOutputShapeException)


class NoWaits(TorchDispatchMode):
    """Refuses what waits for the device, and counts the operations that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.seen[name] = self.seen.get(name, 0) + 1
        if name in READS or ("linalg" in name and name not in NORMS):
            raise RuntimeError(f"{func} waits for the device")
        if func.namespace == "icml":
            with self:
                return _on_the_device(name)(*args)
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        on_host = [t for t in tensors if t.device.type == "cpu"]
        # Numbers on the host go along with a kernel as its arguments; anything else is copied.
        if on_host and (name in COPIES or any(t.dim() for t in on_host)):
            raise RuntimeError(f"{func} copies between host and device")
        return result


def _on_the_device(name: str) -> Any:
    """What CUDA tensors are given to."""
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    return getattr(import_module(f"icml_kernels.matrices.{name}.triton"), name)


class _Launched:
    """In place of a kernel: ``kernel[grid](...)`` does nothing but count."""

    def __init__(self) -> None:
        self.times = 0

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            self.times += 1

        return launch


@pytest.fixture
def kernels(monkeypatch):
    """Counters in place of the kernels; and tensors without numbers know which of them share memory."""
    counters = {name: _Launched() for name in KERNELS}
    for name, counter in counters.items():
        module = import_module(f"icml_kernels.matrices.{name}.triton")
        monkeypatch.setattr(module, f"{name}_kernel", counter)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda t: t.untyped_storage()._cdata)
    return counters


SHAPES = (
    ((48, 160), Atomic()),
    ((160, 48), Atomic(transpose=True)),
    ((64, 64), Atomic()),
    ((120, 70), Atomic(blocks=(40, 40, 40))),  # heads
    ((90, 70), Atomic(blocks=(20, 25, 20, 25), labels=(0, 1, 0, 1))),
    ((3, 40, 36), Atomic(batch_axes=1)),  # experts
    ((16, 90), Atomic()),  # few rows: by the Gram matrix
    ((1, 50), Atomic()),
    ((50, 1), Atomic()),
    ((34, 34), Atomic(tangent=False, retract="off")),
    ((520, 530), Atomic()),  # products of symmetric matrices have a kernel
)
FEW = (SHAPES[0], SHAPES[6], SHAPES[9], SHAPES[10])  # thousands of operations a shape: all in one case only


def optimizer_of(kind: Any, dtype: torch.dtype, made: Any, options: dict[str, Any], shapes: Any) -> SSO:
    """An optimizer of parameters of some shapes, each made by ``made(shape)``, and of a vector."""
    matrices = [nn.Parameter(made(shape).to(dtype)) for shape, _ in shapes]
    vector = nn.Parameter(made((7,)).to(dtype))
    groups = [
        {"params": matrices, "kind": "matrix", "atomic": [atomic for _, atomic in shapes]},
        {"params": [vector], "kind": "adamw"},
    ]
    return kind(groups, lr=0.01, **options)


def parameters(optimizer: SSO) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def on_cuda(
    mode: FakeTensorMode, kind: Any, dtype: torch.dtype, options: dict[str, Any], shapes: Any = FEW
) -> SSO:
    """An optimizer whose parameters and state lie on a device that is not there, before its second step."""
    generator = torch.Generator().manual_seed(0)
    real = optimizer_of(kind, dtype, lambda shape: torch.randn(shape, generator=generator), options, shapes)
    real.init_state()
    with mode:
        fake = optimizer_of(kind, dtype, lambda shape: torch.empty(shape, device="cuda"), options, shapes)
        for p, q in zip(parameters(real), parameters(fake), strict=True):
            q.grad = torch.empty_like(q)
            fake.state[q] = {
                name: torch.empty(t.shape, dtype=t.dtype, device="cuda") for name, t in real.state[p].items()
            }
        fake.prepare()
    return fake


CASES = {
    "as it comes": (SSO, torch.float32, {}),
    "matrix signs in float32": (SSO, torch.float32, {"msign_dtype": torch.float32}),
    "MuonSphere": (MuonSphere, torch.float32, {}),
    "weights in bfloat16": (SSO, torch.bfloat16, {"momentum_dtype": torch.bfloat16}),
    "weights in float64": (SSO, torch.float64, {"msign_dtype": torch.float64}),
    "soft retraction, decay": (SSO, torch.float32, {"retract": "dynamic", "weight_decay": 0.1}),
    "one by one": (SSO, torch.float32, {"foreach": False, "nesterov": False}),
    "deep spaces": (SSO, torch.float32, {"power_iters": 3, "krylov_dim": 16, "msign_steps": 5}),
    "radius in the update": (SSO, torch.float32, {"scale_update_by_radius": True}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_step_never_waits_for_the_device(case, kernels):
    kind, dtype, options = case
    mode = FakeTensorMode()
    shapes = FEW if options or kind is not SSO else SHAPES
    optimizer = on_cuda(mode, kind, dtype, {"capturable": True, **options}, shapes)
    with mode, NoWaits() as watch:
        optimizer.step()
    assert kernels["small_eigh"].times > 0
    assert kernels["retract_axpy"].times > 0
    assert (kernels["ns_syrk"].times > 0) == (dtype != torch.float64)
    assert (watch.seen.get("krylov_sign_root", 0) > 0) == (kind is SSO)
    assert watch.seen["_foreach_lerp_" if "momentum_dtype" not in options else "lerp"] > 0


@pytest.mark.parametrize(
    ("options", "looks"), [({"power_iters": 4}, False), ({}, True)], ids=["too deep spaces", "not capturable"]
)
def test_what_is_known_to_wait_is_refused(options, looks, kernels):
    """Spaces of more dimensions than the kernel takes; and a step that looks at its results."""
    mode = FakeTensorMode()
    optimizer = on_cuda(mode, SSO, torch.float32, {"capturable": True, **options})
    optimizer.capturable = not looks
    with mode, NoWaits(), pytest.raises(REFUSALS):
        optimizer.update()


WAITS = {
    "item": lambda x, host: x.sum().item(),
    "a branch": lambda x, host: bool((x > 0).any()),
    "float": lambda x, host: float(x[0, 0]),
    "tolist": lambda x, host: x.tolist(),
    "nonzero": lambda x, host: x.nonzero(),
    "a mask": lambda x, host: x[x > 0],
    "equal": lambda x, host: torch.equal(x, x),
    "eigenvalues": lambda x, host: torch.linalg.eigh(x),
    "singular values": lambda x, host: torch.linalg.svd(x),
    "Cholesky": lambda x, host: torch.linalg.cholesky(x),
    "to the host": lambda x, host: x.cpu(),
    "from the host": lambda x, host: x + host.to("cuda"),
    "numbers from the host": lambda x, host: torch.tensor([1.0, 2.0], device="cuda"),
    "copied from the host": lambda x, host: x.copy_(host),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_the_check_sees_each_kind_of_wait(wait):
    with FakeTensorMode():
        x, host = torch.empty(3, 3, device="cuda"), torch.empty(3, 3)
        with NoWaits(), pytest.raises(REFUSALS):
            wait(x, host)
