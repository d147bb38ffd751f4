"""Train a masked diffusion model: cross-entropy of masked tokens, weighted by 1/t.

    L = E_l [ 1/t  mean_{maskable i} [i masked] (-log p(x_i | rest)) ],   t = l / N,  l uniform on 1 .. N

Exactly l of the N maskable positions are masked, the lower-variance form of the loss that masks each at a
rate t (Nie et al., arXiv 2502.09992, eq. 14; Sahoo et al., arXiv 2406.07524).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_core.randomness import seeded
from icml_kernels import token_stats
from icml_lm.training import TrainLog, train
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from icml_ccd.tiny_mdm import MDMConfig, TinyMDM

Batches = Callable[[int], tuple[Tensor, Tensor | None]]
"""Step → tokens [batch, length] and which of them may be masked (None for all)."""


def masked_copy(
    tokens: Int[Tensor, "batch length"],
    maskable: Bool[Tensor, "batch length"],
    mask_id: int,
    generator: torch.Generator,
) -> tuple[Int64[Tensor, "batch length"], Bool[Tensor, "batch length"], Float[Tensor, " batch"]]:
    """Mask a uniform number of every row's maskable positions: the ids, where masks are, and t = l / N.

    The numbers are spread evenly over the rows from a random start, which varies less than drawing them.
    """
    rows, device = len(tokens), tokens.device
    maskable = maskable.cpu()
    n = maskable.sum(1)
    start = torch.rand((), generator=generator, dtype=torch.float64)
    share = ((torch.arange(rows, dtype=torch.float64) + start) / rows)[
        torch.randperm(rows, generator=generator)
    ]
    count = ((share * n).long() + 1).minimum(n)
    keys = torch.rand(tokens.shape, generator=generator, dtype=torch.float64)
    rank = torch.where(maskable, keys, 2.0).argsort(1).argsort(1)
    masked = (rank < count[:, None]) & maskable
    t = (count / n.clamp(min=1)).to(device)
    masked = masked.to(device)
    return torch.where(masked, mask_id, tokens), masked, t


def masked_loss(
    model: Any, tokens: Int[Tensor, "batch length"], ids: Tensor, masked: Tensor, t: Tensor, maskable: Tensor
) -> Float[Tensor, ""]:
    """1/t-weighted cross-entropy of masked tokens, nats a maskable token."""
    shift = int(model.shift_logits)
    b, i = masked.nonzero(as_tuple=True)
    rows = b * tokens.shape[1] + (i - shift).clamp(min=0)
    if hasattr(model, "hidden"):
        hidden = model.hidden(ids).flatten(0, 1)[rows]
        logp = token_stats(hidden, tokens[b, i], weight=model.lm.lm_head.weight).logp
    else:
        logp = token_stats(model(ids).flatten(0, 1)[rows], tokens[b, i]).logp
    weight = 1 / (t * maskable.sum(1).clamp(min=1)).to(logp.dtype)
    return -(logp * weight[b]).sum() / len(tokens)


class MaskedDiffusionTraining:
    """A training of a ``TinyMDM``.

    Args:
        tokens: data [number, length], from which batches are drawn; or ``batches(step)``, which gives tokens
            and which of them may be masked.
        config: of the model.
        maskable: which positions may be masked, [length] or [number, length]; all by default. Prompts are
            not.
        steps: updates.
        batch: rows of an update, where ``tokens`` is a tensor.
        lr: peak learning rate.
        optimizer: a name of torch's or of a plug-in's (``"sso.sso"``).
        warmup, schedule, clip, weight_decay: as for ``icml_lm.train``.
        seed: of weights, batches and masks.
        model: a model to go on training, instead of a new one.

    Raises:
        ValueError: no data, positions without any that may be masked, masks in the data, tokens out of range.
    """

    def __init__(
        self,
        tokens: Int[Tensor, "number length"] | Batches,
        config: MDMConfig,
        *,
        maskable: Tensor | None = None,
        steps: int = 2000,
        batch: int = 64,
        lr: float = 3e-3,
        optimizer: str = "adamw",
        warmup: int | None = None,
        schedule: str = "cosine",
        clip: float | None = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        model: Any = None,
    ) -> None:
        if isinstance(tokens, Tensor):
            tokens, maskable = _checked(tokens, maskable, config)
            self._batches: Batches = _drawn(tokens, maskable, batch, seed)
        else:
            self._batches = tokens
        self.config, self.steps, self.seed = config, steps, seed
        self.model = TinyMDM(config, seed=seed) if model is None else model
        self._options = {
            "lr": lr,
            "optimizer": optimizer,
            "warmup": min(100, steps // 10) if warmup is None else warmup,
            "schedule": schedule,
            "clip": clip,
            "weight_decay": weight_decay,
        }
        self.log_: TrainLog | None = None

    def fit(
        self,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 0,
        callbacks: Any = (),
        progress: Any = None,
    ) -> MaskedDiffusionTraining:
        """Train, or go on from the checkpoint in a folder; ``model`` and ``log_`` hold the result."""
        mask_id = self.config.mask_id

        def batches(step: int) -> dict[str, Tensor]:
            tokens, maskable = self._batches(step)
            maskable = torch.ones_like(tokens, dtype=torch.bool) if maskable is None else maskable
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            ids, masked, t = masked_copy(tokens, maskable, mask_id, generator)
            return {"tokens": tokens, "ids": ids, "masked": masked, "t": t, "maskable": maskable}

        with seeded(self.seed):
            self.log_ = train(
                self.model,
                batches,
                lambda model, batch: masked_loss(model, **batch),
                steps=self.steps,
                seed=self.seed,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                callbacks=callbacks,
                progress=progress,
                **self._options,
            )
        self.model.eval()
        return self


def train_mdm(
    tokens: Int[Tensor, "number length"] | Batches,
    vocab: int,
    mask_id: int,
    seq_len: int,
    steps: int = 2000,
    *,
    d: int = 64,
    layers: int = 2,
    heads: int = 4,
    learned_positions: bool = True,
    shift_logits: bool = False,
    eos_id: int | None = None,
    **options: Any,
) -> TinyMDM:
    """Train a small masked diffusion model from nothing.

    Args:
        tokens: data, or a function from the step to a batch; see ``MaskedDiffusionTraining``.
        vocab: number of tokens, the mask among them.
        mask_id: the mask token.
        seq_len: length of the sequences.
        steps: updates.
        d, layers, heads: of the Transformer.
        learned_positions: whether every position has a vector of its own, beside rotary positions.
        shift_logits: train logits at a position to predict the next token.
        eos_id: end token.
        options: further ones of ``MaskedDiffusionTraining``.

    Raises:
        ValueError: as ``MaskedDiffusionTraining``; data of another length.

    Example:
        >>> data = torch.arange(8).repeat(16, 1)
        >>> model = train_mdm(data, vocab=9, mask_id=8, seq_len=8, steps=2, d=16, heads=2)
        >>> model(torch.full((1, 8), 8)).shape
        torch.Size([1, 8, 9])
    """
    if isinstance(tokens, Tensor) and tokens.dim() == 2 and tokens.shape[1] != seq_len:
        raise ValueError(f"tokens has {tokens.shape[1]} columns, and seq_len={seq_len}")
    config = MDMConfig(
        vocab=vocab,
        mask_id=mask_id,
        d=d,
        layers=layers,
        heads=heads,
        positions=seq_len if learned_positions else 0,
        shift_logits=shift_logits,
        eos_id=eos_id,
    )
    model: TinyMDM = MaskedDiffusionTraining(tokens, config, steps=steps, **options).fit().model
    return model


def _checked(tokens: Tensor, maskable: Tensor | None, config: MDMConfig) -> tuple[Tensor, Tensor]:
    if tokens.dim() != 2 or 0 in tokens.shape or tokens.is_floating_point():
        raise ValueError(
            f"tokens has shape {list(tokens.shape)} and dtype {tokens.dtype}; expected integer rows"
        )
    tokens = tokens.long()
    if int(tokens.min()) < 0 or int(tokens.max()) >= config.vocab:
        raise ValueError(
            f"tokens {int(tokens.min())} to {int(tokens.max())} do not fit a vocabulary of {config.vocab}"
        )
    may = torch.ones_like(tokens, dtype=torch.bool) if maskable is None else maskable.bool().expand_as(tokens)
    if not bool(may.any(1).all()):
        row = int((~may.any(1)).nonzero()[0])
        raise ValueError(f"row {row} has no position that may be masked")
    if bool(((tokens == config.mask_id) & may).any()):
        raise ValueError(f"the mask id {config.mask_id} occurs among the tokens to be learned")
    return tokens, may


def _drawn(tokens: Tensor, maskable: Tensor, batch: int, seed: int) -> Batches:
    def batches(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 7_368_787 + step)
        rows = torch.randint(len(tokens), (batch,), generator=generator)
        return tokens[rows], maskable[rows]

    return batches
