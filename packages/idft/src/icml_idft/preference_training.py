"""DPO and SimPO on a user's model, by TRL: the rivals of a fine-tuning on the same demonstrations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from icml_lm import frozen_copy
from icml_lm.adapters import ALL_LINEAR
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from icml_idft.preferences import PreferenceLoss

FIGURES = ("loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")
"""What is kept of a step, under these names less their folders."""


def prefer(
    model: Any,
    pairs: Sequence[dict[str, Any]],
    tokenizer: Any,
    *,
    loss: str | PreferenceLoss = "dpo",
    lr: float,
    folder: str | Path,
    epochs: int = 1,
    batch: int = 16,
    micro_batch: int | None = None,
    schedule: str = "cosine",
    lr_warmup: int = 0,
    clip: float | None = 1.0,
    weight_decay: float = 0.0,
    lora: int | None = None,
    max_length: int = 1024,
    seed: int = 0,
    checkpoint_every: int = 0,
    callback: Callable[[int, dict[str, float]], Any] | None = None,
) -> tuple[Any, list[dict[str, float]]]:
    """Train a model on pairs with ``trl.DPOTrainer``, or with TRL's CPOTrainer and SimPO's loss.

    Args:
        model: a transformers causal model; changed in place, or wrapped by PEFT with ``lora``. DPO keeps a
            frozen copy beside it, or takes it with its adapters off.
        pairs: ``{"prompt", "chosen", "rejected"}`` each, as ``preference_pairs`` makes them.
        tokenizer: of the model, one of transformers'.
        loss: a kind, or a ``PreferenceLoss`` with its constants.
        lr: peak learning rate; DPO's and SimPO's are 10 to 100 times lower than SFT's.
        folder: for TRL's checkpoints; one that lies there is continued.
        epochs: passes over the pairs.
        batch: pairs of a step.
        micro_batch: pairs in memory at once; all of them by default.
        schedule: ``"cosine"``, ``"linear"`` or ``"constant"``.
        lr_warmup: steps of linear rise.
        clip: largest norm of the gradient, or None.
        weight_decay: of AdamW.
        lora: rank of adapters, or None to train all weights.
        max_length: tokens that are kept of a prompt and its answer.
        seed: of the order of the pairs.
        checkpoint_every: steps between checkpoints; 0 for none.
        callback: ``(step, figures)`` after every step.

    Returns:
        The model, and the figures of every step: ``loss``, ``accuracies`` (the chosen answer's reward is the
        larger one), ``margins`` of the rewards, log-probabilities ``chosen`` and ``rejected``, which are sums
        over an answer's tokens with DPO, and means with SimPO.

    Raises:
        ModuleNotFoundError: TRL is not installed.
        TypeError: a model that is not transformers'.
        ValueError: settings out of range, or no pair.
    """
    rule = PreferenceLoss(loss) if isinstance(loss, str) else loss
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"TRL trains transformers' models, not {type(model).__name__}; pass model.to_llama() with a "
            "tokenizer of transformers"
        )
    if not pairs:
        raise ValueError("there are no pairs; make them with preference_pairs")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr={lr} must be a positive number")
    at_once = batch if micro_batch is None else micro_batch
    if epochs < 1 or at_once < 1 or batch % at_once:
        raise ValueError(
            f"epochs={epochs} and batch={batch} must be positive, batch a multiple of micro_batch={at_once}"
        )
    try:
        import datasets
        import trl
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "DPO and SimPO need TRL: pip install 'icml-idft[trl]'", name=error.name
        ) from error

    folder = Path(folder)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": batch // at_once,
        "num_train_epochs": epochs,
        "learning_rate": lr,
        "lr_scheduler_type": schedule,
        "warmup_steps": lr_warmup,
        "max_grad_norm": clip or 0.0,
        "weight_decay": weight_decay,
        "max_length": max_length,
        "beta": rule.beta,
        "seed": seed,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "steps" if checkpoint_every else "no",
        "save_steps": checkpoint_every or 500,
        "save_total_limit": 1,
        "use_cpu": model.device.type == "cpu",
        "bf16": False,  # the weights' own type is used
        "gradient_checkpointing": False,
    }
    given: dict[str, Any] = {
        "train_dataset": datasets.Dataset.from_list(list(pairs)),
        "processing_class": tokenizer,
        "callbacks": [_Steps(callback)],
        "peft_config": _adapters(lora),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="trl")
        if rule.kind == "dpo":
            reference = None if lora else frozen_copy(model)
            trainer = trl.DPOTrainer(model, reference, args=trl.DPOConfig(**settings), **given)
        else:
            from trl.experimental.cpo import CPOConfig, CPOTrainer

            simpo = {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": rule.margin}
            trainer = CPOTrainer(model, CPOConfig(**settings, **simpo), **given)
        earlier = get_last_checkpoint(str(folder)) if folder.is_dir() else None
        trainer.train(resume_from_checkpoint=earlier)
    logged = [line for line in trainer.state.log_history if "loss" in line]
    return trainer.model.eval(), [{"step": float(line["step"]), **_figures(line)} for line in logged]


class _Steps(TrainerCallback):
    """Hands the figures of a step on."""

    def __init__(self, call: Callable[[int, dict[str, float]], Any] | None) -> None:
        self.call = call

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """After a step."""
        if self.call is not None and logs and "loss" in logs:
            self.call(state.global_step - 1, _figures(logs))


def _figures(line: dict[str, Any]) -> dict[str, float]:
    return {name.split("/")[-1]: float(line[name]) for name in FIGURES if name in line}


def _adapters(rank: int | None) -> Any:
    if not rank:
        return None
    import peft

    return peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM"
    )
