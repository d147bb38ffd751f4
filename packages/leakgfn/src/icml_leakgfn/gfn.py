"""The sampler: an environment, a reward, a network with two heads, and the loss that teaches it.

Baselines (flow matching and the three balances) run on the same environment, network and trajectories.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from icml_core.optimizers import torch_optimizer
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from icml_leakgfn import saved
from icml_leakgfn.balance import BALANCES, balance_loss
from icml_leakgfn.collapse import RECENT, variety, warn_of_collapse
from icml_leakgfn.distinct import distinct, rows_of, tags
from icml_leakgfn.environments import CUT, FINISHED, as_budget
from icml_leakgfn.floors import finite_log, least_log_reward
from icml_leakgfn.hindsight import relabelled
from icml_leakgfn.losses import FlowMatchingLoss, LeakLoss, LossParts
from icml_leakgfn.networks import FlatEncoder, Flows, build_network, placement
from icml_leakgfn.options import budget_range, check_shares, further_budgets
from icml_leakgfn.rates import set_rate
from icml_leakgfn.replay import ReplayBuffer
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import Trajectories, rollout, within_reach
from icml_leakgfn.samples import Samples, conditions_for, draw
from icml_leakgfn.transitions import flow_batch, flow_rows

Loss: TypeAlias = Literal["leak", "fm", "tb", "db", "subtb"]
LOSSES: tuple[Loss, ...] = ("leak", "fm", "tb", "db", "subtb")
Callback: TypeAlias = Callable[[int, dict[str, float], "LeakGFN"], None]
_EPS_BELOW = math.log(0.1)  # ε lies this far below the least reward that is known
_VARIETY_EVERY = 10  # steps, where nothing depends on it
_LOG_Z_RATE = 100.0  # log Z of trajectory balance learns as much faster than the network


class LeakGFN:
    """Samples finished objects in proportion to a reward, with trajectories that must be cut at L_max.

    Args:
        env: an environment.
        reward: a function, or a :class:`Reward`.
        net: "graph" (molecules), "mlp", or a module called as :class:`DualHead` is; by default what fits.
        loss: "leak", or a baseline: "fm", "tb", "db", "subtb".
        alpha: weight of the chemical part of the loss.
        gamma: weight of the terminal part.
        eps: floor of flows; by default a tenth of the least reward that is known.
        budget_aware: the λ head is told what remains of the budget.
        budgets: L_max of a trajectory in training is drawn from this range; by default it is the
            environment's.
        reach_mask: λ is 0 where nothing finished can be reached within the budget.
        explore: probability of a step by the chemical flow.
        uniform: probability of a step by equal chances; the exploration of the baselines.
        walk: probability of a whole trajectory by the chemical flow, on beyond the budget to the
            environment's horizon, which makes F_chem the flow of the full space; by default 0.25 where the
            horizon is longer than L_max. Its objects are scored beyond L_max too, since F_chem ends in them;
            replay, the figures of training and ``stop_on_collapse`` leave such trajectories out.
        replay: share of a batch that is drawn from the best trajectories so far.
        score_all: also evaluate the reward of visited objects that were not finished; of "leak" and "fm", for
            the balances learn from the ends of trajectories alone.
        cut_reward: R of what is cut off, for the baselines; by default the least reward.
        anchor: see :class:`LeakLoss`.
        uniform_backward: see :class:`LeakLoss`.
        hindsight: under how many further budgets each trajectory is learnt, see :func:`relabelled`; by
            default 1 where ``budgets`` is a range.
        optimizer: any by name, see ``icml_core.optimizers``.
        lr: learning rate.
        decay_steps: the learning rate falls to a hundredth over so many steps along a cosine; None: it stays.
        hidden: width of the network.
        layers: of perceptron and heads.
        message_steps: of the graph network.
        log: the reward is a function that gives log R.
        stop_on_collapse: end the training when the share of different objects among the last 100 is below
            this.
        dtype: of the network.
        seed: of weights, exploration and everything else.
        device: "auto", "cpu", "cuda", ...
        debug: verify in every step that parents hold the taken edges.

    Raises:
        TypeError: a dtype that is no floating-point type.
        ValueError: another loss, a share outside 0 to 1, or budgets beyond the horizon.
    """

    def __init__(
        self,
        env: Any,
        reward: Any,
        *,
        net: str | nn.Module | None = None,
        loss: Loss = "leak",
        alpha: float = 0.1,
        gamma: float = 10.0,
        eps: float | None = None,
        budget_aware: bool = True,
        budgets: tuple[int, int] | None = None,
        reach_mask: bool = False,
        explore: float = 0.05,
        uniform: float = 0.0,
        walk: float | None = None,
        replay: float = 0.0,
        replay_size: int = 1000,
        score_all: bool = False,
        cut_reward: float | None = None,
        anchor: bool = True,
        uniform_backward: float = 0.0,
        hindsight: int | None = None,
        optimizer: str = "adam",
        lr: float = 5e-4,
        decay_steps: int | None = None,
        hidden: int = 128,
        layers: int = 2,
        message_steps: int = 8,
        log: bool = False,
        stop_on_collapse: float | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        device: str = "auto",
        debug: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in saved.OPTIONS}
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r} is none of {', '.join(LOSSES)}")
        leak = loss == "leak"
        longer = env.horizon > env.max_length
        walk = (0.25 if leak and longer else 0.0) if walk is None else walk
        check_shares(explore=explore, uniform=uniform, replay=replay, walk=walk)
        if not lr > 0:
            raise ValueError(f"lr={lr} must be positive")
        self.env, self.reward, self.loss = env, as_reward(reward, log=log), loss
        self._weights: dict[str, Any] = {"gamma": gamma, "alpha": alpha, "uniform_backward": uniform_backward}
        LeakLoss(0.0, **self._weights)  # refuses what it cannot use
        self.anchor = anchor
        self.reach_mask, self.score_all, self.debug = reach_mask, score_all, debug
        self.explore = explore if leak else 0.0
        self.uniform = uniform if leak or uniform else explore
        self.walk, self.replay = (walk if leak else 0.0), replay
        self.budgets = budget_range(budgets, env)
        self.hindsight = further_budgets(hindsight, leak and self.budgets[0] < self.budgets[1])
        self.given_eps, self.cut_reward = eps, cut_reward
        finite_log(eps, 0.0)
        finite_log(cut_reward, 0.0)
        self.log_eps: float | None = None
        self.log_least = 0.0
        self.stop_on_collapse, self.decay_steps, self.lr = stop_on_collapse, decay_steps, lr
        self.seed, self.step = seed, 0
        kind = net or ("graph" if hasattr(env, "library") else "mlp")
        aware = budget_aware and leak
        if isinstance(kind, nn.Module):
            self.net: nn.Module = kind
        else:
            self.net = build_network(
                env,
                kind,
                hidden=hidden,
                layers=layers,
                steps=message_steps,
                budget_aware=aware,
                conditions=self.reward.dim,
                seed=seed,
            )
        if hasattr(self.net, "with_fraction"):
            # Trajectory balance has a parameter log Z, unless it depends on a condition.
            has_state = loss in BALANCES and (loss != "tb" or self.reward.dim > 0)
            self.net.with_fraction, self.net.with_state = leak, has_state
        self._merges = not isinstance(getattr(self.net, "encoder", None), FlatEncoder)
        self.device, self.dtype = placement(device, dtype)
        self.net.to(self.device, dtype)
        self.log_z = nn.Parameter(torch.zeros((), device=self.device, dtype=dtype))
        name = kind if isinstance(kind, str) else type(kind).__name__
        own = {"net": name, "dtype": str(dtype).split(".")[-1], "conditions": self.reward.dim}
        self.options: dict[str, Any] = given | own
        self.optimizer = torch_optimizer(optimizer)(list(self.net.named_parameters()), lr=lr)
        self.z_optimizer = torch.optim.Adam([self.log_z], lr=lr * _LOG_Z_RATE)
        self.generator = torch.Generator().manual_seed(seed)
        self.buffer = ReplayBuffer(replay_size)
        self.history_: list[dict[str, float]] = []
        self.recent_: list[tuple[str, float]] = []
        self.collapsed_ = False

    def set_reward(self, reward: Any, *, log: bool = False) -> None:
        """Go on with another reward; ε is found anew, and what was kept for replay is dropped."""
        new = as_reward(reward, log=log)
        if new.dim != self.reward.dim:
            raise ValueError(
                f"the new reward has {new.dim} conditions; the network was built for {self.reward.dim}"
            )
        self.reward, self.log_eps = new, None
        self.buffer = ReplayBuffer(self.buffer.capacity, temperature=self.buffer.temperature)

    def evaluate(self, states: ndarray, budget: ndarray, condition: Tensor | None = None) -> Flows:
        """The network's log flows at states."""
        features = {k: v.to(self.device) for k, v in self.env.features(states).items()}
        left = torch.from_numpy(np.asarray(budget - self.env.length(states), dtype=np.int64)).to(self.device)
        if condition is not None:
            condition = condition.to(self.device, self.dtype)
        flows: Flows = self.net(features, left, condition)
        return flows

    def _logits(self, flows: Flows) -> tuple[Tensor, Tensor]:
        """Log flows of all actions, stop last, on the CPU."""
        stop = flows.stop[:, None]
        chem = torch.cat([flows.chem, stop], dim=1).cpu()
        if self.loss != "leak":
            return chem, chem
        return torch.cat([flows.chem + flows.log_fraction, stop], dim=1).cpu(), chem

    @torch.no_grad()
    def policy(
        self, states: ndarray, budget: ndarray, condition: Tensor | None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log flows of all actions, stop last: of the valid flow and of the chemical one.

        Equal states are evaluated once, unless the network costs less than finding them out. The mask, which
        :func:`rollout` hands to every policy, is not used: who draws masks the flows.
        """
        if not self._merges:
            return self._logits(self.evaluate(states, budget, condition))
        rows, inverse = distinct(states, tags(budget, condition))
        flows = self.evaluate(states[rows], budget[rows], rows_of(condition, rows))
        place = torch.from_numpy(inverse)
        valid, chem = self._logits(flows)
        return valid[place], chem[place]

    def log_policy(
        self,
        states: ndarray,
        max_length: int | None = None,
        condition: Tensor | None = None,
        *,
        chemical: bool = False,
    ) -> Float[ndarray, "n actions"]:
        """log P_F(a | s) of all actions, stop last, -inf where an action is not legal; NaN where nothing
        is. ``chemical``: by the chemical flow instead of the valid one, λ left out.
        """
        budget = as_budget(max_length, self.env, len(states))
        mask = torch.from_numpy(self.env.mask(states))
        if condition is not None:
            condition = torch.as_tensor(condition).expand(len(states), -1)
        logits = self.policy(states, budget, condition)[int(chemical)]
        if self.reach_mask:
            mask = within_reach(self.env, states, budget, mask)
        return torch.log_softmax(torch.where(mask, logits.double(), -torch.inf), dim=1).numpy()

    def fit(
        self,
        steps: int = 10_000,
        batch: int = 8,
        *,
        callbacks: Sequence[Callback] = (),
        total: int | None = None,
    ) -> LeakGFN:
        """Train.

        Args:
            steps: further steps.
            batch: trajectories a step, replayed ones included.
            callbacks: called after each step with its number, its figures, and this object.
            total: instead of ``steps``: train up to this step.

        Raises:
            ValueError: counts that are not positive, a reward that cannot be used, or a loss that is not
                finite.
        """
        if steps < 0 or batch < 1:
            raise ValueError(f"steps={steps} and batch={batch}; expected at least 0 and 1")
        self._find_eps()
        until = self.step + steps if total is None else total
        while self.step < until and not self.collapsed_:
            figures = self._train(batch)
            self.history_.append(figures)
            for callback in callbacks:
                callback(self.step, figures, self)
        return self

    @property
    def history(self) -> Any:
        """The figures of all steps: a pandas data frame, or a list of dicts where pandas is missing."""
        try:
            import pandas as pd
        except ImportError:
            return self.history_
        return pd.DataFrame(self.history_)

    def _find_eps(self) -> None:
        """ε, from what was given or below the least reward that is known."""
        if self.log_eps is not None:
            return
        self.log_least = least_log_reward(self.env, self.reward, self.budgets[1], self.seed + 1)
        lowest = self.log_least if self.loss == "leak" else min(self.log_least, self.log_cut())
        self.log_eps = finite_log(self.given_eps, lowest + _EPS_BELOW)
        if self.log_eps >= self.log_least:
            warnings.warn(
                f"eps={math.exp(self.log_eps):.3g} is not below the least reward "
                f"{math.exp(self.log_least):.3g}; objects near it are drawn too rarely",
                stacklevel=3,
            )

    def _train(self, batch: int) -> dict[str, float]:
        replayed = self.buffer.draw(round(self.replay * batch), self.generator)
        fresh = batch - (0 if replayed is None else len(replayed))
        trajectories = self._explore(fresh) if fresh else None
        parts = [p for p in (trajectories, replayed) if p is not None]
        if self.hindsight:
            copies = (self.budgets, self.generator, self.hindsight)
            parts += [relabelled(self.env, part, *copies) for part in parts]
        parted, log_reward = self._loss(Trajectories.join(parts) if len(parts) > 1 else parts[0])
        if not bool(torch.isfinite(parted.total)):
            raise ValueError(
                f"the loss of step {self.step + 1} is {float(parted.total)}; lower the learning rate "
                "or check the reward"
            )
        set_rate(self.optimizer, self.lr, self.step, self.decay_steps)
        set_rate(self.z_optimizer, self.lr * _LOG_Z_RATE, self.step, self.decay_steps)
        self.optimizer.zero_grad()
        self.z_optimizer.zero_grad()
        parted.total.backward()
        self.optimizer.step()
        if self.loss == "tb" and self.log_z.grad is not None:
            self.z_optimizer.step()
        self.step += 1
        figures = {"step": self.step, "loss": float(parted.total.detach())}
        if self.loss in ("leak", "fm"):
            figures |= {k: float(v.detach()) for k, v in parted._asdict().items() if k != "total"}
        if trajectories is not None:
            figures |= self._judge(trajectories, log_reward[:fresh])
        return figures

    def _explore(self, n: int) -> Trajectories:
        low, high = self.budgets
        budget = torch.randint(low, high + 1, (n,), generator=self.generator).numpy()
        return rollout(
            self.env,
            self.policy,
            n,
            generator=self.generator,
            budget=budget,
            condition=self.reward.sample_conditions(n, self.generator),
            explore=self.explore,
            uniform=self.uniform,
            walk=self.walk,
            reach=self.reach_mask,
            log_probs=False,
        )

    def log_cut(self) -> float:
        """log R of what is cut off, for the baselines; in LeakGFN it is worth nothing."""
        if self.loss == "leak":
            return -math.inf
        return finite_log(self.cut_reward, self.log_least)

    def _loss(self, trajectories: Trajectories) -> tuple[LossParts, Float[ndarray, " n"]]:
        """The loss of a batch, and log R of its ends, NaN where they are worth nothing."""
        assert self.log_eps is not None
        if self.loss in BALANCES:
            log_z = self.log_z if self.loss == "tb" and not self.reward.dim else None
            total, log_reward = balance_loss(
                self.env,
                trajectories,
                self.reward,
                self.evaluate,
                self.loss,
                log_cut=self.log_cut(),
                log_z=log_z,
            )
            none = torch.zeros_like(total)
            return LossParts(total, none, none, none, none), log_reward
        batch = flow_batch(
            self.env,
            trajectories,
            self.reward,
            log_cut=self.log_cut(),
            score_all=self.score_all,
            check=self.debug,
        )
        flows = self.evaluate(batch.states, batch.budget, batch.condition)
        leak = self.loss == "leak"
        # Where budgets vary, the horizon is the full space, the chemical flow the valid one of that budget.
        closed = self.env.horizon > self.env.max_length or self.budgets[0] < self.budgets[1]
        loss: Any = LeakLoss(self.log_eps, anchor=self.anchor, **self._weights)
        if not leak:
            loss = FlowMatchingLoss(self.log_eps, gamma=self._weights["gamma"])
        rows = flow_rows(
            self.env,
            batch,
            flows,
            reach=self.reach_mask and leak,
            closed_end=closed,
            fraction=leak,
            single_edges=leak and self._weights["uniform_backward"] > 0,
        )
        parts = loss(rows)
        return parts, batch.log_reward[batch.visited[trajectories.last]]

    def _judge(self, trajectories: Trajectories, log_reward: Float[ndarray, " n"]) -> dict[str, float]:
        """What was drawn, and whether one object fills the batches."""
        own = ~trajectories.walks  # a walk is drawn by the chemical flow, and may end beyond L_max
        ended = own & (trajectories.done == FINISHED)
        if self.replay:
            self.buffer.add(trajectories, np.where(ended, log_reward, -math.inf))
        good = ended & np.isfinite(log_reward)
        names = [key.hex() for key in self.env.key(trajectories.ends[good])]
        self.recent_ = (self.recent_ + list(zip(names, log_reward[good].tolist(), strict=True)))[-RECENT:]
        figures: dict[str, float] = {}
        if own.any():
            figures["cut"] = float((trajectories.done[own] == CUT).mean())
        if good.any():
            figures["mean_log_reward"] = float(log_reward[good].mean())
        if self.stop_on_collapse is None and self.step % _VARIETY_EVERY:
            return figures
        shares = variety(self.recent_)
        if shares and self.stop_on_collapse is not None and shares["unique"] < self.stop_on_collapse:
            self.collapsed_ = True
            warn_of_collapse(self.step, shares, self.stop_on_collapse)
        return figures | shares

    def sample(
        self,
        n: int,
        *,
        seed: int | torch.Generator | None = None,
        temperature: float = 1.0,
        max_length: int | Sequence[int] | None = None,
        condition: Float[Tensor, "n dim"] | None = None,
        explore: float = 0.0,
    ) -> Samples:
        """Draw objects by the valid flow.

        Args:
            n: how many.
            seed: of the draws; by default this object's own, which goes on.
            temperature: log flows are divided by it; below 1 draws the likelier more often.
            max_length: L_max; with ``budget_aware`` any that it was trained for.
            condition: one row for all, or one for each; by default drawn as in training.
            explore: probability of a step by the chemical flow, which leaks; 1 leaves λ out.

        Raises:
            ValueError: a negative number, a condition of a wrong shape, or what :func:`rollout` refuses.
        """
        if n < 0:
            raise ValueError(f"n={n} is negative")
        generator: Any = self.generator if seed is None else seed
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator().manual_seed(generator)
        limit = as_budget(max_length if max_length is not None else self.env.max_length, self.env, n)
        given = conditions_for(self.reward, n, condition, generator)
        return draw(
            self.env,
            self.reward,
            self.policy,
            n,
            generator=generator,
            budget=limit,
            condition=given,
            explore=explore,
            temperature=temperature,
            reach=self.reach_mask,
        )

    def save(self, path: str | Path) -> None:
        """Write network, optimizer, random state and replayed trajectories into one safetensors file."""
        saved.save(self, Path(path))

    def restore(self, path: str | Path) -> LeakGFN:
        """Take up what :meth:`save` wrote, by an object that was constructed alike.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no such file of this kind, or of another environment or construction.
        """
        saved.restore(self, Path(path))
        return self

    @classmethod
    def load(cls, path: str | Path, env: Any, reward: Any, **options: Any) -> LeakGFN:
        """An object from a file, constructed with the options that the file holds.

        Args:
            path: the file.
            env: an environment like the one of the file.
            reward: the reward, which no file holds.
            options: ``device``, ``dtype``, and a ``net`` that was a module.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no such file of this kind, or another environment, with what differs.
        """
        held = saved.saved_options(Path(path), saved.OPTIONS | {"net"})
        if held.get("budgets") is not None:
            held["budgets"] = tuple(held["budgets"])
        return cls(env, reward, **(held | options)).restore(path)
