"""Losses in log space, on rows of (state, reward) records.

LeakGFN (sums over all parents of s; ε keeps logarithms finite):

    I_v = log(ε + Σ F_valid(p, a))     O_v = log(ε + Σ_a F_valid(s, a) + F_stop(s))
    I_c = log(ε + Σ F_chem(p, a))      O_c = log(ε + Σ_a F_chem(s, a) + F_stop(s))
    L = γ mean_{d in 1, 2} (I_v - log(ε + R))^2
        + mean_{d in 0, 1} (I_v - O_v)^2 + α mean_{d in 0, 1} (I_c - O_c)^2

The target is log(ε + R) where the paper has log R: both sides carry ε, so that a vanishing loss gives
F = R exactly, and F = 0 where R is 0. A state that is cut off (d = 1) ends the valid flow, yet is an ordinary
interior state of the chemical one: this asymmetry is the method. Plain flow matching has one flow and takes
the cut-off state for a terminal one.

Where an object can be made in several ways these equations fix the sum of the flows into a state and not the
parents' shares, in either flow. A further term (ours) pulls both to equal shares,

    L_back = mean over edges (p, a) -> s of (log(ε / n_s + F(p, a)) - log((ε + Σ F) / n_s))^2,   n_s parents,

which leaves the policy's distribution as it is and determines λ = F_valid / F_chem.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_leakgfn.environments import CUT, FINISHED, INTERIOR

LOW = -1e30  # stands for -inf where a row has nothing: log-sum-exp of nothing but -inf has no gradient


class EdgesIn(NamedTuple):
    """Log flows of single edges into rows, for the term that gives parents equal shares.

    Attributes:
        valid: log F_valid.
        chem: log F_chem.
        row: the row that an edge leads into.
        parents: how many edges lead into that row.
    """

    valid: Float[Tensor, " edges"]
    chem: Float[Tensor, " edges"]
    row: Int[Tensor, " edges"]
    parents: Float[Tensor, " edges"]


class FlowRows(NamedTuple):
    """What a batch of states is to satisfy; a row a state, and one for each object that was finished there.

    Attributes:
        inflow_valid: log Σ F_valid over the parents, -inf for the empty object.
        inflow_chem: the same of F_chem.
        outflow_valid: log of the valid outflow, -inf where there is none.
        outflow_chem: log of the chemical outflow.
        stop: log F_stop.
        done: INTERIOR, CUT or FINISHED within the row's budget.
        log_end: log of what the valid inflow is to be where the row ends, NaN elsewhere.
        log_reward: log R of the object where it was finished, NaN elsewhere.
        stopped: how often stop was chosen or forced here.
        count: how often the state was visited.
        root: the empty object, which has no inflow.
        beyond: the state lies beyond its budget, where the chemical flow alone is defined.
        edges: single edges into the rows, where equal shares of parents are wanted.
    """

    inflow_valid: Float[Tensor, " n"]
    inflow_chem: Float[Tensor, " n"]
    outflow_valid: Float[Tensor, " n"]
    outflow_chem: Float[Tensor, " n"]
    stop: Float[Tensor, " n"]
    done: Int[Tensor, " n"]
    log_end: Float[Tensor, " n"]
    log_reward: Float[Tensor, " n"]
    stopped: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    root: Bool[Tensor, " n"]
    beyond: Bool[Tensor, " n"]
    edges: EdgesIn | None = None


class LossParts(NamedTuple):
    """The loss, and what it is made of before the coefficients."""

    total: Float[Tensor, ""]
    terminal: Float[Tensor, ""]
    conservation: Float[Tensor, ""]
    chemical: Float[Tensor, ""]
    backward: Float[Tensor, ""]


def log_outflow(
    edge: Float[Tensor, "n edges"],
    legal: Bool[Tensor, "n edges"],
    stop: Float[Tensor, " n"],
    may_stop: Bool[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """log of the sum over legal edges and stop; about -1e30 where nothing flows out.

    Args:
        edge: log flows of actions.
        legal: which of them count.
        stop: log F_stop.
        may_stop: where it counts.
    """
    flows = torch.cat([edge, stop[:, None]], dim=1)
    counted = torch.cat([legal, may_stop[:, None]], dim=1)
    return torch.logsumexp(torch.where(counted, flows, -math.inf).clamp_min(LOW), dim=1)


def _weighted(residual: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Sum of weighted squares and of the weights; what has weight 0 may be infinite."""
    used = weight > 0
    square = torch.where(used, residual, 0).square()
    return (square * weight).sum(), weight.sum()


def _mean(*parts: tuple[Tensor, Tensor]) -> Tensor:
    total = torch.stack([p[0] for p in parts]).sum()
    return total / torch.stack([p[1] for p in parts]).sum().clamp_min(1.0)


def _shares(
    flow: Float[Tensor, " edges"],
    log_in: Float[Tensor, " n"],
    edges: EdgesIn,
    weight: Float[Tensor, " n"],
    log_eps: Tensor,
) -> tuple[Tensor, Tensor]:
    """How far edges into a state are from equal shares of what flows in, each state counted once.

    Args:
        flow: log flows of the edges.
        log_in: log(ε + Σ F) of each row.
        edges: where they lead.
        weight: of each row.
        log_eps: log ε.
    """
    log_parents = torch.log(edges.parents)
    residual = torch.logaddexp(log_eps - log_parents, flow) - log_in[edges.row] + log_parents
    return _weighted(residual, weight[edges.row] / edges.parents)


def _check_ends(rows: FlowRows, ends: Bool[Tensor, " n"]) -> None:
    if bool(torch.isnan(rows.log_end[ends]).any()) or bool(
        torch.isnan(rows.log_reward[rows.stopped > 0]).any()
    ):
        raise ValueError("a row ends without a reward; records hold a state and its reward together")


class LeakLoss:
    """The loss of LeakGFN.

    Args:
        log_eps: log ε; it must lie below the least log R.
        gamma: of the terminal part; 10 in the paper.
        alpha: of the chemical part; 0.1 in two official configurations, 0 and 10 in others.
        anchor: whether finished states conserve the chemical flow too (ours): then F_chem is the flow of the
            full space, and λ = F_valid / F_chem is determined in trees; False is the paper's.
        uniform_backward: weight of the term that gives all parents of a state equal shares in both flows
            (ours): then λ is determined in graphs with several ways to an object too. Rows need ``edges``.

    Raises:
        ValueError: ε that is not positive and finite, or a negative coefficient.
    """

    def __init__(
        self,
        log_eps: float,
        *,
        gamma: float = 10.0,
        alpha: float = 0.1,
        anchor: bool = True,
        uniform_backward: float = 0.0,
    ) -> None:
        if not math.isfinite(log_eps):
            raise ValueError(f"log_eps={log_eps} must be finite")
        if gamma < 0 or alpha < 0 or uniform_backward < 0:
            raise ValueError(
                f"gamma={gamma}, alpha={alpha} and uniform_backward={uniform_backward} must not be negative"
            )
        self.log_eps, self.gamma, self.alpha, self.anchor = log_eps, gamma, alpha, anchor
        self.uniform_backward = uniform_backward

    def __call__(self, rows: FlowRows) -> LossParts:
        """The loss of a batch of rows.

        Raises:
            ValueError: a row that ends without a reward, or rows without edges where equal shares are asked
                for.
        """
        log_eps = rows.stop.new_tensor(self.log_eps)
        done, inner = rows.done, ~rows.root & ~rows.beyond
        weight = rows.count
        ends = (done != INTERIOR) & inner
        _check_ends(rows, ends)
        in_valid, out_valid, in_chem, out_chem, stop = (
            torch.logaddexp(log_eps, value)
            for value in (
                rows.inflow_valid,
                rows.outflow_valid,
                rows.inflow_chem,
                rows.outflow_chem,
                rows.stop,
            )
        )
        terminal = _mean(
            _weighted(in_valid - torch.logaddexp(log_eps, rows.log_end), weight * ends),
            _weighted(stop - torch.logaddexp(log_eps, rows.log_reward), rows.stopped),
        )
        goes_on = (done != FINISHED) & inner
        conservation = _mean(_weighted(in_valid - out_valid, weight * goes_on))
        whole = ~rows.root & (rows.beyond | self.anchor | (done != FINISHED))
        chemical = _mean(_weighted(in_chem - out_chem, weight * whole))
        total = self.gamma * terminal + conservation + self.alpha * chemical
        backward = torch.zeros_like(total)
        if self.uniform_backward:
            if rows.edges is None:
                raise ValueError("uniform_backward needs rows with edges; rows_from_edges keeps them")
            valid = _shares(rows.edges.valid, in_valid, rows.edges, weight * inner, log_eps)
            chem = _shares(rows.edges.chem, in_chem, rows.edges, weight * ~rows.root, log_eps)
            backward = _mean(valid, chem)
            total = total + self.uniform_backward * backward
        return LossParts(total, terminal, conservation, chemical, backward)


class FlowMatchingLoss:
    """Plain flow matching (Bengio et al. 2021): one flow, and a state that is cut off is terminal.

    Args:
        log_eps: log ε.
        gamma: of the terminal part.

    Raises:
        ValueError: ε that is not positive and finite, or a negative coefficient.
    """

    def __init__(self, log_eps: float, *, gamma: float = 10.0) -> None:
        if not math.isfinite(log_eps) or gamma < 0:
            raise ValueError(f"log_eps={log_eps} must be finite and gamma={gamma} not negative")
        self.log_eps, self.gamma = log_eps, gamma

    def __call__(self, rows: FlowRows) -> LossParts:
        """The loss of a batch of rows, whose chemical flow is the only one."""
        log_eps = rows.stop.new_tensor(self.log_eps)
        inner = ~rows.root & ~rows.beyond
        ends = (rows.done != INTERIOR) & inner
        _check_ends(rows, ends)
        inflow, outflow, stop = (
            torch.logaddexp(log_eps, value) for value in (rows.inflow_chem, rows.outflow_chem, rows.stop)
        )
        terminal = _mean(
            _weighted(inflow - torch.logaddexp(log_eps, rows.log_end), rows.count * ends),
            _weighted(stop - torch.logaddexp(log_eps, rows.log_reward), rows.stopped),
        )
        goes_on = (rows.done == INTERIOR) & inner
        conservation = _mean(_weighted(inflow - outflow, rows.count * goes_on))
        none = torch.zeros_like(terminal)
        return LossParts(self.gamma * terminal + conservation, terminal, conservation, none, none)


def detailed_balance(
    log_flow: Float[Tensor, "n steps"],
    log_forward: Float[Tensor, "n steps"],
    log_backward: Float[Tensor, "n steps"],
    log_reward: Float[Tensor, " n"],
    length: Int[Tensor, " n"],
) -> Float[Tensor, ""]:
    """Mean of (log F(s) + log P_F - log F(s') - log P_B)^2 over all steps; log F of the end is log R.

    Args:
        log_flow: of the states of each trajectory, step after step.
        log_forward: log P_F of the action taken; the last one ends the trajectory.
        log_backward: log P_B of the same step; 0 for the last one.
        log_reward: of the end.
        length: steps of each trajectory, the ending one included.
    """
    steps = torch.arange(log_flow.shape[1], device=log_flow.device)
    last = steps == (length - 1)[:, None]
    following = torch.cat([log_flow[:, 1:], log_flow[:, :1]], dim=1)
    following = torch.where(last, log_reward[:, None], following)
    residual = log_flow + log_forward - following - log_backward
    return _mean(_weighted(residual, (steps < length[:, None]).to(log_flow.dtype)))


def trajectory_balance(
    log_z: Float[Tensor, " n"],
    log_forward: Float[Tensor, "n steps"],
    log_backward: Float[Tensor, "n steps"],
    log_reward: Float[Tensor, " n"],
) -> Float[Tensor, ""]:
    """Mean of (log Z + Σ log P_F - log R - Σ log P_B)^2 (Malkin et al. 2022); steps beyond the end hold 0."""
    return (log_z + log_forward.sum(1) - log_reward - log_backward.sum(1)).square().mean()


def subtrajectory_balance(
    log_flow: Float[Tensor, "n steps"],
    log_forward: Float[Tensor, "n steps"],
    log_backward: Float[Tensor, "n steps"],
    log_reward: Float[Tensor, " n"],
    length: Int[Tensor, " n"],
    decay: float = 0.9,
) -> Float[Tensor, ""]:
    """Mean of the squared residuals of all subtrajectories, weighted by decay^length (Madan et al. 2023).

    Args:
        log_flow: as in :func:`detailed_balance`.
        log_forward: as there.
        log_backward: as there.
        log_reward: as there.
        length: as there.
        decay: λ of the paper, in 0 to 1.

    Raises:
        ValueError: a decay outside 0 to 1.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay} must lie in 0 to 1, without 0")
    n, steps = log_flow.shape
    gain = torch.cat([log_flow.new_zeros(n, 1), (log_forward - log_backward).cumsum(1)], dim=1)
    at = torch.arange(steps + 1, device=log_flow.device)
    ended = at == length[:, None]
    flow = torch.cat([log_flow, log_flow.new_zeros(n, 1)], dim=1)
    flow = torch.where(ended, log_reward[:, None], flow)
    # residual[i, j] of the piece from i to j: log F_i + gain_j - gain_i - log F_j.
    height = flow - gain
    residual = height[:, :, None] - height[:, None, :]
    apart = at[None, :] - at[:, None]
    weight = torch.where(apart > 0, decay ** apart.clamp_min(1).to(log_flow.dtype), 0)
    kept = weight * (at <= length[:, None])[:, None, :]
    kept = kept / kept.sum(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    return torch.where(kept > 0, residual, 0).square().mul(kept).sum(dim=(1, 2)).mean()


def rows_from_edges(
    log_chem_in: Float[Tensor, " edges"],
    log_fraction_in: Float[Tensor, " edges"],
    ptr: Int[Tensor, " n_1"],
    log_chem_out: Float[Tensor, "n actions"],
    log_fraction_out: Float[Tensor, "n actions"],
    log_stop: Float[Tensor, " n"],
    done: Int[Tensor, " n"],
    log_reward: Float[Tensor, " n"],
    *,
    legal: Bool[Tensor, "n actions"] | None = None,
    may_stop: Bool[Tensor, " n"] | None = None,
) -> FlowRows:
    """Rows for :class:`LeakLoss` from log flows of edges, as any flow-matching code has them.

    Args:
        log_chem_in: log F_chem of the edges into each state.
        log_fraction_in: log λ of the same edges.
        ptr: where each state's incoming edges begin; a state without any is the empty object.
        log_chem_out: log F_chem of each state's actions.
        log_fraction_out: log λ of the same actions.
        log_stop: log F_stop.
        done: 0 interior, 1 cut off, 2 finished.
        log_reward: log R where a state ends, -inf where it is worth nothing; anything elsewhere.
        legal: which actions are legal; by default all.
        may_stop: where stop is legal; by default where the state is not cut off.

    Raises:
        TypeError: log flows that are no floating-point numbers, or ``done`` that holds no integers.
        ValueError: different numbers of states.
    """
    from icml_kernels import segment_logsumexp

    flows = (log_chem_in, log_fraction_in, log_chem_out, log_fraction_out, log_stop, log_reward)
    if not all(flow.is_floating_point() for flow in flows) or done.is_floating_point():
        kinds = ", ".join(str(flow.dtype) for flow in flows)
        raise TypeError(
            f"log flows and rewards are {kinds}, done {done.dtype}; expected floating-point numbers, and "
            "integers for done"
        )
    n = len(log_stop)
    sizes = {len(done), len(log_reward), len(log_chem_out), len(log_fraction_out), len(ptr) - 1}
    if sizes != {n}:
        raise ValueError(f"there are {n} log_stop, but {sorted(sizes)} states elsewhere; all must agree")
    legal = torch.ones_like(log_chem_out, dtype=torch.bool) if legal is None else legal
    may_stop = done != CUT if may_stop is None else may_stop
    ends = done != INTERIOR
    bounds = ptr.to(torch.int32)
    undefined = torch.full_like(log_reward, math.nan)
    log_valid_in = log_chem_in + log_fraction_in
    return FlowRows(
        segment_logsumexp(log_valid_in, bounds),
        segment_logsumexp(log_chem_in, bounds),
        log_outflow(log_chem_out + log_fraction_out, legal, log_stop, may_stop & (done != CUT)),
        log_outflow(log_chem_out, legal, log_stop, may_stop),
        log_stop,
        done,
        torch.where(ends, log_reward, undefined),
        torch.where(done == FINISHED, log_reward, undefined),
        (done == FINISHED).to(log_stop.dtype),
        torch.ones_like(log_stop),
        ptr[1:] == ptr[:-1],
        torch.zeros_like(done, dtype=torch.bool),
        edges_in(log_valid_in, log_chem_in, ptr),
    )


def edges_in(
    log_valid: Float[Tensor, " edges"], log_chem: Float[Tensor, " edges"], ptr: Int[Tensor, " n_1"]
) -> EdgesIn:
    """Single edges into rows, from where each row's edges begin."""
    parents = torch.diff(ptr).long()
    row = torch.repeat_interleave(torch.arange(len(parents), device=ptr.device), parents)
    return EdgesIn(log_valid, log_chem, row, parents[row].to(log_chem))
