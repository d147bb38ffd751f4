"""Hodgkin-Huxley cells from recordings on electrode arrays, and their response to unseen stimulation (arXiv
2607.04063)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_hhmea.amortised import Simulator as Simulator
    from icml_hhmea.amortised import train_amortised as train_amortised
    from icml_hhmea.calibration import calibrate as calibrate
    from icml_hhmea.cell import Cell as Cell
    from icml_hhmea.channels import CalciumPool as CalciumPool
    from icml_hhmea.channels import Channel as Channel
    from icml_hhmea.channels import Gate as Gate
    from icml_hhmea.channels import Rate as Rate
    from icml_hhmea.channels import potassium_a as potassium_a
    from icml_hhmea.channels import retinal_ganglion as retinal_ganglion
    from icml_hhmea.channels import squid as squid
    from icml_hhmea.curves import ActivationCurve as ActivationCurve
    from icml_hhmea.descent import DescentOptions as DescentOptions
    from icml_hhmea.descent import GradientDescent as GradientDescent
    from icml_hhmea.dictionary import MultiSite as MultiSite
    from icml_hhmea.dictionary import distil as distil
    from icml_hhmea.electrodes import ElectrodeArray as ElectrodeArray
    from icml_hhmea.features import EIFeatures as EIFeatures
    from icml_hhmea.features import electrical_image as electrical_image
    from icml_hhmea.fitting import FitProblem as FitProblem
    from icml_hhmea.fitting import NeuronFit as NeuronFit
    from icml_hhmea.fitting import fit as fit
    from icml_hhmea.morphology import Morphology as Morphology
    from icml_hhmea.morphology import Section as Section
    from icml_hhmea.npe import AmortisedPosterior as AmortisedPosterior
    from icml_hhmea.npe import NPEOptions as NPEOptions
    from icml_hhmea.posterior import NeuronPosterior as NeuronPosterior
    from icml_hhmea.recordings import Recording as Recording
    from icml_hhmea.recordings import observe as observe
    from icml_hhmea.refinement import Refinement as Refinement
    from icml_hhmea.retina import RetinaOptions as RetinaOptions
    from icml_hhmea.retina import hidden_neuron as hidden_neuron
    from icml_hhmea.retina import triplets as triplets
    from icml_hhmea.rgc import RGC as RGC
    from icml_hhmea.rgc import Pose as Pose
    from icml_hhmea.selective import StimulusProblem as StimulusProblem
    from icml_hhmea.selective import StimulusSearch as StimulusSearch
    from icml_hhmea.selective import optimize_stimulus as optimize_stimulus
    from icml_hhmea.simulation import SimResult as SimResult
    from icml_hhmea.simulation import SimulationError as SimulationError
    from icml_hhmea.simulation import simulate as simulate
    from icml_hhmea.stimulus import ChargeLimit as ChargeLimit
    from icml_hhmea.stimulus import ExtracellularPattern as ExtracellularPattern
    from icml_hhmea.stimulus import IClamp as IClamp
    from icml_hhmea.stimulus import Waveform as Waveform
    from icml_hhmea.swc import read_swc as read_swc
    from icml_hhmea.thresholds import Protocol as Protocol
    from icml_hhmea.thresholds import log_thresholds as log_thresholds

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "RGC": "rgc",
        "ActivationCurve": "curves",
        "AmortisedPosterior": "npe",
        "CalciumPool": "channels",
        "Cell": "cell",
        "Channel": "channels",
        "ChargeLimit": "stimulus",
        "DescentOptions": "descent",
        "EIFeatures": "features",
        "ElectrodeArray": "electrodes",
        "ExtracellularPattern": "stimulus",
        "FitProblem": "fitting",
        "Gate": "channels",
        "GradientDescent": "descent",
        "IClamp": "stimulus",
        "Morphology": "morphology",
        "MultiSite": "dictionary",
        "NPEOptions": "npe",
        "NeuronFit": "fitting",
        "NeuronPosterior": "posterior",
        "Pose": "rgc",
        "Protocol": "thresholds",
        "Rate": "channels",
        "Recording": "recordings",
        "Refinement": "refinement",
        "RetinaOptions": "retina",
        "Section": "morphology",
        "SimResult": "simulation",
        "SimulationError": "simulation",
        "Simulator": "amortised",
        "StimulusProblem": "selective",
        "StimulusSearch": "selective",
        "Waveform": "stimulus",
        "calibrate": "calibration",
        "distil": "dictionary",
        "electrical_image": "features",
        "fit": "fitting",
        "hidden_neuron": "retina",
        "log_thresholds": "thresholds",
        "observe": "recordings",
        "optimize_stimulus": "selective",
        "potassium_a": "channels",
        "read_swc": "swc",
        "retinal_ganglion": "channels",
        "simulate": "simulation",
        "squid": "channels",
        "train_amortised": "amortised",
        "triplets": "retina",
    },
)
