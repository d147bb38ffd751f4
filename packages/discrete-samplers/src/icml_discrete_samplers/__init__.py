"""Samplers of discrete energies and bridges to them, trained off-policy so that they keep all modes."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_discrete_samplers.bridge import Bridge as Bridge
    from icml_discrete_samplers.bridge import BridgeOptions as BridgeOptions
    from icml_discrete_samplers.bridge import BridgeTrainer as BridgeTrainer
    from icml_discrete_samplers.bridge import fit_bridge as fit_bridge
    from icml_discrete_samplers.checks import Energy as Energy
    from icml_discrete_samplers.energies import QUBO as QUBO
    from icml_discrete_samplers.energies import GrayCoded as GrayCoded
    from icml_discrete_samplers.energies import Ising2D as Ising2D
    from icml_discrete_samplers.energies import Polynomial as Polynomial
    from icml_discrete_samplers.energies import Potts2D as Potts2D
    from icml_discrete_samplers.energies import from_callable as from_callable
    from icml_discrete_samplers.energies import from_torchgfn_env as from_torchgfn_env
    from icml_discrete_samplers.exact import enumerate_law as enumerate_law
    from icml_discrete_samplers.exact import kaufman_log_z as kaufman_log_z
    from icml_discrete_samplers.mcmc import Chains as Chains
    from icml_discrete_samplers.mcmc import MarkovChains as MarkovChains
    from icml_discrete_samplers.metrics import SamplerMetrics as SamplerMetrics
    from icml_discrete_samplers.moves import OneHot as OneHot
    from icml_discrete_samplers.moves import SwendsenWang as SwendsenWang
    from icml_discrete_samplers.networks import MaskedMLP as MaskedMLP
    from icml_discrete_samplers.networks import MaskedModel as MaskedModel
    from icml_discrete_samplers.networks import MaskedViT as MaskedViT
    from icml_discrete_samplers.networks import UniformMLP as UniformMLP
    from icml_discrete_samplers.off_policy import OffPolicyOptions as OffPolicyOptions
    from icml_discrete_samplers.off_policy import OffPolicyTrainer as OffPolicyTrainer
    from icml_discrete_samplers.off_policy import fit as fit
    from icml_discrete_samplers.posterior import class_likelihood as class_likelihood
    from icml_discrete_samplers.posterior import fit_posterior as fit_posterior
    from icml_discrete_samplers.posterior import posterior_energy as posterior_energy
    from icml_discrete_samplers.replay import ReplayBuffer as ReplayBuffer
    from icml_discrete_samplers.sampler import LogZ as LogZ
    from icml_discrete_samplers.sampler import MaskedSampler as MaskedSampler
    from icml_discrete_samplers.targets import Target as Target
    from icml_discrete_samplers.targets import target as target

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Bridge": "bridge",
        "BridgeOptions": "bridge",
        "BridgeTrainer": "bridge",
        "Chains": "mcmc",
        "Energy": "checks",
        "GrayCoded": "energies",
        "Ising2D": "energies",
        "LogZ": "sampler",
        "MarkovChains": "mcmc",
        "MaskedMLP": "networks",
        "MaskedModel": "networks",
        "MaskedSampler": "sampler",
        "MaskedViT": "networks",
        "OffPolicyOptions": "off_policy",
        "OffPolicyTrainer": "off_policy",
        "OneHot": "moves",
        "Polynomial": "energies",
        "Potts2D": "energies",
        "QUBO": "energies",
        "ReplayBuffer": "replay",
        "SamplerMetrics": "metrics",
        "SwendsenWang": "moves",
        "Target": "targets",
        "UniformMLP": "networks",
        "class_likelihood": "posterior",
        "enumerate_law": "exact",
        "fit": "off_policy",
        "fit_bridge": "bridge",
        "fit_posterior": "posterior",
        "from_callable": "energies",
        "from_torchgfn_env": "energies",
        "kaufman_log_z": "exact",
        "posterior_energy": "posterior",
        "target": "targets",
    },
)
