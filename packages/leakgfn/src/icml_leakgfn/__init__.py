"""Generative flow networks that sample finished objects only, though trajectories are cut off (LeakGFN)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_leakgfn.assembly import NotExpressible as NotExpressible
    from icml_leakgfn.blocks import BlockLibrary as BlockLibrary
    from icml_leakgfn.conditions import ConditionedReward as ConditionedReward
    from icml_leakgfn.conditions import PreferenceReward as PreferenceReward
    from icml_leakgfn.conditions import hypervolume as hypervolume
    from icml_leakgfn.environments import Env as Env
    from icml_leakgfn.environments import World as World
    from icml_leakgfn.environments import check_edges as check_edges
    from icml_leakgfn.exact import ExactFlow as ExactFlow
    from icml_leakgfn.exact import FlowProblem as FlowProblem
    from icml_leakgfn.exact import exact_flow as exact_flow
    from icml_leakgfn.exact import exact_policy_distribution as exact_policy_distribution
    from icml_leakgfn.fragments import FragmentEnv as FragmentEnv
    from icml_leakgfn.genetic import genetic_search as genetic_search
    from icml_leakgfn.gfn import LeakGFN as LeakGFN
    from icml_leakgfn.losses import FlowMatchingLoss as FlowMatchingLoss
    from icml_leakgfn.losses import LeakLoss as LeakLoss
    from icml_leakgfn.losses import rows_from_edges as rows_from_edges
    from icml_leakgfn.metrics import MoleculeMetrics as MoleculeMetrics
    from icml_leakgfn.molecules import MoleculeGenerator as MoleculeGenerator
    from icml_leakgfn.networks import BlockGraphEncoder as BlockGraphEncoder
    from icml_leakgfn.networks import DualHead as DualHead
    from icml_leakgfn.networks import FlatEncoder as FlatEncoder
    from icml_leakgfn.reference_molecules import moses_smiles as moses_smiles
    from icml_leakgfn.rewards import Reward as Reward
    from icml_leakgfn.rewards import Shaping as Shaping
    from icml_leakgfn.samples import Samples as Samples
    from icml_leakgfn.scores import SimilarityTo as SimilarityTo
    from icml_leakgfn.scores import molecule_reward as molecule_reward
    from icml_leakgfn.torchgfn import from_torchgfn as from_torchgfn
    from icml_leakgfn.torchgfn import to_torchgfn as to_torchgfn
    from icml_leakgfn.worlds import BracketEnv as BracketEnv
    from icml_leakgfn.worlds import HyperGridEnv as HyperGridEnv

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "BlockGraphEncoder": "networks",
        "BlockLibrary": "blocks",
        "BracketEnv": "worlds",
        "ConditionedReward": "conditions",
        "DualHead": "networks",
        "Env": "environments",
        "ExactFlow": "exact",
        "FlatEncoder": "networks",
        "FlowMatchingLoss": "losses",
        "FlowProblem": "exact",
        "FragmentEnv": "fragments",
        "HyperGridEnv": "worlds",
        "LeakGFN": "gfn",
        "LeakLoss": "losses",
        "MoleculeGenerator": "molecules",
        "MoleculeMetrics": "metrics",
        "NotExpressible": "assembly",
        "PreferenceReward": "conditions",
        "Reward": "rewards",
        "Samples": "samples",
        "Shaping": "rewards",
        "SimilarityTo": "scores",
        "World": "environments",
        "check_edges": "environments",
        "exact_flow": "exact",
        "exact_policy_distribution": "exact",
        "from_torchgfn": "torchgfn",
        "genetic_search": "genetic",
        "hypervolume": "conditions",
        "molecule_reward": "scores",
        "moses_smiles": "reference_molecules",
        "rows_from_edges": "losses",
        "to_torchgfn": "torchgfn",
    },
)
