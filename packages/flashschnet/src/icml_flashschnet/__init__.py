"""Coarse-grained neural-network molecular dynamics at the speed of a classical force field."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_flashschnet.ase_calculator import FlashSchNetCalculator as FlashSchNetCalculator
    from icml_flashschnet.ase_calculator import to_ase as to_ase
    from icml_flashschnet.checkpoint import SavedModel as SavedModel
    from icml_flashschnet.checkpoint import load_model as load_model
    from icml_flashschnet.checkpoint import save_model as save_model
    from icml_flashschnet.compression import TableCompressor as TableCompressor
    from icml_flashschnet.compression import compress as compress
    from icml_flashschnet.demo import demo_model as demo_model
    from icml_flashschnet.demo import demo_prior as demo_prior
    from icml_flashschnet.force_matching import ForceMatcher as ForceMatcher
    from icml_flashschnet.force_matching import TrainingOptions as TrainingOptions
    from icml_flashschnet.global_distance import gdt_ts as gdt_ts
    from icml_flashschnet.mapping import map_forces as map_forces
    from icml_flashschnet.mapping import map_positions as map_positions
    from icml_flashschnet.mlcg_checkpoint import load_mlcg as load_mlcg
    from icml_flashschnet.periodic import energy_forces_stress as energy_forces_stress
    from icml_flashschnet.periodic import periodic_pairs as periodic_pairs
    from icml_flashschnet.potential import SumPotential as SumPotential
    from icml_flashschnet.prior import CGPrior as CGPrior
    from icml_flashschnet.prior_fit import PriorParameters as PriorParameters
    from icml_flashschnet.prior_fit import fit_prior as fit_prior
    from icml_flashschnet.reference_data import ReferenceData as ReferenceData
    from icml_flashschnet.reference_data import load_reference as load_reference
    from icml_flashschnet.replica_exchange import ExchangeStatistics as ExchangeStatistics
    from icml_flashschnet.replica_exchange import ReplicaExchangeSimulator as ReplicaExchangeSimulator
    from icml_flashschnet.schnet import FlashSchNet as FlashSchNet
    from icml_flashschnet.schnet import SchNetConfig as SchNetConfig
    from icml_flashschnet.simulation import LangevinSimulator as LangevinSimulator
    from icml_flashschnet.structure import Molecule as Molecule
    from icml_flashschnet.structure import chain_molecule as chain_molecule
    from icml_flashschnet.structure import example_structure as example_structure
    from icml_flashschnet.structure import read_pdb as read_pdb
    from icml_flashschnet.structure import write_pdb as write_pdb
    from icml_flashschnet.structure_evaluation import StructureEvaluator as StructureEvaluator
    from icml_flashschnet.structure_objects import from_ase as from_ase
    from icml_flashschnet.structure_objects import from_mdtraj as from_mdtraj
    from icml_flashschnet.structure_objects import from_openmm as from_openmm
    from icml_flashschnet.trajectory import Trajectory as Trajectory
    from icml_flashschnet.trajectory import load_trajectory as load_trajectory
    from icml_flashschnet.trajectory import write_dcd as write_dcd
    from icml_flashschnet.trajectory import write_xtc as write_xtc

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "CGPrior": "prior",
        "ExchangeStatistics": "replica_exchange",
        "FlashSchNet": "schnet",
        "FlashSchNetCalculator": "ase_calculator",
        "ForceMatcher": "force_matching",
        "LangevinSimulator": "simulation",
        "Molecule": "structure",
        "PriorParameters": "prior_fit",
        "ReferenceData": "reference_data",
        "ReplicaExchangeSimulator": "replica_exchange",
        "SavedModel": "checkpoint",
        "SchNetConfig": "schnet",
        "StructureEvaluator": "structure_evaluation",
        "SumPotential": "potential",
        "TableCompressor": "compression",
        "TrainingOptions": "force_matching",
        "Trajectory": "trajectory",
        "chain_molecule": "structure",
        "compress": "compression",
        "demo_model": "demo",
        "demo_prior": "demo",
        "energy_forces_stress": "periodic",
        "example_structure": "structure",
        "fit_prior": "prior_fit",
        "from_ase": "structure_objects",
        "from_mdtraj": "structure_objects",
        "from_openmm": "structure_objects",
        "gdt_ts": "global_distance",
        "load_mlcg": "mlcg_checkpoint",
        "load_model": "checkpoint",
        "load_reference": "reference_data",
        "load_trajectory": "trajectory",
        "map_forces": "mapping",
        "map_positions": "mapping",
        "periodic_pairs": "periodic",
        "read_pdb": "structure",
        "save_model": "checkpoint",
        "to_ase": "ase_calculator",
        "write_dcd": "trajectory",
        "write_xtc": "trajectory",
        "write_pdb": "structure",
    },
)
