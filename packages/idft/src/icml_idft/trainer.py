"""The loss inside ``transformers.Trainer`` and ``trl.SFTTrainer``: a loss function and a callback."""

from __future__ import annotations

from typing import Any

from icml_lm import Head, head_of
from icml_lm.cache import accepts
from icml_lm.decoder import backbone
from torch import Tensor
from transformers import TrainerCallback

from icml_idft.loss import IDFTLoss

_LOGGED = ("nll", "mean_weight", "weight_sum", "phi", "suppressed")


class TrainerLoss:
    """``compute_loss_func``: (outputs, labels, num_items_in_batch) -> loss. See ``IDFTLoss.as_hf``."""

    def __init__(self, loss: IDFTLoss, model: Any = None) -> None:
        self.loss = loss
        self.step: int | None = None
        self.total: int | None = None
        self._model, self._handles, self._hidden = model, [], None  # type: ignore[var-annotated]
        loss._trainer = self  # type: ignore[attr-defined]  # the callback finds it here
        if model is not None:
            if head_of(model) is None:
                raise TypeError(
                    f"the head of {type(model).__name__} is no plain linear layer (is it adapted?), so that "
                    "its loss cannot be taken from hidden states; call as_hf() without the model"
                )
            if not accepts(model, "logits_to_keep"):
                raise TypeError(
                    f"{type(model).__name__} always makes all logits (it takes no logits_to_keep); call "
                    "as_hf() without the model"
                )
            inner = backbone(model)
            self._handles = [
                model.register_forward_pre_hook(self._ask_for_one, with_kwargs=True),
                inner.register_forward_hook(self._keep),
            ]

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: float | Tensor | None = None
    ) -> Tensor:
        """The loss; without a number of items it counts the supervised tokens itself.

        Raises:
            ValueError: no labels, or outputs without logits.
        """
        if labels is None:
            raise ValueError("the batch has no labels; does the collator make them?")
        options = {"step": self.step, "total": self.total, "num_items": num_items_in_batch}
        if self._model is not None and self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            head = head_of(self._model)
            assert head is not None
            _require_same_head(head, hidden, outputs)
            return self.loss(None, labels, hidden=hidden, head=head, **options)  # type: ignore[arg-type]
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        if logits is None:
            raise ValueError(
                "the model's outputs have no logits (a fused head?); pass hidden= and head= to the loss, or "
                "use as_hf(model)"
            )
        return self.loss(logits, labels, **options)  # type: ignore[arg-type]

    def remove(self) -> None:
        """Take the hooks off the model, which then makes all logits again."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._model, self._hidden = [], None, None

    def _ask_for_one(self, model: Any, args: Any, inputs: dict[str, Any]) -> Any:
        # trl asks a second time for its own fused metrics; that pass is left alone.
        if "fused_lm_head" in inputs or "labels" in inputs:
            return None
        return args, {**inputs, "logits_to_keep": 1}

    def _keep(self, module: Any, args: Any, output: Any) -> None:
        self._hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state


class LossCallback(TrainerCallback):
    """Tells the loss where the training stands, and puts its statistics into the logs."""

    def __init__(self, loss: IDFTLoss) -> None:
        self.loss = loss

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before each update."""
        found = getattr(self.loss, "_trainer", None)
        if found is not None:
            found.step, found.total = state.global_step, state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the statistics of the last batch beside the loss."""
        if logs is None or "loss" not in logs or self.loss.tokens is None:
            return
        stats = self.loss.stats
        found = {name: stats[name] for name in _LOGGED}
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)


def _require_same_head(head: Head, hidden: Tensor, outputs: Any) -> None:
    """Refuse an architecture that does more to its logits than its configuration says."""
    import torch

    logits = getattr(outputs, "logits", None)
    if logits is None or logits.shape[1] == 0:
        return
    with torch.no_grad():
        own, ours = logits[:, -1].float(), head.logits(hidden[:, -1]).float()
        slack = 1e-3 if hidden.dtype in (torch.float32, torch.float64) else 2e-2
        if not torch.allclose(own, ours, rtol=slack, atol=slack * float(own.abs().max())):
            raise ValueError(
                "the model's logits are not its head's as the configuration describes it (scale, cap, bias); "
                "call as_hf() without the model"
            )
