"""The Spectral Sphere Optimizer: weights that stay on spheres of spectral norm (arXiv 2601.08393)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_sso.atoms import Atomic as Atomic
    from icml_sso.configurations import MoEConfig as MoEConfig
    from icml_sso.configurations import TransformerConfig as TransformerConfig
    from icml_sso.configurations import recipe as recipe
    from icml_sso.corpus import StreamCorpus as StreamCorpus
    from icml_sso.corpus import TokenCorpus as TokenCorpus
    from icml_sso.corpus import dataset_tokens as dataset_tokens
    from icml_sso.corpus import packed_tokens as packed_tokens
    from icml_sso.corpus import standard_library as standard_library
    from icml_sso.corpus import text_files as text_files
    from icml_sso.health import Health as Health
    from icml_sso.health import HealthMonitor as HealthMonitor
    from icml_sso.health import max_violation as max_violation
    from icml_sso.learning_rates import suggest_lr as suggest_lr
    from icml_sso.matrix_sign import MatrixSign as MatrixSign
    from icml_sso.matrix_sign import PolarFactor as PolarFactor
    from icml_sso.matrix_sign import exact_msign as exact_msign
    from icml_sso.matrix_sign import msign as msign
    from icml_sso.optimizer import SSO as SSO
    from icml_sso.optimizer import MuonSphere as MuonSphere
    from icml_sso.param_groups import build_param_groups as build_param_groups
    from icml_sso.pretraining import Pretraining as Pretraining
    from icml_sso.pretraining import PretrainingOptions as PretrainingOptions
    from icml_sso.singular_vectors import top_singular as top_singular
    from icml_sso.solver_options import SolverOptions as SolverOptions
    from icml_sso.spectral_init import spectral_mup_init_ as spectral_mup_init_
    from icml_sso.tangent_multiplier import LambdaResult as LambdaResult
    from icml_sso.tangent_multiplier import TangentLambda as TangentLambda
    from icml_sso.tangent_multiplier import TangentProblem as TangentProblem
    from icml_sso.tangent_multiplier import tangent_lambda as tangent_lambda
    from icml_sso.transformer import Transformer as Transformer

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Atomic": "atoms",
        "Health": "health",
        "HealthMonitor": "health",
        "LambdaResult": "tangent_multiplier",
        "MatrixSign": "matrix_sign",
        "MoEConfig": "configurations",
        "MuonSphere": "optimizer",
        "PolarFactor": "matrix_sign",
        "Pretraining": "pretraining",
        "PretrainingOptions": "pretraining",
        "SSO": "optimizer",
        "SolverOptions": "solver_options",
        "StreamCorpus": "corpus",
        "TangentLambda": "tangent_multiplier",
        "TangentProblem": "tangent_multiplier",
        "TokenCorpus": "corpus",
        "Transformer": "transformer",
        "TransformerConfig": "configurations",
        "build_param_groups": "param_groups",
        "dataset_tokens": "corpus",
        "exact_msign": "matrix_sign",
        "max_violation": "health",
        "msign": "matrix_sign",
        "packed_tokens": "corpus",
        "recipe": "configurations",
        "spectral_mup_init_": "spectral_init",
        "standard_library": "corpus",
        "suggest_lr": "learning_rates",
        "tangent_lambda": "tangent_multiplier",
        "text_files": "corpus",
        "top_singular": "singular_vectors",
    },
)
