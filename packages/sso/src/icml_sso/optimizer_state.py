"""Rules about groups, options and saved state: what is refused, and in which words."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from icml_sso import distributed as spread
from icml_sso.atoms import Atomic, Layout
from icml_sso.param_groups import ADAMW, belongs_to_adamw
from icml_sso.precision import MASTERS, working_dtype
from icml_sso.radius import RADIUS_MODES, RETRACTIONS, SCALE_MODES, target_radius
from icml_sso.singular_vectors import lanczos_norms
from icml_sso.solver_options import SolverOptions

if TYPE_CHECKING:
    from icml_sso.optimizer import SSO

KINDS = ("matrix", ADAMW)
LEAST_NORM = 1e-12  # a matrix of a smaller spectral norm cannot be placed on a sphere
# What a saved state must share with the optimizer that loads it.
FIXED = (
    "kind",
    "atomic",
    "radius_mode",
    "radius_scale",
    "scale_mode",
    "scale_update_by_radius",
    "retract",
    "momentum_dtype",
    "master",
)
_DTYPES = {
    str(d).removeprefix("torch."): d for d in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
}


def dtype_name(dtype: torch.dtype | str | None) -> str | None:
    """A dtype as the word that a state dict holds."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"dtype {dtype} is not one of {', '.join(_DTYPES)}")
    return name


def dtype_of(name: str | None) -> torch.dtype | None:
    """The reverse of `dtype_name`."""
    return None if name is None else _DTYPES[name]


def momentum_dtype(group: Mapping[str, Any], p: Tensor) -> torch.dtype:
    """Of the momentum of a parameter."""
    return dtype_of(group["momentum_dtype"]) or working_dtype(p.dtype)


def check_options(options: Mapping[str, Any], capturable: bool, distributed: str) -> None:
    """Refuse options that are unknown or impossible.

    Raises:
        ValueError: names the option, what was given and what is possible.
    """
    choices = {
        "radius_mode": RADIUS_MODES,
        "scale_mode": SCALE_MODES,
        "retract": RETRACTIONS,
        "master": MASTERS,
    }
    for name, possible in choices.items():
        if options[name] not in possible:
            raise ValueError(f"{name}={options[name]!r} is not one of {', '.join(possible)}")
    if distributed not in spread.MODES:
        raise ValueError(f"distributed={distributed!r} is not one of {', '.join(spread.MODES)}")
    for name in ("lr", "weight_decay", "retract_alpha", "eps"):
        if not float(options[name]) >= 0.0:
            raise ValueError(f"{name}={options[name]} must be 0 or more")
    if not options["radius_scale"] > 0.0:
        raise ValueError(f"radius_scale={options['radius_scale']} must be positive; the paper's best is 2")
    if not 0.0 <= options["momentum"] < 1.0:
        raise ValueError(f"momentum={options['momentum']} must lie in [0, 1)")
    if len(options["betas"]) != 2 or not all(0.0 <= b < 1.0 for b in options["betas"]):
        raise ValueError(f"adamw_betas={options['betas']} must be two numbers in [0, 1)")
    if options["power_iters"] < 1:
        raise ValueError(f"power_iters={options['power_iters']}; at least 1 is needed to follow the weights")
    if capturable and options["master"] == "stochastic":
        raise ValueError(
            "master='stochastic' draws from a host generator; capturable=True needs master='fp32'"
        )
    SolverOptions(
        options["solver"],
        options["solver_tol"],
        options["krylov_dim"],
        options["max_solver_iters"],
        options["msign_steps"],
        dtype_of(options["msign_dtype"]) or torch.bfloat16,
        synchronise=not capturable,
    )


def divided(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group as it is where its kind is given, else its matrices and its rest, every option kept.

    A parameter of which it cannot be told how many matrices it is goes to AdamW, with a warning: axes that
    count matrices are never guessed.

    Raises:
        ValueError: an unknown kind.
    """
    kind = group.get("kind")
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r} of a parameter group is not one of {', '.join(KINDS)}")
        return [group]
    given = group["params"]
    params = [given] if isinstance(given, Tensor) else list(given)
    parts: dict[str, list[Any]] = {}
    for entry in params:
        name, p = entry if isinstance(entry, tuple) else ("", entry)
        refuse_flattened(name, p)
        if isinstance(p, Tensor) and p.dim() > 2 and not belongs_to_adamw(name):
            warnings.warn(
                f"parameter {name or '?'!r} has shape {list(p.shape)}, and which of its axes count matrices "
                "is not said: AdamW takes it. Give SSO(build_param_groups(model)), or a group with "
                "kind='matrix' and atomic=[Atomic(...)]",
                stacklevel=4,
            )
        matrix = isinstance(p, Tensor) and p.dim() == 2 and not (name and belongs_to_adamw(name))
        parts.setdefault("matrix" if matrix else ADAMW, []).append(entry)
    return [{**group, "params": own, "kind": kind} for kind, own in parts.items()] or [
        {**group, "kind": "matrix"}
    ]


def registered(group: dict[str, Any], number: int) -> dict[Tensor, tuple[str, Layout | None]]:
    """Name and layout of each parameter of a group; its ``atomic`` becomes plain data.

    Raises:
        TypeError: a complex parameter.
        ValueError: float16, a flattened parameter, or anything but matrices in a matrix group.
    """
    params = group["params"]
    names = group.get("param_names") or [f"group {number}, parameter {k}" for k in range(len(params))]
    atoms: Sequence[Any] = group.get("atomic") or [Atomic()] * len(params)
    if group["kind"] == "matrix" and len(atoms) != len(params):
        raise ValueError(f"a group has {len(params)} parameters but {len(atoms)} entries of 'atomic'")
    found: dict[Tensor, tuple[str, Layout | None]] = {}
    plain = []
    for name, p, given in zip(names, params, atoms, strict=group["kind"] == "matrix"):
        refuse_flattened(name, p)
        if p.is_complex():
            raise TypeError(f"parameter {name!r} is complex; split it into real and imaginary part")
        if p.dtype == torch.float16:
            raise ValueError(f"parameter {name!r} is float16; use bfloat16 or float32 parameters")
        if group["kind"] == ADAMW:
            found[p] = (name, None)
            continue
        atomic = given if isinstance(given, Atomic) else Atomic.from_dict(given)
        if p.dim() < 2:
            raise ValueError(
                f"parameter {name!r} has shape {list(p.shape)}, but a matrix group holds matrices; "
                "build_param_groups(model) puts vectors and scalars into an AdamW group"
            )
        found[p] = (name, Layout(p.shape, atomic, name))
        plain.append(atomic.to_dict())
    if group["kind"] == "matrix":
        group["atomic"] = plain
    return found


def refuse_flattened(name: str, p: Any) -> None:
    """Refuse FSDP1's flattened parameters, which hold many matrices as one vector.

    Raises:
        ValueError: names the option that keeps matrices.
    """
    if getattr(p, "_is_flat_param", False) or type(p).__name__ == "FlatParameter":
        raise ValueError(
            f"parameter {name or '?'!r} was flattened by FSDP, so that its matrices are gone; wrap the model "
            "with FullyShardedDataParallel(..., use_orig_params=True), or use fully_shard (FSDP2)"
        )


def check_gradient(p: Tensor, name: str) -> None:
    """Refuse gradients that are no dense real tensors.

    Raises:
        TypeError: naming the parameter.
    """
    gradient = p.grad
    assert gradient is not None
    if gradient.layout is not torch.strided:
        raise TypeError(
            f"the gradient of {name!r} is sparse; use Embedding(sparse=False), or another optimizer"
        )
    if gradient.is_complex():
        raise TypeError(f"the gradient of {name!r} is complex")


def not_finite(params: Sequence[Tensor], names: Mapping[Tensor, str], skip: bool) -> set[Tensor]:
    """The parameters whose gradient is not finite in any process, where ``skip`` allows some.

    Raises:
        FloatingPointError: naming the first, where it does not.
    """
    if not params:
        return set()
    finite = spread.gradient_norms(params).isfinite().tolist()
    found = [p for p, good in zip(params, finite, strict=True) if not good]
    if found and not skip:
        raise FloatingPointError(
            f"the gradient of {names[found[0]]!r} holds NaN or infinite numbers; lower the learning rate, "
            "clip gradients, or leave such parameters alone by skip_nonfinite=True"
        )
    return set(found)


def radii(group: Mapping[str, Any], layout: Layout, sigma: Tensor, name: str) -> Tensor:
    """R of each atomic matrix.

    Raises:
        ValueError: a matrix is zero.
    """
    retract = layout.atomic.retract or group["retract"]
    if retract != "off" and float(sigma.min()) < LEAST_NORM:
        raise ValueError(
            f"an atomic matrix of {name!r} has spectral norm {float(sigma.min()):.3g}; SSO "
            "cannot place a zero matrix on the sphere; call spectral_mup_init_(model), or give it "
            "Atomic(retract='off', tangent=False)"
        )
    found = torch.empty_like(sigma)
    for part in layout.parts:
        values = [
            target_radius(part.rows, part.columns, group["radius_mode"], group["radius_scale"], s)
            for s in sigma[part.atoms].tolist()
        ]
        found[part.atoms] = torch.tensor(values, dtype=sigma.dtype, device=sigma.device)
    return found


def check_loaded(own: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """The saved constraint is the present one.

    Raises:
        ValueError: naming the option and both values.
    """
    for number, (mine, other) in enumerate(zip(own, saved, strict=False)):
        for key in FIXED:
            if key in other and key in mine and _plain(other[key]) != _plain(mine[key]):
                raise ValueError(
                    f"group {number} was saved with {key}={_short(other[key])}, but this optimizer has "
                    f"{key}={_short(mine[key])}; build it as it was built, or start without its state"
                )


def restore_precision(optimizer: SSO, state_dict: Mapping[str, Any]) -> None:
    """torch casts loaded state to the dtype of its parameter; put back what was saved in another one."""
    saved = [k for g in state_dict["param_groups"] for k in g["params"]]
    params = [p for g in optimizer.param_groups for p in g["params"]]
    for key, p in zip(saved, params, strict=True):
        for name, value in state_dict["state"].get(key, {}).items():
            present = optimizer.state[p].get(name)
            if isinstance(value, Tensor) and isinstance(present, Tensor):
                device = present.device if name != "step" or optimizer.capturable else torch.device("cpu")
                if present.dtype != value.dtype or present.device != device:
                    optimizer.state[p][name] = value.detach().to(device=device).clone()


def retract_parameter(optimizer: SSO, group: Mapping[str, Any], p: Tensor, whole: Tensor) -> None:
    """Put the matrices of one parameter on their spheres."""
    layout, state = optimizer.layout(p), optimizer.state[p]
    if (layout.atomic.retract or group["retract"]) == "off":
        return
    weight = whole.clone(memory_format=torch.contiguous_format)
    for part in layout.parts:
        matrices = layout.read(weight, part)
        sigma = lanczos_norms(matrices, state["v"][part.atoms, 0].to(matrices.dtype))
        factor = state["radius"][part.atoms].to(sigma.dtype) / sigma
        layout.write(weight, part, matrices * factor[:, None, None])
    optimizer.write_back(p, weight)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
