"""On-policy fine-tuning: a test of what a model would have said, a loss, a decoder that rewrites."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_idft.advice import Advice as Advice
    from icml_idft.advice import advise as advise
    from icml_idft.centred import CLL as CLL
    from icml_idft.centred import CentredLogLikelihood as CentredLogLikelihood
    from icml_idft.centred import cll as cll
    from icml_idft.demonstrations import encode_rows as encode_rows
    from icml_idft.demonstrations import read_rows as read_rows
    from icml_idft.finetuning import FineTuning as FineTuning
    from icml_idft.finetuning import TrainLog as TrainLog
    from icml_idft.finetuning import TrainOptions as TrainOptions
    from icml_idft.finetuning import finetune as finetune
    from icml_idft.hinted import Hinted as Hinted
    from icml_idft.hinted import HintedDecoder as HintedDecoder
    from icml_idft.loss import IDFTLoss as IDFTLoss
    from icml_idft.preconditioned import PreconditionedAdamW as PreconditionedAdamW
    from icml_idft.preference_training import prefer as prefer
    from icml_idft.preferences import PreferenceLoss as PreferenceLoss
    from icml_idft.preferences import preference_pairs as preference_pairs
    from icml_idft.published import published_loop as published_loop
    from icml_idft.realignment import Realignment as Realignment
    from icml_idft.realignment import realign as realign
    from icml_idft.rejection import rejection_sample as rejection_sample
    from icml_idft.separation import discriminability as discriminability
    from icml_idft.tabular import TabularLM as TabularLM

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Advice": "advice",
        "CLL": "centred",
        "CentredLogLikelihood": "centred",
        "FineTuning": "finetuning",
        "Hinted": "hinted",
        "HintedDecoder": "hinted",
        "IDFTLoss": "loss",
        "PreconditionedAdamW": "preconditioned",
        "PreferenceLoss": "preferences",
        "Realignment": "realignment",
        "TabularLM": "tabular",
        "TrainLog": "finetuning",
        "TrainOptions": "finetuning",
        "advise": "advice",
        "cll": "centred",
        "discriminability": "separation",
        "encode_rows": "demonstrations",
        "finetune": "finetuning",
        "prefer": "preference_training",
        "preference_pairs": "preferences",
        "published_loop": "published",
        "read_rows": "demonstrations",
        "realign": "realignment",
        "rejection_sample": "rejection",
    },
)
