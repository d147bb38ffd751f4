"""Coherent contextual decoding of masked diffusion language models (arXiv 2512.02044)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_ccd.bench import Bench as Bench
    from icml_ccd.coherent_plus import CCDPlus as CCDPlus
    from icml_ccd.coherent_rules import CCD as CCD
    from icml_ccd.coherent_rules import CCDDS as CCDDS
    from icml_ccd.decoding import decode as decode
    from icml_ccd.exact_denoiser import ExactDenoiser as ExactDenoiser
    from icml_ccd.folder_models import load_mdm as load_mdm
    from icml_ccd.hidden_markov import HiddenMarkovDenoiser as HiddenMarkovDenoiser
    from icml_ccd.likelihood import Bound as Bound
    from icml_ccd.likelihood import exact_bound as exact_bound
    from icml_ccd.likelihood import loglik as loglik
    from icml_ccd.local_rules import AgreementRule as AgreementRule
    from icml_ccd.local_rules import LocalRule as LocalRule
    from icml_ccd.local_rules import ThresholdRule as ThresholdRule
    from icml_ccd.logit_shift import UnclearShift as UnclearShift
    from icml_ccd.logit_shift import measure_shift as measure_shift
    from icml_ccd.masked_decoder import MaskedDecoder as MaskedDecoder
    from icml_ccd.pictures import order_picture as order_picture
    from icml_ccd.released_rule import CCDReleased as CCDReleased
    from icml_ccd.rules import make_rule as make_rule
    from icml_ccd.sequence_distribution import decoder_distribution as decoder_distribution
    from icml_ccd.sequence_distribution import forced_logp as forced_logp
    from icml_ccd.step_state import Rule as Rule
    from icml_ccd.step_state import Selection as Selection
    from icml_ccd.step_state import StepState as StepState
    from icml_ccd.tasks import Addition as Addition
    from icml_ccd.tasks import Sudoku as Sudoku
    from icml_ccd.text_mdm import smollm2_mdm as smollm2_mdm
    from icml_ccd.tiny_mdm import MDMConfig as MDMConfig
    from icml_ccd.tiny_mdm import TinyMDM as TinyMDM
    from icml_ccd.trace import DecodeOutput as DecodeOutput
    from icml_ccd.trace import DecodeTrace as DecodeTrace
    from icml_ccd.training import MaskedDiffusionTraining as MaskedDiffusionTraining
    from icml_ccd.training import train_mdm as train_mdm
    from icml_ccd.trips import Trips as Trips

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Addition": "tasks",
        "AgreementRule": "local_rules",
        "Bench": "bench",
        "Bound": "likelihood",
        "CCD": "coherent_rules",
        "CCDDS": "coherent_rules",
        "CCDPlus": "coherent_plus",
        "CCDReleased": "released_rule",
        "DecodeOutput": "trace",
        "DecodeTrace": "trace",
        "ExactDenoiser": "exact_denoiser",
        "HiddenMarkovDenoiser": "hidden_markov",
        "LocalRule": "local_rules",
        "MDMConfig": "tiny_mdm",
        "MaskedDecoder": "masked_decoder",
        "MaskedDiffusionTraining": "training",
        "Rule": "step_state",
        "Selection": "step_state",
        "StepState": "step_state",
        "Sudoku": "tasks",
        "ThresholdRule": "local_rules",
        "TinyMDM": "tiny_mdm",
        "Trips": "trips",
        "UnclearShift": "logit_shift",
        "decode": "decoding",
        "decoder_distribution": "sequence_distribution",
        "exact_bound": "likelihood",
        "forced_logp": "sequence_distribution",
        "load_mdm": "folder_models",
        "loglik": "likelihood",
        "make_rule": "rules",
        "measure_shift": "logit_shift",
        "order_picture": "pictures",
        "smollm2_mdm": "text_mdm",
        "train_mdm": "training",
    },
)
