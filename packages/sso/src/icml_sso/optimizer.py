"""The Spectral Sphere Optimizer as a torch.optim.Optimizer (arXiv 2601.08393).

One object holds groups of matrices, each matrix on a sphere of spectral norm R = c sqrt(d_out / d_in), and
groups of everything else, which AdamW takes. `step` is `prepare` (host: checks, learning rates) and `update`
(device only, where ``capturable=True``): a CUDA graph or torch.compile takes `update`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from icml_sso import distributed as spread
from icml_sso import optimizer_report
from icml_sso import optimizer_state as rules
from icml_sso.adamw import adamw_update
from icml_sso.atoms import Layout, Part
from icml_sso.batches import Item, new_report, step_items
from icml_sso.param_groups import build_param_groups
from icml_sso.precision import rounding_generator, stochastic_round, working_dtype
from icml_sso.singular_vectors import starting_blocks
from icml_sso.solver_options import SIXTEEN_BITS, SolverOptions
from icml_sso.sphere_step import StepOptions

# |h| that is taken out of a direction in 16 bits instead of correcting the multiplier. It adds half as much
# to the spectral norm, no more than the 0.02 that rounding adds to such a matrix sign.
REMOVABLE = 4e-2


class SSO(Optimizer):
    """Steepest descent in spectral norm, tangent to the sphere on which each weight matrix stays.

    Args:
        params: A module; groups from `build_param_groups`; parameters, or ``module.named_parameters()``: then
            two-dimensional ones are matrices unless their name says embedding or output layer, and others
            AdamW's.
        lr: An update has spectral norm lr s.
        momentum: beta of M <- beta M + (1 - beta) G.
        nesterov: Step along (1 - beta) G + beta M instead of M.
        radius_scale: c of R = c sqrt(d_out / d_in); the paper's best is 2.
        radius_mode: ``"spectral_mup"``; ``"identity"`` (R = c); ``"initialize"`` (R = c ||W_0||_2:
            fine-tuning).
        scale_mode: s: ``"spectral_mup"``, ``"align_adamw_rms"`` (update RMS 0.2 lr), ``"shape_scaling"``.
        scale_update_by_radius: False: s as above (the official code); True: s = R (the paper's equation).
        retract: ``"hard"`` (W R / sigma), ``"dynamic"`` (W (1 +- alpha lr)), ``"off"``.
        retract_alpha: alpha.
        weight_decay: Of matrices. A hard retraction undoes it, except that updates weigh more; default 0.
        solver: ``"krylov"``, ``"bisection"`` (the paper's), ``"none"`` (MuonSphere).
        solver_tol: Of |h|.
        krylov_dim: Lanczos steps.
        max_solver_iters: Bisections.
        msign_steps: Newton-Schulz steps.
        msign_dtype: Of the matrix signs; float32 is the paper's text, bfloat16 its code.
        power_iters: Block Krylov steps that follow the top singular triplets.
        adamw_betas: Of the AdamW groups.
        adamw_eps: Of the AdamW groups.
        adamw_weight_decay: Of the AdamW groups, unless a group has its own.
        momentum_dtype: Of the momentum; None for the working precision (float32, or float64).
        master: Of bfloat16 parameters: ``"fp32"`` copies, or ``"stochastic"`` rounding.
        seed: Of the stochastic rounding.
        skip_nonfinite: Leave a parameter alone whose gradient is not finite, and count it, instead of
            raising.
        foreach: Step equal matrices together.
        capturable: Learning rates live on the device, and `update` never looks at results on the host.
        distributed: ``"auto"`` (DTensors: owner; else none), ``"none"``, ``"owner"``, ``"gram"``,
            ``"duplicated"``; see `icml_sso.distributed`.
        process_group: Of plain tensors in mode ``"owner"``; the default group where None.

    Raises:
        TypeError: Complex parameters or gradients, sparse gradients.
        ValueError: Unknown or impossible options; float16 parameters; a matrix group with anything but
            matrices.
        FloatingPointError: In `step`, where a gradient is not finite.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = SSO(layer, lr=1e-2)
        >>> layer(torch.ones(1, 3)).sum().backward()
        >>> optimizer.step()
        >>> round(optimizer.stats()["weight"]["sigma"][0], 1) > 0
        True
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 1e-2,
        *,
        momentum: float = 0.9,
        nesterov: bool = True,
        radius_scale: float = 1.0,
        radius_mode: str = "spectral_mup",
        scale_mode: str = "spectral_mup",
        scale_update_by_radius: bool = False,
        retract: str = "hard",
        retract_alpha: float = 0.05,
        weight_decay: float = 0.0,
        solver: str = "krylov",
        solver_tol: float = 2e-4,
        krylov_dim: int = 8,
        max_solver_iters: int = 20,
        msign_steps: int = 8,
        msign_dtype: torch.dtype = torch.bfloat16,
        power_iters: int = 2,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float = 0.1,
        momentum_dtype: torch.dtype | None = None,
        master: str = "fp32",
        seed: int = 0,
        skip_nonfinite: bool = False,
        foreach: bool = True,
        capturable: bool = False,
        distributed: str = "auto",
        process_group: Any = None,
    ) -> None:
        self.foreach, self.capturable, self.seed = foreach, capturable, seed
        self.skip_nonfinite = skip_nonfinite
        self.distributed, self.process_group = distributed, process_group
        self.adamw_weight_decay = adamw_weight_decay
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "radius_scale": radius_scale,
            "radius_mode": radius_mode,
            "scale_mode": scale_mode,
            "scale_update_by_radius": scale_update_by_radius,
            "retract": retract,
            "retract_alpha": retract_alpha,
            "solver": solver,
            "solver_tol": solver_tol,
            "krylov_dim": krylov_dim,
            "max_solver_iters": max_solver_iters,
            "msign_steps": msign_steps,
            "msign_dtype": rules.dtype_name(msign_dtype),
            "power_iters": power_iters,
            "betas": adamw_betas,
            "eps": adamw_eps,
            "momentum_dtype": rules.dtype_name(momentum_dtype),
            "master": master,
        }
        self._matrix_weight_decay = weight_decay
        rules.check_options(defaults | {"weight_decay": weight_decay}, capturable, distributed)
        self._layouts: dict[Tensor, Layout] = {}
        self._names: dict[Tensor, str] = {}
        self._numbers: dict[Tensor, int] = {}
        self._reports: dict[Tensor, Tensor] = {}
        self._rates: list[float | Tensor] = []
        self._plan: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._idle: set[Tensor] = set()
        self._skipped = 0
        self._steps = 0
        self._warned = False
        if isinstance(params, nn.Module):
            params = build_param_groups(params)
        super().__init__(params, defaults)

    # groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; one without ``kind`` is divided into matrices and what AdamW takes.

        Raises:
            TypeError: Complex parameters.
            ValueError: As for the class.
        """
        for part in rules.divided(dict(param_group)):
            decay = self._matrix_weight_decay if part["kind"] == "matrix" else self.adamw_weight_decay
            part.setdefault("weight_decay", decay)
            super().add_param_group(part)
            group = self.param_groups[-1]
            try:
                rules.check_options(group, self.capturable, self.distributed)
                layouts = rules.registered(group, len(self.param_groups) - 1)
            except (TypeError, ValueError):
                self.param_groups.pop()
                raise
            self._numbers |= {p: len(self._numbers) + k for k, p in enumerate(layouts)}
            self._names |= {p: name for p, (name, _) in layouts.items()}
            self._layouts |= {p: layout for p, (_, layout) in layouts.items() if layout is not None}

    def __repr__(self) -> str:
        """The groups; and which of the paper's two update lengths is used."""
        length = {
            "R, as in the paper's equation" if g["scale_update_by_radius"] else f"s = {g['scale_mode']}"
            for g in self.param_groups
            if g["kind"] == "matrix"
        }
        return (
            f"{super().__repr__()}\nspectral norm of an update over lr: {', '.join(sorted(length)) or 'none'}"
        )

    # state

    @torch.no_grad()
    def init_state(self) -> None:
        """Allocate everything that `step` needs, now: momenta, singular vectors, radii, masters.

        Raises:
            ValueError: A matrix is zero, so that it cannot be placed on a sphere.
        """
        for group in self.param_groups:
            for p in group["params"]:
                self._init_parameter(group, p)

    def _init_parameter(self, group: dict[str, Any], p: Tensor) -> None:
        state = self.state[p]
        if group["kind"] == "matrix" and p not in self._reports:
            self._reports[p] = new_report(self._layouts[p], p.device)
        if state:
            return
        state["step"] = torch.zeros((), device=p.device if self.capturable else None)
        if p.dtype == torch.bfloat16 and group["master"] == "fp32":
            state["master"] = p.detach().float().clone()
        work = working_dtype(p.dtype)
        if group["kind"] == "adamw":
            state["exp_avg"] = torch.zeros_like(p, dtype=work)
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=work)
            return
        layout = self._layouts[p]
        state["momentum"] = torch.zeros_like(p, dtype=rules.momentum_dtype(group, p))
        whole = spread.whole(p).to(work)
        sigma, v = starting_blocks(layout, whole)
        radius = rules.radii(group, layout, sigma, self._names[p])
        state |= {"v": v, "lam": torch.zeros_like(sigma), "radius": radius}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Load a state; its constraint must be this optimizer's.

        Raises:
            ValueError: Another radius, scale, cut or precision than that of this optimizer; both are named.
        """
        rules.check_loaded(self.param_groups, state_dict["param_groups"])
        super().load_state_dict(dict(state_dict))
        rules.restore_precision(self, state_dict)
        for group in self.param_groups:
            for p in group["params"]:
                if self.state.get(p):
                    self._init_parameter(group, p)
                    self._steps = max(self._steps, int(self.state[p]["step"]))

    # the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """`prepare`, then `update`.

        Args:
            closure: Evaluates the loss again and returns it.

        Raises:
            TypeError: A sparse or complex gradient.
            FloatingPointError: A gradient that is not finite, by the name of its parameter.
            ValueError: A weight matrix that is zero.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.prepare()
        self.update()
        return loss

    @torch.no_grad()
    def prepare(self) -> None:
        """What happens on the host before `update`: checks, state, learning rates."""
        active = [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
        for _, p in active:
            rules.check_gradient(p, self._names[p])
        self._idle = set()
        if not self.capturable:
            self._idle = rules.not_finite([p for _, p in active], self._names, self.skip_nonfinite)
            self._skipped += len(self._idle)
        for group, p in active:
            self._init_parameter(group, p)
        self._make_plan()
        self._steps += 1
        if not self._warned and active:
            self._warned = True
            if optimizer_report.share(self) == 0.0:
                warnings.warn(
                    "no parameter is in a matrix group: this step is AdamW everywhere. Give "
                    "SSO(build_param_groups(model)), and wrap with use_orig_params=True under FSDP1",
                    stacklevel=3,
                )

    @torch.no_grad()
    def update(self) -> None:
        """The step itself, after `prepare`; with ``capturable=True`` it never waits for the device."""
        for (group, params), lr in zip(self._plan, self._rates, strict=True):
            if not params:
                continue
            if group["kind"] == "adamw":
                adamw_update(self, group, params, lr)
            else:
                self._update_matrices(group, params, lr)

    def _update_matrices(self, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
        torch._foreach_add_([self.state[p]["step"] for p in params], 1.0)
        self._update_momenta(group, params)
        if isinstance(lr, float) and lr == 0.0:
            return
        plain = [p for p in params if not spread.is_sharded(p)]
        sharded = [p for p in params if spread.is_sharded(p)]
        if plain and self.distributed == "owner":
            spread.step_owned(self, group, plain, lr)
        elif plain:
            self.step_local(group, plain, lr)
        if sharded:
            spread.step_sharded(self, group, sharded, lr)

    def step_local(self, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
        """Step whole parameters of a group that this process holds."""
        items = [self._item(group, p) for p in params]
        self.step_group(group, items, lr)
        for p, item in zip(params, items, strict=True):
            self.write_back(p, item.weight)

    def step_group(self, group: dict[str, Any], items: list[Item], lr: float | Tensor) -> None:
        """Step whole matrices under the options of a group."""
        step_items(
            items,
            self.step_options(group),
            lr,
            group["scale_mode"],
            scale_by_radius=group["scale_update_by_radius"],
            foreach=self.foreach,
        )

    def step_options(self, group: dict[str, Any]) -> StepOptions:
        """The options of a group for `sphere_step`."""
        solver = SolverOptions(
            group["solver"],
            group["solver_tol"],
            group["krylov_dim"],
            group["max_solver_iters"],
            group["msign_steps"],
            dtype := rules.dtype_of(group["msign_dtype"]) or torch.bfloat16,
            removable=REMOVABLE if dtype in SIXTEEN_BITS else 0.0,
            synchronise=not self.capturable,
        )
        return StepOptions(
            solver,
            group["power_iters"],
            group["retract"],
            group["retract_alpha"],
            float(group["weight_decay"]),
            tangent=group["solver"] != "none",
        )

    @torch.no_grad()
    def retract_(self) -> None:
        """Put every matrix on its sphere now, by Lanczos norms: before weights are saved or evaluated.

        A step retracts at its start; between steps a norm is off its radius by what the last update did.
        """
        self.init_state()
        for group in self.param_groups:
            if group["kind"] == "matrix":
                for p in group["params"]:
                    rules.retract_parameter(self, group, p, spread.whole(self.weight(p)))

    # pieces

    def weight(self, p: Tensor) -> Tensor:
        """The values of a parameter in working precision: its master, itself, or a copy."""
        master = self.state[p].get("master")
        if master is not None:
            return master
        own = p.detach()
        return own if own.dtype == working_dtype(p.dtype) else own.to(working_dtype(p.dtype))

    def write_back(self, p: Tensor, weight: Tensor) -> None:
        """Bring new values in working precision into the parameter; shards here hold what is local."""
        own, new = spread.local(p.detach()), spread.local(weight)
        master = self.state[p].get("master")
        if master is not None:
            if (kept := spread.local(master)).data_ptr() != new.data_ptr():
                kept.copy_(new)
            own.copy_(new)
        elif p.dtype == torch.bfloat16:
            generator = rounding_generator(self.seed, self._steps, self._numbers[p], own.device)
            own.copy_(stochastic_round(new, generator))
        elif own.data_ptr() != new.data_ptr():
            own.copy_(new)

    def layout(self, p: Tensor) -> Layout:
        """The atomic matrices of a parameter of a matrix group."""
        return self._layouts[p]

    def name(self, p: Tensor) -> str:
        """The name of a parameter, as its group gives it."""
        return self._names[p]

    def report(self, p: Tensor) -> Tensor:
        """What `REPORTED` and `COUNTED` name, a column for each atomic matrix."""
        return self._reports[p]

    def _item(self, group: dict[str, Any], p: Tensor) -> Item:
        weight = self.weight(p)
        if not weight.is_contiguous():
            weight = weight.contiguous()
        layout, momentum, gradient = self._layouts[p], self.state[p]["momentum"], p.grad
        assert gradient is not None
        beta, nesterov = group["momentum"], group["nesterov"]

        def direction(part: Part, own: slice) -> Tensor:
            m = layout.read(momentum, part, own).to(weight.dtype)
            return layout.read(gradient, part, own).to(weight.dtype).lerp(m, beta) if nesterov else m

        return Item(self._names[p], layout, weight, direction, self.state[p], self._reports[p])

    def momentum_of(self, group: dict[str, Any], p: Tensor, momentum: Tensor, gradient: Tensor) -> Tensor:
        """N of a whole parameter or of a shard of it."""
        work = working_dtype(p.dtype)
        m = momentum.to(work)
        return gradient.to(work).lerp(m, group["momentum"]) if group["nesterov"] else m

    def _update_momenta(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """M <- beta M + (1 - beta) G, in the working precision."""
        alike, momenta = [], []
        for p in params:
            m, g = spread.local(self.state[p]["momentum"]), spread.local(p.grad)
            if m.dtype == g.dtype and m.dtype in (torch.float32, torch.float64):
                alike.append(g)
                momenta.append(m)
            else:
                work = working_dtype(p.dtype)
                m.copy_(m.to(work).lerp(g.to(work), 1.0 - group["momentum"]))
        if momenta:
            torch._foreach_lerp_(momenta, alike, 1.0 - group["momentum"])

    def _make_plan(self) -> None:
        """What `update` reads. Learning rates stand apart, so that compiled code does not depend on their
        values.
        """
        apart = ("lr", "initial_lr", "params", "param_names")
        self._plan = [
            (
                {k: v for k, v in group.items() if k not in apart},
                [p for p in group["params"] if p.grad is not None and p not in self._idle],
            )
            for group in self.param_groups
        ]
        if not self.capturable:
            self._rates = [float(group["lr"]) for group in self.param_groups]
            return
        while len(self._rates) < len(self.param_groups):
            device = self.param_groups[len(self._rates)]["params"][0].device
            self._rates.append(torch.zeros((), device=device))
        for rate, group in zip(self._rates, self.param_groups, strict=True):
            assert isinstance(rate, Tensor)
            rate.fill_(float(group["lr"]))

    # reports

    def coverage(self) -> dict[str, float]:
        """How much of the model is on spheres, and what the steps took; see `optimizer_report.coverage`."""
        return optimizer_report.coverage(self)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Of each matrix parameter what its last step saw, for each atomic matrix; and ``"coverage"``.

        ``sigma`` (before the retraction), ``sigma/R``, ``lambda``, ``|h|``, ``msign_calls``, ``retraction``.
        """
        return optimizer_report.stats(self)

    @property
    def reports(self) -> dict[Tensor, Tensor]:
        """What `report` gives, of all matrix parameters that have been stepped."""
        return self._reports

    @property
    def skipped(self) -> int:
        """How often a parameter was left alone for its gradient."""
        return self._skipped


class MuonSphere(SSO):
    """Muon on the spectral sphere: `SSO` with lambda = 0, at the cost of Muon and a retraction.

    Takes what `SSO` takes, except ``solver``.
    """

    def __init__(self, params: nn.Module | Iterable[Any], lr: float | Tensor = 1e-2, **options: Any) -> None:
        if options.setdefault("solver", "none") != "none":
            raise ValueError(f"MuonSphere has solver='none', not {options['solver']!r}; SSO takes a solver")
        super().__init__(params, lr, **options)
