"""Which layers of a frozen model to pool, and a loss that keeps features isotropic (LOES, GeoReg; arXiv
2605.23033)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_loes.baselines import ScalarMix as ScalarMix
    from icml_loes.baselines import matrix_entropies as matrix_entropies
    from icml_loes.baselines import token_curvature as token_curvature
    from icml_loes.baselines import two_nn_dimension as two_nn_dimension
    from icml_loes.calibration import calibration_split as calibration_split
    from icml_loes.collector import Collected as Collected
    from icml_loes.collector import collect_states as collect_states
    from icml_loes.finetuning import FineTuning as FineTuning
    from icml_loes.finetuning import FineTuningOptions as FineTuningOptions
    from icml_loes.fused_layers import FusedLayers as FusedLayers
    from icml_loes.fused_layers import load_layers as load_layers
    from icml_loes.georeg import GeoRegLoss as GeoRegLoss
    from icml_loes.head import LoesHead as LoesHead
    from icml_loes.layered_model import LoesModel as LoesModel
    from icml_loes.model_selection import ModelLayerSelection as ModelLayerSelection
    from icml_loes.model_selection import ModelProblem as ModelProblem
    from icml_loes.model_selection import select_layers_from_model as select_layers_from_model
    from icml_loes.probe import RidgeProbe as RidgeProbe
    from icml_loes.profile import LayerProfile as LayerProfile
    from icml_loes.profile import ProfileEvaluator as ProfileEvaluator
    from icml_loes.profile import layer_profile as layer_profile
    from icml_loes.result import LoesResult as LoesResult
    from icml_loes.selection import LayerSelection as LayerSelection
    from icml_loes.selection import SelectionProblem as SelectionProblem
    from icml_loes.selection import select_layers as select_layers
    from icml_loes.transformer import LoesTransformer as LoesTransformer

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Collected": "collector",
        "FineTuning": "finetuning",
        "FineTuningOptions": "finetuning",
        "FusedLayers": "fused_layers",
        "GeoRegLoss": "georeg",
        "LayerProfile": "profile",
        "LayerSelection": "selection",
        "LoesHead": "head",
        "LoesModel": "layered_model",
        "LoesResult": "result",
        "LoesTransformer": "transformer",
        "ModelLayerSelection": "model_selection",
        "ModelProblem": "model_selection",
        "ProfileEvaluator": "profile",
        "RidgeProbe": "probe",
        "ScalarMix": "baselines",
        "SelectionProblem": "selection",
        "calibration_split": "calibration",
        "collect_states": "collector",
        "layer_profile": "profile",
        "load_layers": "fused_layers",
        "matrix_entropies": "baselines",
        "select_layers": "selection",
        "select_layers_from_model": "model_selection",
        "token_curvature": "baselines",
        "two_nn_dimension": "baselines",
    },
)
