"""The progressive spectral loss: amplitudes of prediction and target, high frequencies weighted ever more.

Spec(p, y; lam) = mean over half-plane bins of w (|P| - |Y|)^2 with w = 1 + (|omega| / 0.5)^lam over its mean
(arXiv 2605.24041). It sees no phase, so that the squared error must stay beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from icml_kernels import radial_spectral_loss, spectral_amplitude
from jaxtyping import Bool, Float
from torch import Tensor, nn

from icml_irno.boundaries import extend
from icml_irno.metrics import check_reduction


def spectral_loss(
    pred: Float[Tensor, "batch channels *space"],
    target: Float[Tensor, "batch channels *space"] | None,
    lam: float = 1.5,
    phase: bool = False,
    hermitian: bool = False,
    target_amp: Float[Tensor, "batch channels *half"] | None = None,
    *,
    reduction: str = "mean",
    mask: Bool[Tensor, ...] | None = None,
    extension: Sequence[str] | None = None,
) -> Tensor:
    """Mean over batch, channels and half-plane bins of w (|P| - |Y|)^2, P and Y orthonormal real transforms.

    Half precision is transformed in float32, also under autocast. The mean over samples is taken last:
    repeating a batch changes nothing, and parts of equal size average to the whole.

    Args:
        pred: the prediction.
        target: y; None where ``target_amp`` is given.
        lam: exponent of the weight; ``progressive_lam`` gives the paper's schedule over iterates.
        phase: compare complex coefficients, w |P - Y|^2, instead of amplitudes (not in the paper).
        hermitian: count columns twice that stand for two, so that Parseval's identity holds (not in the
            paper).
        target_amp: |Y|, kept from ``target_amplitude``, instead of a transform of the target at every
            iterate.
        reduction: ``"mean"``, or ``"none"`` for [batch].
        mask: True where a point counts; prediction and target are 0 elsewhere before the transform.
        extension: a mode for each axis; ``"reflect"`` and ``"zeros"`` axes are mirrored first, so that a wall
            makes no jump.

    Raises:
        ValueError: shapes that differ, neither target nor target_amp, target_amp with ``phase``, another
            reduction, or a lam below 0.
        TypeError: complex or integer fields.

    Example:
        >>> field = torch.tensor([[[1.0, -1.0, 1.0, -1.0]]])
        >>> float(spectral_loss(field, torch.zeros_like(field), lam=0.0, hermitian=True))
        1.0
    """
    check_reduction(reduction)
    if target is None and target_amp is None:
        raise ValueError("spectral_loss needs target, or target_amp from target_amplitude(target)")
    if phase and target_amp is not None:
        raise ValueError("phase=True compares complex coefficients; give target and no target_amp")
    if target is not None and target.shape != pred.shape:
        raise ValueError(
            f"prediction of shape {list(pred.shape)} and target of shape {list(target.shape)} differ"
        )
    if phase:
        difference = _ready(pred - target, mask, extension)
        amplitude = torch.zeros_like(difference[..., : difference.shape[-1] // 2 + 1]).float()
        values = radial_spectral_loss(difference, amplitude.to(difference), lam, hermitian=hermitian)
    else:
        amplitude = target_amplitude(target, mask, extension) if target_amp is None else target_amp
        values = radial_spectral_loss(_ready(pred, mask, extension), amplitude, lam, hermitian=hermitian)
    return values.mean() if reduction == "mean" else values


def target_amplitude(
    target: Float[Tensor, "batch channels *space"],
    mask: Bool[Tensor, ...] | None = None,
    extension: Sequence[str] | None = None,
) -> Float[Tensor, "batch channels *half"]:
    """|Y| for ``target_amp``: once a batch serves every iterate."""
    return spectral_amplitude(_ready(target, mask, extension))


def progressive_lam(k: int, K: int, lam: tuple[float, float]) -> float:
    """lam_k, linear from lam[0] for the first corrected iterate (k = 0) to lam[1] for the last (K - 1)."""
    return lam[0] if K == 1 else lam[0] + (lam[1] - lam[0]) * k / (K - 1)


class SpectralLoss(nn.Module):
    """:func:`spectral_loss` with its options fixed, for any training.

    Args:
        lam, phase, hermitian, reduction, extension: as of :func:`spectral_loss`.
    """

    def __init__(
        self,
        lam: float = 1.5,
        phase: bool = False,
        hermitian: bool = False,
        reduction: str = "mean",
        extension: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.lam, self.phase, self.hermitian, self.reduction = lam, phase, hermitian, reduction
        self.extension = None if extension is None else tuple(extension)

    def forward(
        self, pred: Float[Tensor, "batch channels *space"], target: Float[Tensor, "batch channels *space"]
    ) -> Tensor:
        """The loss."""
        return spectral_loss(
            pred, target, self.lam, self.phase, self.hermitian,
            reduction=self.reduction, extension=self.extension,
        )  # fmt: skip


def _ready(field: Tensor, mask: Tensor | None, extension: Sequence[str] | None) -> Tensor:
    if mask is not None:
        field = torch.where(mask, field, 0)
    return extend(field, extension)
