"""All ways to name a Hamiltonian, in one place."""

from icml_mpvmc.fermions import from_integrals as from_integrals
from icml_mpvmc.fermions import from_molecule as from_molecule
from icml_mpvmc.foreign import from_netket as from_netket
from icml_mpvmc.foreign import from_scipy as from_scipy
from icml_mpvmc.hamiltonian import Hamiltonian as Hamiltonian
from icml_mpvmc.hamiltonian import Sector as Sector
from icml_mpvmc.lattices import J1J2 as J1J2
from icml_mpvmc.lattices import TFIM as TFIM
from icml_mpvmc.lattices import Heisenberg as Heisenberg
from icml_mpvmc.pauli import PauliSum as PauliSum
