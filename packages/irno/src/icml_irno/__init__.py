"""Iterative refinement of a frozen neural operator: sharper small scales without retraining it.

IRNO, arXiv 2605.24041.
"""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_irno.backbones import ConvNeXtRefiner as ConvNeXtRefiner
    from icml_irno.backbones import FNORefiner as FNORefiner
    from icml_irno.backbones import ResNetRefiner as ResNetRefiner
    from icml_irno.backbones import make_refiner as make_refiner
    from icml_irno.base_training import fit_base as fit_base
    from icml_irno.checkpoints import load_fno as load_fno
    from icml_irno.checkpoints import load_irno as load_irno
    from icml_irno.checkpoints import load_well_base as load_well_base
    from icml_irno.checkpoints import save_fno as save_fno
    from icml_irno.checkpoints import save_irno as save_irno
    from icml_irno.checks import check_base as check_base
    from icml_irno.contraction import step_ratios as step_ratios
    from icml_irno.fixed_point import SolveInfo as SolveInfo
    from icml_irno.fixed_point import solve_fixed_point as solve_fixed_point
    from icml_irno.fno import FNO as FNO
    from icml_irno.metrics import band_energy as band_energy
    from icml_irno.metrics import band_mse as band_mse
    from icml_irno.metrics import vrmse as vrmse
    from icml_irno.operator import IRNO as IRNO
    from icml_irno.pde_refiner import DenoisingRefiner as DenoisingRefiner
    from icml_irno.refiner import Refiner as Refiner
    from icml_irno.resampling import spectral_resample as spectral_resample
    from icml_irno.rollouts import rollout as rollout
    from icml_irno.simulators import BicubicBase as BicubicBase
    from icml_irno.simulators import gray_scott as gray_scott
    from icml_irno.simulators import kolmogorov_flow as kolmogorov_flow
    from icml_irno.simulators import kuramoto_sivashinsky as kuramoto_sivashinsky
    from icml_irno.simulators import super_resolution as super_resolution
    from icml_irno.spectral_losses import SpectralLoss as SpectralLoss
    from icml_irno.spectral_losses import spectral_loss as spectral_loss
    from icml_irno.spectral_losses import target_amplitude as target_amplitude
    from icml_irno.spectrum import SpectrumEvaluator as SpectrumEvaluator
    from icml_irno.spectrum import lead_time_report as lead_time_report
    from icml_irno.spectrum import spectrum_report as spectrum_report
    from icml_irno.statistics import Statistics as Statistics
    from icml_irno.training import History as History
    from icml_irno.training import Training as Training
    from icml_irno.training import TrainingOptions as TrainingOptions
    from icml_irno.training import fit as fit

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "BicubicBase": "simulators",
        "ConvNeXtRefiner": "backbones",
        "DenoisingRefiner": "pde_refiner",
        "FNO": "fno",
        "FNORefiner": "backbones",
        "History": "training",
        "IRNO": "operator",
        "Refiner": "refiner",
        "ResNetRefiner": "backbones",
        "SolveInfo": "fixed_point",
        "SpectralLoss": "spectral_losses",
        "SpectrumEvaluator": "spectrum",
        "Statistics": "statistics",
        "Training": "training",
        "TrainingOptions": "training",
        "band_energy": "metrics",
        "band_mse": "metrics",
        "check_base": "checks",
        "fit": "training",
        "fit_base": "base_training",
        "gray_scott": "simulators",
        "kolmogorov_flow": "simulators",
        "kuramoto_sivashinsky": "simulators",
        "lead_time_report": "spectrum",
        "load_fno": "checkpoints",
        "load_irno": "checkpoints",
        "load_well_base": "checkpoints",
        "make_refiner": "backbones",
        "rollout": "rollouts",
        "save_fno": "checkpoints",
        "save_irno": "checkpoints",
        "solve_fixed_point": "fixed_point",
        "spectral_loss": "spectral_losses",
        "spectral_resample": "resampling",
        "spectrum_report": "spectrum",
        "step_ratios": "contraction",
        "super_resolution": "simulators",
        "target_amplitude": "spectral_losses",
        "vrmse": "metrics",
    },
)
