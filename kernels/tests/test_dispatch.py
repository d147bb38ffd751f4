"""Registration of raw operators, the choice of a route, and what goes wrong with a message."""

from __future__ import annotations

import warnings

import pytest
import torch
from icml_kernels import dispatch, segment_sum_csr
from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op, route, routes
from icml_kernels.testing import check_route, use_route
from torch import Tensor


def double(x: Tensor) -> Tensor:
    return 2 * x


def triple(x: Tensor) -> Tensor:
    """Stands for an implementation that is wrong, so that a test sees which one ran."""
    return 3 * x


def halves(x: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    return x / 2 + offset, x / 2 - offset


def sums(x: Tensor, shifts: list[float]) -> Tensor:
    return x + sum(shifts)


OP = raw_op("test_double", double, fake=torch.empty_like, cpu=f"{__name__}:triple", cuda=f"{__name__}:triple")
HALVES = raw_op("test_halves", halves, fake=lambda x, offset: (torch.empty_like(x), torch.empty_like(x)))
SUMS = raw_op("test_sums", sums, fake=lambda x, shifts: torch.empty_like(x))


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch):
    """Under the importlib mode of pytest a test module has no name to import."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _Here)


class _Here:
    triple = staticmethod(triple)


def test_the_route_decides_which_code_runs():
    x = torch.ones(2)
    assert OP(x).tolist() == [3.0, 3.0]
    with use_route("reference"):
        assert OP(x).tolist() == [2.0, 2.0]
    assert OP(x).tolist() == [3.0, 3.0]


def test_unknown_route_is_named(monkeypatch):
    monkeypatch.setenv("ICML_KERNELS", "fast")
    with pytest.raises(ValueError, match="ICML_KERNELS='fast' is not one of auto, reference, triton"):
        route()


def test_triton_on_the_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with use_route("triton"), pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1"):
        OP(torch.ones(2))


def test_without_an_implementation_the_definition_runs():
    assert [t.tolist() for t in HALVES(torch.ones(1), 1.0)] == [[1.5], [-0.5]]


def test_schema_comes_from_the_annotations():
    assert str(torch.ops.icml.test_halves.default._schema) == (
        "icml::test_halves(Tensor x, float offset) -> (Tensor, Tensor)"
    )


def test_a_raw_operator_refuses_to_drop_a_gradient():
    with pytest.raises(RuntimeError, match=r"icml::test_double is a raw operator without a derivative"):
        OP(torch.ones(2, requires_grad=True))
    with torch.no_grad():
        assert OP(torch.ones(2, requires_grad=True)).tolist() == [3.0, 3.0]


def test_a_vmapped_call_loops_over_the_batch():
    batch = torch.arange(6.0).reshape(3, 2)
    first, second = torch.func.vmap(lambda x: HALVES(x, 1.0))(batch)
    assert torch.equal(first, batch / 2 + 1)
    assert torch.equal(second, batch / 2 - 1)
    assert torch.equal(torch.func.vmap(OP, in_dims=1)(batch), 3 * batch.T)
    assert torch.equal(torch.func.vmap(lambda x: SUMS(x, [1.0, 0.5]))(batch), batch + 1.5)


def test_shapes_are_known_without_computing():
    out = OP(torch.empty(4, device="meta"))
    assert (out.device.type, out.shape) == ("meta", (4,))


@pytest.mark.parametrize("missing", ["library", "compiler"])
def test_gpu_without_triton_runs_the_definition_and_says_so_once(missing, monkeypatch):
    if missing == "library":
        monkeypatch.setitem(__import__("sys").modules, "triton", None)
    else:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", "")
    for cached in (dispatch._triton_works, dispatch._implementation):
        cached.cache_clear()
    try:
        with pytest.warns(UserWarning, match="icml-kernels runs plain torch") as given:
            chosen = [
                dispatch._implementation("cuda", "auto", double, None, f"{__name__}:triple") for _ in range(2)
            ]
        assert chosen == [double, double]
        assert len(given) == 1
    finally:
        for cached in (dispatch._triton_works, dispatch._implementation):
            cached.cache_clear()


def test_forward_mode_inside_forward_mode_is_refused():
    """PyTorch would give wrong numbers without a word."""
    ptr = torch.tensor([0, 2], dtype=torch.int32)

    def f(x):
        return (segment_sum_csr(x, ptr) ** 3).sum()

    x = torch.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="forward mode inside forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(f))(x)
    assert torch.func.hessian(f)(x).tolist() == [[18.0, 18.0], [18.0, 18.0]]


class _Cube(torch.autograd.Function):
    """x^3, whose derivative is another Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx, x_t):
        (x,) = ctx.saved_tensors
        return x_t * 3 * x**2


cube = differentiable(_Cube)


def test_nested_gradients_survive_compilation():
    """Dynamo, left to trace into a Function, gives 0 for the outer one."""

    def curvature(x):
        slope = torch.func.grad(lambda x: cube(x).sum())
        return torch.func.grad(lambda x: slope(x).sum())(x)

    x = torch.tensor([1.0, -2.0])
    assert curvature(x).tolist() == [6.0, -12.0]
    assert torch.compile(curvature, fullgraph=True, backend="aot_eager")(x).tolist() == [6.0, -12.0]


def test_a_wrong_implementation_is_caught():
    def wrong_on_the_cpu(x):
        return _WRONG(x)

    class _Wrong(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return OP(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    _WRONG = differentiable(_Wrong)
    with pytest.raises(AssertionError, match=r"result 0 of shape \[2\] differs by 1 of 2"):
        check_route(wrong_on_the_cpu, (torch.ones(2, dtype=torch.float64),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_route(wrong_on_the_cpu, (torch.ones(2, dtype=torch.float64),), route="reference")


def test_routes_are_named_in_words(monkeypatch):
    monkeypatch.delenv("ICML_KERNELS", raising=False)
    assert routes()["cpu"].startswith("numba ")
    monkeypatch.setenv("ICML_KERNELS", "reference")
    assert set(routes().values()) == {"plain torch, as ICML_KERNELS=reference asks"}
    monkeypatch.setenv("ICML_KERNELS", "fast")
    with pytest.raises(ValueError, match="not one of auto, reference, triton"):
        routes()
