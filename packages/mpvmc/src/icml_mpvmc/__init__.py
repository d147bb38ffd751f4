"""Variational Monte Carlo with low-precision sampling, a certificate of its bias, and exact corrections."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_mpvmc.derivatives import log_derivatives as log_derivatives
    from icml_mpvmc.enumerated import EnumeratedSampler as EnumeratedSampler
    from icml_mpvmc.ground_state import GroundState as GroundState
    from icml_mpvmc.ground_state import GroundStateResult as GroundStateResult
    from icml_mpvmc.hamiltonian import Hamiltonian as Hamiltonian
    from icml_mpvmc.hamiltonian import Sector as Sector
    from icml_mpvmc.hamiltonian import as_spins as as_spins
    from icml_mpvmc.local_energy import local_energies as local_energies
    from icml_mpvmc.measuring import measure as measure
    from icml_mpvmc.metropolis import Metropolis as Metropolis
    from icml_mpvmc.models import RBM as RBM
    from icml_mpvmc.models import AmplitudePhase as AmplitudePhase
    from icml_mpvmc.models import LogPsi as LogPsi
    from icml_mpvmc.models import complex_rbm as complex_rbm
    from icml_mpvmc.reconfiguration import reconfigure as reconfigure
    from icml_mpvmc.report import PrecisionEvaluator as PrecisionEvaluator
    from icml_mpvmc.report import PrecisionReport as PrecisionReport
    from icml_mpvmc.report import precision_report as precision_report
    from icml_mpvmc.rescnn import ResCNN as ResCNN
    from icml_mpvmc.samples import Samples as Samples
    from icml_mpvmc.vmc import VMC as VMC
    from icml_mpvmc.vmc import History as History

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "AmplitudePhase": "models",
        "EnumeratedSampler": "enumerated",
        "GroundState": "ground_state",
        "GroundStateResult": "ground_state",
        "Hamiltonian": "hamiltonian",
        "History": "vmc",
        "LogPsi": "models",
        "Metropolis": "metropolis",
        "PrecisionEvaluator": "report",
        "PrecisionReport": "report",
        "RBM": "models",
        "ResCNN": "rescnn",
        "Samples": "samples",
        "Sector": "hamiltonian",
        "VMC": "vmc",
        "as_spins": "hamiltonian",
        "complex_rbm": "models",
        "local_energies": "local_energy",
        "log_derivatives": "derivatives",
        "measure": "measuring",
        "precision_report": "report",
        "reconfigure": "reconfiguration",
    },
)
