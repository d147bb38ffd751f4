"""The iterative refinement operator: h_0 = base(x), h_{k+1} = h_k + alpha Phi([x, h_k]) (arXiv 2605.24041).

The base is frozen; Phi is one small network with the same weights at every k, so that K is chosen at
inference.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from icml_irno.contraction import jacobian_norm
from icml_irno.fields import as_mask, check_field, fill_masked
from icml_irno.fixed_point import DIVERGED, LIMIT, SolveInfo, solve_fixed_point
from icml_irno.resampling import spectral_resample

ALPHA, K_DEFAULT = 0.2, 6  # the paper's, for training through all iterates
_INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Start:
    """Where the corrector runs: the trained grid, or where none is known, that of the base's output.

    Attributes:
        x, h: the input and h_0 on the grid on which the corrector runs.
        valid: True where a point exists on that grid, or None.
        own: h_0 as the base gave it.
        own_valid: True where a point exists on the grid of ``own``, or None.
        resampled: both grids differ.
        modes: borders of the axes, for the way between both grids.
    """

    x: Tensor
    h: Tensor
    valid: Tensor | None
    own: Tensor
    own_valid: Tensor | None
    resampled: bool
    modes: Sequence[str] | None

    def returned(self, h: Tensor) -> Tensor:
        """h on the base's own grid, NaN where no point exists.

        What the trained grid cannot hold stays as the base gave it: the change alone is resampled.
        """
        if h is self.h:
            h = self.own
        elif self.resampled:
            h = self.own + spectral_resample(h - self.h, self.own.shape[2:], self.modes)
        return h if self.own_valid is None else torch.where(self.own_valid, h, math.nan)


class IRNO(nn.Module):
    """A frozen operator with a learned corrector that is applied K times.

    Args:
        base: any module x -> h_0; None for h_0 = 0, which trains and runs the corrector alone.
        refiner: [batch, in + out, *space] -> [batch, out, *space]; its ``out_channels`` is used where it has
            one.
        alpha: step size; part of what is learned. None leaves it to the training mode (0.2 until then).
        K: steps of a call. None leaves it to the training mode (6 until then).
        freeze_base: keep the base in eval mode, without gradients.
        out_channels: of h, where the refiner does not say.
        scale: [out] factors of Phi's output, such as the standard deviation of y - h_0; None for 1.
        mask: True where a point exists, [*space] or [1, 1, *space]; land is filled for the network and NaN in
            what is returned.
        resize: ``"bilinear"`` brings x to the grid of h_0 where they differ (super-resolution).
        resample: ``"spectral"`` refines fields of another grid at the trained resolution.
        spacing: of the grid, along each axis; known after training.
        shape: of the grid; known after training.
        strict: a call raises where the iteration diverges.

    Raises:
        ValueError: alpha not positive, K below 1, an unknown resize or resample.

    Example:
        >>> model = IRNO(nn.Identity(), Refiner(1, 1, base_channels=4, depth=1, dims=1), alpha=0.5, K=2)
        >>> [h.shape for h in model.iterates(torch.zeros(3, 1, 8), K=2)] == [(3, 1, 8)] * 3
        True
    """

    def __init__(
        self,
        base: nn.Module | Callable[[Tensor], Tensor] | None,
        refiner: nn.Module,
        alpha: float | None = None,
        K: int | None = None,
        freeze_base: bool = True,
        *,
        out_channels: int | None = None,
        scale: Sequence[float] | Tensor | None = None,
        mask: Bool[Tensor, ...] | None = None,
        resize: str | None = None,
        resample: str | None = None,
        spacing: Sequence[float] | None = None,
        shape: Sequence[int] | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__()
        check_step(ALPHA if alpha is None else alpha, K_DEFAULT if K is None else K)
        if resize not in (None, "bilinear") or resample not in (None, "spectral"):
            raise ValueError(
                f"resize={resize!r} and resample={resample!r}; expected 'bilinear', 'spectral' or None"
            )
        self.base = base if base is None or isinstance(base, nn.Module) else _Callable(base).eval()
        self.refiner = refiner
        self.given = (alpha, K)  # what the user chose, which a training mode leaves alone
        self.alpha, self.K = ALPHA if alpha is None else float(alpha), K_DEFAULT if K is None else int(K)
        self.lam = (1.0, 2.0)
        self.freeze_base, self.strict = freeze_base, strict
        self.resize, self.resample = resize, resample
        self.spacing = None if spacing is None else tuple(float(s) for s in spacing)
        self.shape = None if shape is None else tuple(int(n) for n in shape)
        known = out_channels if out_channels is not None else getattr(refiner, "out_channels", None)
        self.out_channels: int | None = known
        self.scale: Tensor | None
        self.register_buffer("scale", None if scale is None else torch.as_tensor(scale).flatten().clone())
        self.mask: Tensor | None
        self.register_buffer(
            "mask", None if mask is None else torch.as_tensor(mask).bool().clone(), persistent=False
        )
        if self.base is not None and freeze_base:
            if self.base.training or any(p.requires_grad for p in self.base.parameters()):
                _warn_once(
                    "IRNO sets the base to eval mode and takes its gradients away (freeze_base=True); "
                    "freeze_base=False leaves it as it is"
                )
            self.base.eval().requires_grad_(False)
        self.register_state_dict_post_hook(_leave_base_out)
        self.register_load_state_dict_post_hook(_expect_no_base)

    # Training must not wake dropout or batch statistics of a frozen base.
    def train(self, mode: bool = True) -> IRNO:
        """Set the corrector's mode; a frozen base stays in eval mode."""
        super().train(mode)
        if self.base is not None and self.freeze_base:
            self.base.eval()
        return self

    def get_extra_state(self) -> Tensor:
        """alpha, K and lam, so that a state dict holds all that was learned."""
        return torch.tensor([self.alpha, self.K, *self.lam], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """What :meth:`get_extra_state` gave."""
        alpha, steps, first, last = state.tolist()
        check_step(alpha, int(steps))
        self.alpha, self.K, self.lam = alpha, int(steps), (first, last)

    def forward(
        self,
        x: Float[Tensor, "batch in *space"],
        K: int | None = None,
        mask: Bool[Tensor, ...] | None = None,
        spacing: Sequence[float] | None = None,
    ) -> Float[Tensor, "batch out *space"]:
        """h_K; K = 0 gives the base's output bit for bit.

        Args:
            x: the operator's input.
            K: steps; the model's by default.
            mask: of each sample, [batch, 1, *space], beside or instead of the model's.
            spacing: of the grid of h_0 (x's, unless that is coarser), to refuse another domain than the
                trained one.

        Raises:
            TypeError: x is complex or of integers.
            ValueError: shapes, channels or grids that do not fit together; see :meth:`start`.
            FloatingPointError: with ``strict``, an iterate that is not finite or 1000 times the start.
        """
        steps = self._steps(K)
        at = self.placed(x, mask, spacing, steps)
        h = self._iterate(at, steps)
        if self.strict:
            self._require_bounded(at, h, steps)
        return at.returned(h)

    def iterates(
        self,
        x: Float[Tensor, "batch in *space"],
        K: int | None = None,
        mask: Bool[Tensor, ...] | None = None,
        spacing: Sequence[float] | None = None,
    ) -> list[Float[Tensor, "batch out *space"]]:
        """h_0 ... h_K, K + 1 fields; arguments are those of :meth:`forward`.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        steps = self._steps(K)
        at = self.placed(x, mask, spacing, steps)
        h = at.h
        found = [at.returned(h)]
        for _ in range(steps):
            h = self.step(at.x, h)
            found.append(at.returned(h))
        return found

    def solve(
        self,
        x: Float[Tensor, "batch in *space"],
        tol: float = 1e-3,
        max_iter: int | None = None,
        anderson: int = 0,
        mask: Bool[Tensor, ...] | None = None,
        spacing: Sequence[float] | None = None,
    ) -> tuple[Float[Tensor, "batch out *space"], SolveInfo]:
        """Iterate until |h_{k+1} - h_k| < tol |h_k|, each sample by itself; without gradients.

        Norms are taken over the points that exist, on the grid on which the corrector runs.

        A sample that diverges (not finite, or 1000 times its start) keeps its last finite iterate, and a
        warning says so.

        Args:
            x: the operator's input.
            tol: relative length of the last step.
            max_iter: most steps; 2 K by default.
            anderson: earlier iterates that a step is mixed from, such as 3; 0 for plain steps.
            mask, spacing: as of :meth:`forward`.

        Raises:
            TypeError, ValueError: as :meth:`forward`; options out of range.
        """
        with torch.no_grad():
            at = self.placed(x, mask, spacing)
            h, info = solve_fixed_point(
                lambda h, rows: self.alpha * self.correction(at.x[rows], h),
                at.h, tol=tol, max_iter=2 * self.K if max_iter is None else max_iter, anderson=anderson,
                valid=at.valid,
            )  # fmt: skip
            found = at.returned(h)
        if info.status == DIVERGED:
            bad = [i for i, s in enumerate(info.statuses) if s == DIVERGED]
            warnings.warn(
                f"the iteration diverged on samples {bad[:10]}; their last finite iterates are returned. "
                f"Take fewer steps (max_iter), or train with a smaller alpha={self.alpha}",
                stacklevel=2,
            )
        return found, info

    def contraction(
        self,
        x: Float[Tensor, "batch in *space"],
        iters: int = 20,
        mask: Bool[Tensor, ...] | None = None,
        spacing: Sequence[float] | None = None,
    ) -> Float[Tensor, " batch"]:
        """q = |I + alpha dPhi/dh| at h_K of each sample: contraction on these samples, and nowhere else.

        Power iteration comes from below: q is at least what is returned, and more ``iters`` come closer.

        Args:
            x: the operator's input.
            iters: steps of the power iteration.
            mask, spacing: as of :meth:`forward`; changes of h are taken over points that exist.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        with torch.no_grad():
            at = self.placed(x, mask, spacing)
            h = self._iterate(at, self.K)
        if at.valid is None:
            return jacobian_norm(lambda moved: self.step(at.x, moved), h, iters)
        valid = at.valid

        def step(moved: Tensor) -> Tensor:
            return torch.where(valid, self.step(at.x, torch.where(valid, moved, h)), 0)

        return jacobian_norm(step, h, iters)

    def rebase(self, base: nn.Module | Callable[[Tensor], Tensor] | None) -> IRNO:
        """The same corrector, the very module, on another frozen base (same fields and normalisation)."""
        refiner, mask = self.refiner, self.mask
        other = IRNO(
            base, refiner, self.alpha, self.K, self.freeze_base, out_channels=self.out_channels,
            scale=self.scale, mask=mask, resize=self.resize, resample=self.resample, spacing=self.spacing,
            shape=self.shape, strict=self.strict,
        )  # fmt: skip
        other.given, other.lam = self.given, self.lam
        return other.train(self.training)

    @classmethod
    def wrap(
        cls, base: nn.Module | Callable[[Tensor], Tensor], in_channels: int, out_channels: int, **options: Any
    ) -> IRNO:
        """A corrector of the right shape around any base; see :func:`icml_irno.wrapping.wrap`."""
        from icml_irno.wrapping import wrap

        return wrap(cls, base, in_channels, out_channels, **options)

    def placed(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        spacing: Sequence[float] | None = None,
        steps: int | None = None,
    ) -> Start:
        """x and h_0 where the corrector runs: as they are, or resampled to the trained grid.

        Args:
            x: the operator's input.
            mask: of each sample, beside the model's.
            spacing: of the grid of h_0, or None where it is not known.
            steps: that will be taken; with 0 the base stands alone, and any grid is its own affair.

        Raises:
            TypeError, ValueError: as :meth:`forward`.
        """
        valid = self.joined_mask(mask)
        x, h = self.start(x, valid)
        if valid is not None and valid.shape[2:] != h.shape[2:]:
            raise ValueError(
                f"the mask has the grid {list(valid.shape[2:])} but the base's output {list(h.shape[2:])}; "
                "give the mask of the latter"
            )
        modes = getattr(self.refiner, "padding", None)
        if steps == 0 or self._on_trained_grid(h, spacing):
            return Start(x, h, valid, h, valid, False, modes)
        assert self.shape is not None
        low_x, low_h = (spectral_resample(f, self.shape, modes) for f in (x, h))
        low = None if valid is None else F.interpolate(valid.float(), self.shape, mode="nearest-exact") > 0.5
        return Start(low_x, low_h, low, h, valid, True, modes)

    def start(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x on the grid of h_0 and filled under the mask, and h_0.

        Raises:
            TypeError: a field that is complex or of integers.
            ValueError: the base gives another number of channels than the refiner corrects, or another grid
                than x has and ``resize`` is off.
        """
        check_field("x", x)
        if mask is not None and mask.shape[2:] == x.shape[2:]:
            x = fill_masked(x, mask)
        if self.base is None:
            if self.out_channels is None:
                raise ValueError(
                    "base=None needs out_channels=, since the refiner does not say how many it gives"
                )
            h = x.new_zeros(x.shape[0], self.out_channels, *x.shape[2:])
        elif self.freeze_base:
            with torch.no_grad():
                h = self.base(x)
        else:
            h = self.base(x)
        check_field("the base's output", h)
        if h.dim() != x.dim() or (self.out_channels is not None and h.shape[1] != self.out_channels):
            raise ValueError(
                f"the base gives fields of shape {list(h.shape)} for inputs {list(x.shape)}; expected "
                f"[batch, {self.out_channels}, *space] for a refiner of out_channels={self.out_channels}"
            )
        if h.shape[2:] != x.shape[2:]:
            if self.resize is None:
                raise ValueError(
                    f"x has the grid {list(x.shape[2:])} but the base's output {list(h.shape[2:])}; "
                    "give resize='bilinear' to bring x to the latter"
                )
            mode = _INTERPOLATION[x.dim() - 2]
            x = F.interpolate(x, size=h.shape[2:], mode=mode, align_corners=False)
        return x, h

    def correction(self, x: Tensor, h: Tensor) -> Float[Tensor, "batch out *space"]:
        """Phi([x, h]), times the scale of each channel."""
        found = self.refiner(torch.cat([x, h], 1))
        if self.scale is None:
            return found
        return found * self.scale.to(found.dtype).view(1, -1, *[1] * (found.dim() - 2))

    def step(self, x: Tensor, h: Tensor) -> Float[Tensor, "batch out *space"]:
        """h + alpha Phi([x, h])."""
        return h + self.alpha * self.correction(x, h)

    def _iterate(self, at: Start, steps: int) -> Tensor:
        h = at.h
        for _ in range(steps):
            h = self.step(at.x, h)
        return h

    def _steps(self, K: int | None) -> int:
        steps = self.K if K is None else K
        if steps < 0:
            raise ValueError(f"K={steps}; expected 0 (the base alone) or more")
        return steps

    def _require_bounded(self, at: Start, h: Tensor, steps: int) -> None:
        """Of each sample, over the points that exist."""
        last, first, given = (
            (t if at.valid is None else torch.where(at.valid, t, 0)).flatten(1).norm(dim=1)
            for t in (h, at.h, at.x)
        )
        bad = (~(last <= LIMIT * torch.maximum(first, given))).nonzero().flatten().tolist()
        if bad:
            raise FloatingPointError(
                f"the iteration diverged within {steps} steps on samples {bad[:10]}: |h_K| = "
                f"{float(last[bad[0]]):.3g}, |h_0| = {float(first[bad[0]]):.3g} of the first; take fewer "
                f"steps, or train with a smaller alpha={self.alpha}"
            )

    def _on_trained_grid(self, h: Tensor, spacing: Sequence[float] | None) -> bool:
        if self.shape is None:
            return True
        here = tuple(h.shape[2:])
        if spacing is not None and self.spacing is not None:
            trained = [n * s for n, s in zip(self.shape, self.spacing, strict=True)]
            now = [n * s for n, s in zip(here, spacing, strict=True)]
            if any(not math.isclose(a, b, rel_tol=1e-3) for a, b in zip(trained, now, strict=True)):
                raise ValueError(
                    f"x covers a domain of {now} but the corrector was trained on {trained}; its filters "
                    "count in cells, so that a crop or another domain needs a training of its own"
                )
        if here == self.shape:
            return True
        if self.resample is None:
            raise ValueError(
                f"x has the grid {list(here)} but the corrector was trained on {list(self.shape)}; set "
                "model.resample = 'spectral' to refine at the trained resolution"
            )
        return False

    def joined_mask(self, mask: Tensor | None) -> Tensor | None:
        """Points that exist by the given mask and by the model's, [batch, 1, *space]; None for all."""
        if mask is None and self.mask is None:
            return None
        if mask is None or self.mask is None:
            return as_mask(mask if self.mask is None else self.mask)
        return as_mask(mask) & as_mask(self.mask)


def check_step(alpha: float, K: int) -> None:
    """Refuse a step that does not move.

    Raises:
        ValueError: alpha not positive and finite, or K below 1 or no whole number.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha={alpha}; expected a positive step, such as 0.2 (unroll) or 1.0 (detached)")
    if K < 1 or int(K) != K:
        raise ValueError(f"K={K}; expected a whole number of refinement steps from 1 on")


class _Callable(nn.Module):
    """A base that is a function, such as an interpolation."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=4)


def _leave_base_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for key in [k for k in state if k.startswith(f"{prefix}base.")]:
        del state[key]


def _expect_no_base(module: nn.Module, incompatible: Any) -> None:
    # Within a larger model the keys carry its prefix, which this hook is not told.
    own = {f"base.{name}" for name in ({} if module.base is None else module.base.state_dict())}
    missing = incompatible.missing_keys
    missing[:] = [key for key in missing if not any(key == name or key.endswith(f".{name}") for name in own)]
