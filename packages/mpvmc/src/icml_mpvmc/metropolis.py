"""Metropolis chains whose log-density is of low precision, with two corrections that are exact.

The chain is an exact one for π̃ = π exp(δ). ``"reweight"`` gives each sample the weight exp(-δ), which costs
nothing since log π is evaluated anyway. ``"delayed"`` accepts each block of proposals x → y with min(1,
exp(δ(x) - δ(y))): detailed balance of the block under π̃ then makes the chain stationary under π, for any
precision.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from icml_kernels import largest_hidden_angle, metropolis_draws, rbm_metropolis
from torch import Tensor, nn

from icml_mpvmc.chains import split_r_hat
from icml_mpvmc.hamiltonian import Hamiltonian, Sector, as_spins, in_sectors, random_states
from icml_mpvmc.lattices import magnetisation
from icml_mpvmc.lowered import LogDensity
from icml_mpvmc.models import RBM, amplitude_of
from icml_mpvmc.precision import DTYPES, check_precision, device_of, ladder, precision_name
from icml_mpvmc.rules import CustomRule, Rule
from icml_mpvmc.samples import Samples, log_weights

Correction = Literal["reweight", "delayed"]
STARTS = 100
"""How often a start of probability 0 is drawn again."""
LARGEST_ANGLE = 300.0
"""Angles of a Boltzmann machine up to which its compiled chains are used."""
FEW_ACCEPTED = 1e-4
_DELAYED_STREAM = 1
DRAWS_AT_ONCE = 2**20
"""Random numbers of dense chains that are drawn at once."""


class Metropolis:
    """Chains that sample |ψ|².

    A restricted Boltzmann machine whose proposals are single flips or exchanges is walked by a compiled loop
    whose proposals cost its hidden units (``incremental``); parameters are rounded to ``dtype``, angles kept
    in float32. Anything else is evaluated densely, all chains in one batch of fixed shape.

    Args:
        model: a module that gives log ψ, or a function that gives log π of its rows.
        n_spins: how many spins.
        rule: see ``Rule``.
        n_chains: chains side by side.
        dtype: ``"bf16"``, ``"f16"``, ``"tf32"``, ``"f32"``, ``"f64"``, or ``"auto"``: the fastest of this
            device, which ``VMC`` exchanges for a higher one where the bias would show.
        correction: None, ``"reweight"`` or ``"delayed"``.
        sweep: proposals between two samples of a chain; as many as spins by default.
        upcast: keep sums in float32 in low precision.
        seed: of starts and proposals.
        block: K, proposals between two exact evaluations of delayed acceptance; a sweep by default.
        total_sz: magnetisation Σσz/2 that is conserved, or None.
        sectors: groups of spins whose sums are conserved, instead of ``total_sz``.
        pairs: pairs [P, 2] for exchanges.
        incremental: use the compiled loop where there is one.
        force: allow float16 on a CPU.
        start: states ±1 [n_chains, n_spins] that the chains start from instead of random ones.
        density: what the chains see instead of the model, a module that gives log ψ or a function that gives
            log π; δ is then its difference from the model, and corrections are for the model.

    Raises:
        ValueError: sizes that are not positive, an unknown dtype, correction or rule, ``block`` below 1,
            float16 on a CPU without ``force``, a rule that leaves the sectors or cannot reach all of their
            states, or a wavefunction that is zero at 100 starts.
        FloatingPointError: the precision cannot hold log ψ; with ``"auto"`` the next one is tried.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], Tensor],
        n_spins: int,
        rule: str | CustomRule = "flip",
        n_chains: int = 1024,
        dtype: str | torch.dtype = "bf16",
        correction: Correction | None = None,
        sweep: int | None = None,
        upcast: bool = True,
        seed: int = 0,
        *,
        block: int | None = None,
        total_sz: float | None = None,
        sectors: Sequence[Sector] = (),
        pairs: np.ndarray | None = None,
        incremental: bool = True,
        force: bool = False,
        start: Tensor | None = None,
        density: nn.Module | Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if n_spins < 1 or n_chains < 1 or (sweep is not None and sweep < 1):
            raise ValueError(f"n_spins={n_spins}, n_chains={n_chains}, sweep={sweep}; all must be at least 1")
        if correction not in (None, "reweight", "delayed"):
            raise ValueError(f"correction={correction!r}; expected None, 'reweight' or 'delayed'")
        if block is not None and block < 1:
            raise ValueError(
                f"block={block}; delayed acceptance needs K >= 1 proposals between exact evaluations"
            )
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed={seed}; expected 0 <= seed < 2**63")
        self.model, self.n_spins, self.n_chains = model, n_spins, n_chains
        self.density = density
        self.device = device_of(model)
        name = precision_name(dtype, auto=True)
        self.auto, self.force = name == "auto", force
        self.dtype = ladder(self.device)[0] if self.auto else name
        check_precision(self.dtype, self.device, force=force)
        self.correction, self.upcast, self.seed = correction, upcast, seed
        self.sweep = sweep or n_spins
        self.block = block or self.sweep
        self.sectors = tuple(sectors) or magnetisation(n_spins, total_sz)
        self.rule = Rule(rule, n_spins, self.sectors, pairs, self.device)
        self.incremental = incremental and density is None
        self._chain = torch.arange(n_chains, device=self.device)
        self.walks_incrementally = False
        """Whether proposals go through the compiled loop."""
        self._exact_log_p: Tensor | None = None
        self._build()
        if start is None:
            self._first_start(seed)
        else:
            self.step = self.blocks = 0
            self.x = start
            self.refresh()
        self.rule.probe(self.x, seed)

    def _first_start(self, seed: int) -> None:
        """Start in the first precision that holds log ψ."""
        while True:
            try:
                return self.restart(seed)
            except FloatingPointError:
                steps = ladder(self.device)
                place = steps.index(self.dtype) + 1 if self.dtype in steps else len(steps)
                if not self.auto or place >= len(steps):
                    raise
                self.dtype = steps[place]
                self._build()

    @property
    def x(self) -> Tensor:
        """Where the chains are, int8 [chains, spins]; may be set.

        Raises:
            ValueError: on setting: another shape, spins other than ±1, or states outside the sectors.
        """
        return self._x

    @x.setter
    def x(self, value: Tensor) -> None:
        x = as_spins(value, self.n_spins, device=self.device)
        if len(x) != self.n_chains:
            raise ValueError(f"{len(x)} states were given for {self.n_chains} chains")
        if not bool(in_sectors(x, self.sectors).all()):
            raise ValueError("the states are not in the sectors that the chains keep (total_sz)")
        self._x = x.clone()
        self._exact_log_p = None

    @classmethod
    def for_hamiltonian(cls, H: Hamiltonian, model: nn.Module, **options: Any) -> Metropolis:
        """A sampler with a Hamiltonian's sectors and pairs, by exchanges where something is conserved.

        With several sectors (molecules) one or two exchanges are proposed: single ones often lead to states
        without amplitude, in which chains would stick.
        """
        options.setdefault("rule", default_rule(H.sectors))
        pairs = H.exchange_pairs if H.sectors and len(H.exchange_pairs) else None
        return cls(model, H.n_spins, sectors=H.sectors, pairs=pairs, **options)

    def _build(self) -> None:
        seen = self.model if self.density is None else self.density
        self._low = LogDensity(seen, self.dtype, upcast=self.upcast, rows=self.n_chains)
        self._exact = LogDensity(self.model, "f64")
        self._exact_log_p = None

    def set_precision(self, dtype: str | torch.dtype) -> None:
        """Go on in another precision; the chains stay where they are.

        Raises:
            FloatingPointError: it cannot hold log ψ where the chains are; they stay in the old one.
        """
        name = precision_name(dtype)
        check_precision(name, self.device, force=self.force)
        before = self.dtype
        self.dtype = name
        self._build()
        try:
            self.refresh()
            self._log_p = self._low_density(self.x)
        except FloatingPointError:
            self.dtype = before
            self._build()
            raise

    def _can_be_compiled(self) -> bool:
        machine = amplitude_of(self.model) if isinstance(self.model, nn.Module) else None
        if not (self.incremental and type(machine) is RBM and self.upcast and self.rule.from_table):
            return False
        rounded = [
            p.detach().to(DTYPES[self.dtype]).double()
            for p in (machine.weight, machine.hidden_bias, machine.visible)
        ]
        if not all(bool(torch.isfinite(p).all()) for p in rounded):
            sizes = (p.detach().abs().max() for p in machine.parameters())
            largest = max(float(s) for s in sizes)
            raise FloatingPointError(
                f"a parameter overflows {DTYPES[self.dtype]}: |value| up to {largest:.2g}; use bf16 or "
                "rescale"
            )
        return largest_hidden_angle(rounded[0], rounded[1]) < LARGEST_ANGLE

    def restart(self, seed: int | None = None) -> None:
        """New chains from random states; of states where ψ = 0 up to 100 others are tried.

        Raises:
            ValueError: chains are left where ψ = 0.
        """
        self.seed = self.seed if seed is None else seed
        self.step = self.blocks = 0
        self.refresh()
        generator = torch.Generator().manual_seed(self.seed)
        self.x = random_states(self.n_chains, self.n_spins, self.sectors, generator).to(self.device)
        for _ in range(STARTS):
            dead = torch.isneginf(self._low_density(self.x))
            if not bool(dead.any()):
                break
            new = random_states(self.n_chains, self.n_spins, self.sectors, generator).to(self.device)
            self.x = torch.where(dead[:, None], new, self.x)
        else:
            raise ValueError(
                f"ψ = 0 at the start of {int(dead.sum())} of {self.n_chains} chains after {STARTS} tries; "
                "check the model, or give start=states where it is not zero"
            )
        self._log_p = self._low_density(self.x)

    def refresh(self) -> None:
        """Take the model's parameters anew; ``sample`` does so by itself.

        Raises:
            FloatingPointError: a parameter overflows the precision.
        """
        self._exact_log_p = None
        self._low.refresh()
        self._exact.refresh()
        self.walks_incrementally = self._can_be_compiled()

    def log_density(self, x: Tensor) -> Tensor:
        """log π̃ as the chains see it, in the shape in which they see it.

        Raises:
            ValueError: spins of another number, or other than ±1.
        """
        x = as_spins(x, self.n_spins, device=self.device)
        self.refresh()
        return self._low_density(x)

    def sample(self, n: int, discard: int = 5, *, seed: int | None = None) -> Samples:
        """Draw ``n`` states, ``n / n_chains`` from each chain, a sweep apart.

        Chains go on from where they were; the parameters are those that the model has now.

        Args:
            n: how many.
            discard: sweeps before the first.
            seed: start the chains anew from this seed.

        Raises:
            ValueError: n is no multiple of the number of chains.
            FloatingPointError: the precision cannot hold log ψ.
            RuntimeError: all samples are equal.
        """
        if n < 0 or n % self.n_chains:
            raise ValueError(
                f"n={n} is no multiple of n_chains={self.n_chains}; every chain gives as many samples"
            )
        if discard < 0:
            raise ValueError(f"discard={discard} is negative")
        if seed is not None:
            self.restart(seed)
        self.refresh()
        self._log_p = self._low_density(self.x)
        draws = n // self.n_chains
        x = torch.empty(self.n_chains, draws, self.n_spins, dtype=torch.int8, device=self.device)
        low = torch.empty(self.n_chains, draws, dtype=torch.float64, device=self.device)
        before, moved, tried, kept, blocks = self.step, 0, 0, 0, 0
        if draws:
            self._walk(discard * self.sweep)
        for k in range(draws):
            accepted, blocks_kept, count = self._walk(self.sweep)
            moved, kept, blocks = moved + accepted, kept + blocks_kept, blocks + count
            tried += self.sweep * self.n_chains
            x[:, k], low[:, k] = self.x, self._log_p
        x, low = x.reshape(n, self.n_spins), low.reshape(n)
        log_p = self._exact(x)
        acceptance = moved / tried if tried else float("nan")
        self._look(x, acceptance, tried)
        delta = low - log_p
        offset = float(delta.mean()) if n else 0.0
        delta = delta - offset
        return Samples(
            x=x,
            log_p=log_p,
            delta=delta,
            log_w=log_weights(delta) if self.correction == "reweight" else None,
            acceptance=acceptance,
            n_chains=self.n_chains,
            dtype=self.dtype,
            block_acceptance=kept / blocks if blocks else 1.0,
            proposals=(self.step - before) * self.n_chains,
            offset=offset,
        )

    def thermalise(self, r_hat: float = 1.05, max_sweeps: int = 2000, *, every: int = 20) -> int:
        """Walk until R̂ of log π̃ and of the magnetisations of the later half is below ``r_hat``.

        Returns:
            The sweeps made.

        Raises:
            RuntimeError: it is not below after ``max_sweeps``; says what it is.
            ValueError: fewer than two chains.
        """
        if self.n_chains < 2:
            raise ValueError("R̂ compares chains; n_chains=1 cannot be thermalised by it")
        self.refresh()
        self._log_p = self._low_density(self.x)
        signs = (-1) ** torch.arange(self.n_spins, device=self.device)
        series: list[Tensor] = []
        worst = math.inf
        for done in range(1, max_sweeps + 1):
            self._walk(self.sweep)
            spins = self.x.double()
            series.append(torch.stack([self._log_p.double(), spins.sum(1), (spins * signs).sum(1)]))
            if done % every == 0:
                later = torch.stack(series[done // 2 :], -1).cpu().numpy()
                worst = max(split_r_hat(part) for part in later)
                if worst < r_hat:
                    return done
        raise RuntimeError(
            f"the chains have R̂ = {worst:.3g} after {max_sweeps} sweeps and not {r_hat}: they sit in "
            "separate wells; use larger moves (rule='flip:2' makes one or two flips), more sweeps, or start "
            "them elsewhere"
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the chains are: all that sampling depends on besides the model."""
        return {
            "x": self.x.clone(),
            "step": self.step,
            "blocks": self.blocks,
            "seed": self.seed,
            "dtype": self.dtype,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Another number of chains is filled up by copies, or cut, with a warning.

        Raises:
            ValueError: states of another number of spins, or outside the sectors.
        """
        x = state["x"].to(self.device, torch.int8)
        if x.dim() != 2 or x.shape[1] != self.n_spins or not bool(in_sectors(x, self.sectors).all()):
            raise ValueError(f"the stored chains {list(x.shape)} are no states of these {self.n_spins} spins")
        if len(x) != self.n_chains:
            what = "the first are kept" if len(x) > self.n_chains else "they are repeated in turn"
            warnings.warn(f"{len(x)} chains were stored and {self.n_chains} are wanted: {what}", stacklevel=2)
            x = x[torch.arange(self.n_chains, device=self.device) % len(x)]
        self.x = x
        self.step, self.blocks, self.seed = int(state["step"]), int(state["blocks"]), int(state["seed"])
        stored = str(state["dtype"])
        if not self.auto and stored != self.dtype:
            warnings.warn(
                f"the chains were stored in {stored} and {self.dtype} is asked for, in which they go on",
                stacklevel=2,
            )
            stored = self.dtype
        self.set_precision(stored)

    def _low_density(self, x: Tensor) -> Tensor:
        if not self.walks_incrementally:
            return self._low(x)
        # What the compiled loop gives for no step: log ψ of the rounded machine, in float64.
        return torch.cat([self._compiled(part, 0, 0)[1] for part in x.split(self.n_chains)])

    def _compiled(self, x: Tensor, step: int, n_steps: int) -> tuple[Tensor, Tensor, Tensor]:
        machine: Any = amplitude_of(self.model)
        parameters = [p.detach().float() if p.dtype not in (torch.float32, torch.float64) else p.detach()
                      for p in (machine.weight, machine.hidden_bias, machine.visible)]  # fmt: skip
        new, log_psi, accepted = rbm_metropolis(
            *parameters,
            x,
            self.rule.moves,
            n_steps=n_steps,
            seed=self.seed,
            step=step,
            chain=self._chain[: len(x)],
            dtype=DTYPES[self.dtype],
        )
        if not bool(torch.isfinite(log_psi).all()):
            raise FloatingPointError(f"log ψ is not finite in {self.dtype}; check the model's parameters")
        return new, 2.0 * log_psi, accepted

    def _walk(self, n_steps: int) -> tuple[int, int, int]:
        """Proposals accepted in all chains, blocks kept, and blocks tried."""
        if self.correction != "delayed":
            return self._propose(n_steps), 0, 0
        moved = kept = count = 0
        exact = self._exact(self.x) if self._exact_log_p is None else self._exact_log_p
        for begin in range(0, n_steps, self.block):
            x, low = self.x, self._log_p
            moved += self._propose(min(self.block, n_steps - begin))
            new = self._exact(self.x)
            gain = (low - exact) - (self._log_p - new)
            _, log_uniform = metropolis_draws(
                self._chain, seed=self.seed, step=self.blocks, n_steps=1, n_moves=1, stream=_DELAYED_STREAM
            )
            takes = log_uniform[0] < gain
            self.blocks += 1
            self._x = torch.where(takes[:, None], self.x, x)
            self._log_p = torch.where(takes, self._log_p, low)
            exact = torch.where(takes, new, exact)
            kept, count = kept + int(takes.sum()), count + self.n_chains
        self._exact_log_p = exact
        return moved, kept, count

    def _propose(self, n_steps: int) -> int:
        if n_steps == 0:
            return 0
        if self.walks_incrementally:
            self._x, self._log_p, accepted = self._compiled(self.x, self.step, n_steps)
            self.step += n_steps
            return int(accepted.sum())
        moved = torch.zeros((), dtype=torch.int64, device=self.device)
        most = max(1, DRAWS_AT_ONCE // (self.n_chains * self.rule.repeats))
        for begin in range(0, n_steps, most):
            count = min(most, n_steps - begin)
            drawn, log_uniform = self.rule.draws(self._chain, self.seed, self.step, count)
            for s in range(count):
                new, correction = self.rule.propose(self.x, drawn[:, s], self.seed, self.step + s)
                value = self._low(new)
                gain = value.double() - self._log_p.double()
                if correction is not None:
                    gain = gain + correction.double()
                takes = (log_uniform[s] < gain) & (new != self.x).any(1)
                self._x = torch.where(takes[:, None], new, self.x)
                self._log_p = torch.where(takes, value, self._log_p)
                moved += takes.sum()
            self.step += count
        return int(moved)

    def _look(self, x: Tensor, acceptance: float, tried: int) -> None:
        """Warn of, or refuse, chains that do not move."""
        if not tried:
            return
        if len(x) >= 16 and bool((x == x[:1]).all()):
            raise RuntimeError(
                "all samples are equal: the chains are stuck in one state; use larger moves, or look at "
                "the model"
            )
        if acceptance < FEW_ACCEPTED:
            warnings.warn(
                f"{acceptance:.1e} of the proposals were accepted; try rule='exchange', or larger moves",
                stacklevel=3,
            )


def default_rule(sectors: Sequence[Sector]) -> str:
    """Flips where nothing is conserved, exchanges within a sector, one or two of them within several."""
    return ("flip", "exchange", "exchange:2")[min(2, len(sectors))]
