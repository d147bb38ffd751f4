"""Claims about the simulator: right, with right gradients, and fast."""

from __future__ import annotations

import time
from typing import Any

from icml_core import ClaimSuite, Run


def against_neuron(run: Run, seed: int) -> dict[str, float]:
    """Largest difference from NEURON's voltages on a branched cell of its ``hh`` channels: 10 ms of 0.025
    ms."""
    from icml_hhmea.claim_tasks import neuron_gap

    return {"gap": neuron_gap(seed, joints=run.ablation != "no-joints")}


def scheme(run: Run, seed: int) -> dict[str, float]:
    """How the error falls with the step; by how much currents through the membrane miss those that arrive."""
    from icml_hhmea.claim_tasks import convergence_order, current_gap

    gap = current_gap(seed, perturbed=run.ablation == "perturbed-solve")
    return {"order": convergence_order(seed), "current_gap": gap}


def gradients(run: Run, seed: int) -> dict[str, float]:
    """A directional derivative through 50 steps of 20 compartments against central differences."""
    from icml_hhmea.claim_tasks import gradient_error

    return {"error": gradient_error(seed)}


def speed(run: Run, seed: int) -> dict[str, float]:
    """Nanoseconds a compartment and step, one thread, double precision: 200 compartments, the squid's
    channels."""
    import torch
    from icml_kernels import hh_run
    from icml_kernels.neurons.hh_run.cases import arguments, membrane

    nodes, batch, steps = (20, 64, 20) if run.scale == "smoke" else (200, 256, 200)
    given = list(arguments("squid", nodes, batch, steps, seed=seed % 1000))
    given[5], given[6] = 0.1 * given[5][:1].contiguous(), given[6][:1].contiguous()
    table, site = membrane("squid"), torch.tensor([0], dtype=torch.int32)

    def forward(k: int = 0) -> Any:
        wave = given[6][:, : steps - k]
        return hh_run(*given[:6], wave, *given[7:], table, site, dt=0.025)

    def gradient() -> None:
        leaves = [t.clone().requires_grad_() if i in (1, 2, 3, 5) else t for i, t in enumerate(given)]
        hh_run(*leaves, table, site, dt=0.025).trace.sum().backward()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        forward()
        gradient()
        work = nodes * batch * steps
        figures = {"forward_ns": 1e9 * _best(forward) / work, "gradient_ns": 1e9 * _best(gradient) / work}
        begin = time.perf_counter()
        forward(3)
        first = time.perf_counter() - begin
        figures["wait_s"] = max(0.0, first - figures["forward_ns"] * 1e-9 * work)
    finally:
        torch.set_num_threads(threads)
    return figures


def _best(call: Any, repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    oracle = suite.measure(
        seeds={"smoke": 1, "small": 3, "full": 10}, ablations=("no-joints",), needs=("neuron>=9",)
    )(against_neuron)
    suite.claim(
        "equals-neuron",
        of=oracle,
        figure="gap",
        kind="every",
        at_most=1e-8,
        statement="Voltages of a branched cell differ from NEURON's by at most 1e-8 mV.",
        paper="The paper simulates with Jaxley and states no error.",
        teeth="no-joints",
        unit="mV",
    )
    right = suite.measure(seeds={"smoke": 1, "small": 3, "full": 10}, ablations=("perturbed-solve",))(scheme)
    suite.claim(
        "converges-with-order-one",
        of=right,
        figure="order",
        kind="every",
        between=(0.8, 1.2),
        statement="Halving the step halves the error.",
        paper="Implicit Euler.",
    )
    suite.claim(
        "currents-are-conserved",
        of=right,
        figure="current_gap",
        kind="every",
        at_most=1e-9,
        statement="Currents through capacitance and channels are the axial and injected ones at every "
        "node and step.",
        paper="Kirchhoff.",
        teeth="perturbed-solve",
        unit="nA",
    )
    slopes = suite.measure(seeds={"smoke": 1, "small": 3, "full": 10})(gradients)
    suite.claim(
        "gradients-are-exact",
        of=slopes,
        figure="error",
        kind="every",
        at_most=1e-6,
        statement="The adjoint's directional derivative equals central differences to 1e-6.",
        paper="Abstract: a differentiable model.",
    )
    fast = suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, exclusive=True)(speed)
    for name, figure, bound, what in (
        ("forward-is-fast", "forward_ns", 20.0, "A compartment and step takes at most 20 ns."),
        ("gradient-is-fast", "gradient_ns", 100.0, "With the gradient it takes at most 100 ns."),
    ):
        suite.claim(
            name,
            of=fast,
            figure=figure,
            kind="every",
            at_most=bound,
            statement=what,
            paper="Abstract: models are fitted rapidly.",
            unit="ns",
        )
    suite.claim(
        "nothing-waits-for-a-compiler",
        of=fast,
        figure="wait_s",
        kind="every",
        at_most=0.1,
        statement="Another number of steps adds less than 0.1 s to a call.",
        paper="Not in the paper; its simulator compiles for each shape.",
        unit="s",
    )
