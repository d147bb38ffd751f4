"""Trajectories by the hundred: one call of the network a step, for all of them together.

An action is the arg-max of masked log flows plus Gumbel noise, so that a forbidden action cannot be drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.distinct import rows_of
from icml_leakgfn.environments import FINISHED, INTERIOR, as_budget

# (states, budgets, conditions, mask) -> logits under the valid flow and under the chemical one.
Policy: TypeAlias = Callable[
    [ndarray, ndarray, "Tensor | None", Tensor], tuple[Float[Tensor, "n actions"], Float[Tensor, "n actions"]]
]


def even_policy(
    states: ndarray, budget: ndarray, condition: Tensor | None, mask: Tensor
) -> tuple[Float[Tensor, "n actions"], Float[Tensor, "n actions"]]:
    """The policy of equal chances for all legal actions, for probes and baselines."""
    flat = torch.zeros(mask.shape)
    return flat, flat


def sample_masked(
    logits: Float[Tensor, "n actions"], mask: Bool[Tensor, "n actions"], generator: torch.Generator
) -> Int[Tensor, " n"]:
    """Draw actions in proportion to exp(logits) among the legal ones.

    Args:
        logits: in any precision; noise is added in float32 at least. -inf is as good as illegal.
        mask: which actions are legal.
        generator: of the noise.

    Raises:
        TypeError: logits that are no floating-point numbers, or a mask that is not Boolean.
        ValueError: a row without a legal action, or with NaN or +inf among the legal ones; with its number.
    """
    if not logits.is_floating_point() or mask.dtype != torch.bool:
        raise TypeError(
            f"logits are {logits.dtype} and the mask {mask.dtype}; expected floating-point numbers and bool"
        )
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    open_ones = torch.where(mask, wide, -torch.inf)
    # The largest is -inf in a row of nothing, and NaN or inf where a row holds one: one look at all rows.
    if len(wide) and not bool(torch.isfinite(open_ones.amax(dim=1)).all()):
        _explain(wide, mask)
    waits = torch.empty_like(wide).exponential_(generator=generator)
    # An exponential of rounding size could be 0, its noise infinite.
    return (open_ones - torch.log(waits.clamp_min_(torch.finfo(wide.dtype).tiny))).argmax(dim=1)


def _explain(wide: Float[Tensor, "n actions"], mask: Bool[Tensor, "n actions"]) -> None:
    """Name the first row from which nothing can be drawn.

    Raises:
        ValueError: always.
    """
    broken = mask & (torch.isnan(wide) | (wide == torch.inf))
    if bool(broken.any()):
        row, action = (int(v) for v in torch.nonzero(broken)[0])
        raise ValueError(f"the log flow of row {row}, action {action} is {float(wide[row, action])}")
    row = int(torch.nonzero(~(mask & (wide > -torch.inf)).any(dim=1))[0])
    raise ValueError(f"row {row} has no action that is legal and has a flow")


@dataclass(frozen=True)
class Trajectories:
    """Visited states, one record each; a trajectory's records stand in order.

    Attributes:
        states: [records, width].
        trajectory: which trajectory a record belongs to.
        step: its place there.
        action: taken from it; the last action, stop, where it was chosen, and -1 where the trajectory was
            ended.
        log_prob: log P_F of the action; 0 where the trajectory was ended, and where it was not asked for.
        done: of the trajectory, [trajectories]: CUT or FINISHED; with truncation "cap" always FINISHED.
        last: the record at which each trajectory ends.
        budget: of each trajectory.
        walks: whether a trajectory was allowed to walk on beyond its budget, by the chemical flow.
        condition: [trajectories, dim], or None.
    """

    states: Int[ndarray, "records width"]
    trajectory: Int[ndarray, " records"]
    step: Int[ndarray, " records"]
    action: Int[ndarray, " records"]
    log_prob: Float[ndarray, " records"]
    done: Int[ndarray, " trajectories"]
    last: Int[ndarray, " trajectories"]
    budget: Int[ndarray, " trajectories"]
    walks: Bool[ndarray, " trajectories"]
    condition: Float[Tensor, "trajectories dim"] | None

    def __len__(self) -> int:
        return len(self.done)

    @property
    def ends(self) -> Int[ndarray, "trajectories width"]:
        """The states at which trajectories end."""
        return self.states[self.last]

    def select(self, chosen: Int[ndarray, " kept"]) -> Trajectories:
        """Some of the trajectories, in the order given."""
        order = np.concatenate(
            [np.flatnonzero(self.trajectory == t) for t in chosen] or [np.zeros(0, dtype=np.int64)]
        )
        sizes = np.array([(self.trajectory == t).sum() for t in chosen], dtype=np.int64)
        return Trajectories(
            self.states[order],
            np.repeat(np.arange(len(chosen)), sizes),
            self.step[order],
            self.action[order],
            self.log_prob[order],
            self.done[chosen],
            np.cumsum(sizes) - 1,
            self.budget[chosen],
            self.walks[chosen],
            rows_of(self.condition, chosen),
        )

    @staticmethod
    def join(parts: list[Trajectories]) -> Trajectories:
        """Several batches as one."""
        trajectories = np.cumsum([0, *(len(p) for p in parts)])
        records = np.cumsum([0, *(len(p.states) for p in parts)])
        shifts = {"trajectory": trajectories, "last": records}
        joined = {}
        for field in fields(Trajectories):
            values = [getattr(p, field.name) for p in parts]
            if field.name == "condition":
                joined[field.name] = None if values[0] is None else torch.cat(values)
                continue
            shift = shifts.get(field.name)
            if shift is not None:
                values = [v + s for v, s in zip(values, shift[:-1], strict=True)]
            joined[field.name] = np.concatenate(values)
        return Trajectories(**joined)


def rollout(
    env: Any,
    policy: Policy,
    n: int,
    *,
    generator: torch.Generator,
    budget: Any = None,
    condition: Float[Tensor, "n dim"] | None = None,
    explore: float = 0.0,
    uniform: float = 0.0,
    walk: float = 0.0,
    temperature: float = 1.0,
    reach: bool = False,
    log_probs: bool = True,
) -> Trajectories:
    """Draw trajectories.

    Args:
        env: the environment.
        policy: gives the log flows of states.
        n: how many.
        generator: of all draws, on the CPU.
        budget: L_max, one for all or one for each; by default the environment's.
        condition: one for each.
        explore: probability of a step by the chemical flow instead of the valid one.
        uniform: probability of a step by equal chances.
        walk: probability that a whole trajectory goes by the chemical flow, and beyond its budget up to the
            horizon.
        temperature: log flows are divided by it.
        reach: forbid actions after which nothing finished can be reached within the budget, or within the
            horizon for those that walk on.
        log_probs: also compute log P_F of the actions, which training does not need.

    Raises:
        ValueError: a budget outside the environment's horizon, a temperature that is not positive, or an
            undefined log flow, with the state.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
    limit = as_budget(budget, env, n)
    walks = (torch.rand(n, generator=generator) < walk).numpy() if walk else np.zeros(n, dtype=bool)
    bound = np.where(walks, env.horizon, limit)
    states, alive = env.reset(n), np.arange(n)
    kept: list[tuple[ndarray, ...]] = []
    done = np.zeros(n, dtype=np.int64)
    for step in range(env.horizon + 1):
        if len(alive) == 0:
            break
        legal = env.mask(states)
        status = env.status(states, bound[alive], legal)
        ended = status != INTERIOR
        if ended.any():
            none = np.full(int(ended.sum()), -1, dtype=np.int64)
            kept.append((states[ended], alive[ended], np.full_like(none, step), none, none * 0.0))
            done[alive[ended]] = status[ended]
            states, alive, legal = states[~ended], alive[~ended], legal[~ended]
            if len(alive) == 0:
                break
        mask = torch.from_numpy(legal)
        given = rows_of(condition, alive)
        valid, chem = policy(states, limit[alive], given, mask)
        logits = torch.where(torch.from_numpy(walks[alive])[:, None], chem, valid)
        if explore:
            looks = torch.rand(len(alive), generator=generator) < explore
            logits = torch.where(looks[:, None], chem, logits)
        if uniform:
            looks = torch.rand(len(alive), generator=generator) < uniform
            logits = torch.where(looks[:, None], torch.zeros_like(logits), logits)
        if reach:
            mask = within_reach(env, states, bound[alive], mask)
        if temperature != 1.0:
            logits = logits / temperature
        try:
            action = sample_masked(logits, mask, generator)
        except ValueError as error:
            raise ValueError(f"{error}; the states begin with {env.label(states[:3])}") from None
        # Where all valid flows underflow to nothing the step is not lost: the floor of λ keeps them finite.
        taken = np.zeros(len(alive))
        if log_probs:
            probs = torch.log_softmax(torch.where(mask, logits, -torch.inf), dim=1)
            taken = probs.gather(1, action[:, None])[:, 0].double().numpy()
        act = action.numpy()
        kept.append((states, alive, np.full(len(alive), step), act, taken))
        stops = act == env.n_actions - 1
        done[alive[stops]] = FINISHED
        states, alive = env.apply(states[~stops], act[~stops]), alive[~stops]
    if env.truncation == "cap":
        done[:] = FINISHED  # what is capped is an object like any other
    return _gathered(env, kept, done, limit, walks, condition)


def within_reach(env: Any, states: ndarray, limit: ndarray, mask: Tensor) -> Tensor:
    """Legal actions that can still end in an object within the limit; all legal ones where none can."""
    able = env.may_finish(states, limit - env.length(states))
    narrowed = mask.clone()
    narrowed[:, :-1] &= torch.from_numpy(able)
    return torch.where(narrowed.any(dim=1, keepdim=True), narrowed, mask)


def _gathered(
    env: Any,
    kept: list[tuple[ndarray, ...]],
    done: ndarray,
    limit: ndarray,
    walks: ndarray,
    condition: Tensor | None,
) -> Trajectories:
    empty = (env.reset(0), *(np.zeros(0, dtype=np.int64) for _ in range(3)), np.zeros(0))
    parts = zip(*(kept or [empty]), strict=True)
    states, trajectory, step, action, log_prob = (np.concatenate(part) for part in parts)
    order = np.lexsort((step, trajectory))
    sizes = np.bincount(trajectory, minlength=len(done))
    return Trajectories(
        states[order],
        trajectory[order],
        step[order],
        action[order],
        log_prob[order],
        done,
        np.cumsum(sizes) - 1,
        limit.copy(),
        walks,
        condition,
    )
