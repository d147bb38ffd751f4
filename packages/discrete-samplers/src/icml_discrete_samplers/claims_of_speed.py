"""The claim on the hot loop: all prefixes of a known path in one call, first layers incrementally."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

SIZES = {"smoke": (6, 8, 4), "small": (256, 256, 128), "full": (256, 256, 128)}  # D, hidden, batch


def off_policy_update(run: Run, seed: int) -> dict[str, float]:
    """Seconds of a whole off-policy update: states noised back, energy, log F, loss, gradient, AdamW; all
    prefixes at once, and one call of the network a step.

    The same numbers come out of both. The ablation evaluates both step by step.
    """
    import time

    import torch
    from torch import nn

    from icml_discrete_samplers.checks import evaluate
    from icml_discrete_samplers.energies import from_callable
    from icml_discrete_samplers.losses import log_variance
    from icml_discrete_samplers.masked import path_log_prob, path_log_prob_step_by_step, roll_back
    from icml_discrete_samplers.networks import MaskedMLP

    D, hidden, batch = SIZES[run.scale]
    model = MaskedMLP(D, 2, hidden, 2, seed).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator(device=run.device).manual_seed(seed)
    coupling = torch.randn(D, D, generator=g, device=run.device) / D
    energy = from_callable(lambda x: ((x.float() @ coupling) * x).sum(1), D, 2)
    states = torch.randint(0, 2, (batch, D), generator=g, device=run.device)

    def seconds(function) -> float:  # type: ignore[no-untyped-def]
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            path = roll_back(states, 1, g)
            loss = log_variance(evaluate(energy, path.x) - function(model, path).double())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            float(loss.detach())  # waits for the device
            best = min(best, time.perf_counter() - begin)
        return best

    path = roll_back(states, 1, g)
    with torch.no_grad():
        gap = (path_log_prob(model, path) - path_log_prob_step_by_step(model, path)).abs().max()
    at_once = path_log_prob_step_by_step if run.ablation == "step-by-step" else path_log_prob
    return {
        "at_once": seconds(at_once),
        "step_by_step": seconds(path_log_prob_step_by_step),
        "difference": float(gap) / D,
    }


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(
        seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("step-by-step",), exclusive=True
    )(off_policy_update)
    suite.claim(
        "parallel-evaluation-is-three-times-as-fast",
        of=measure,
        figure="step_by_step",
        baseline="at_once",
        kind="ratio",
        at_least=3.0,
        statement="An off-policy update, D = 256, batch 128: with all prefixes at once it takes a third of "
        "one with a call a step, or less.",
        paper="The official code makes one network call a step although the end is known.",
        unit="ratio of seconds",
        teeth="step-by-step",
    )
    suite.claim(
        "parallel-evaluation-is-the-same",
        of=measure,
        figure="difference",
        kind="every",
        at_most=1e-5,
        statement="Both give the same log-probability a site, in single precision.",
        paper="An identity.",
        unit="nats a site",
    )
