"""Hot loops of many papers as PyTorch operators: plain torch, numba on the CPU, Triton on the GPU.

Every public function is differentiable unless it says otherwise, works in float32 and float64, runs
where its tensors lie, and is documented where it is defined. The names below load on first use.
"""

from typing import TYPE_CHECKING

from icml_kernels import _lazy

# The submodules, and the public names that each offers.
__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    {
        "dispatch": ("routes",),
        "graphs.local_moves": ("local_moves_pass",),
        "graphs.mwu_cover": ("cover_costs", "mwu_cover_pass", "raised_cover", "scaled_packing"),
        "graphs.pivot_rounds": ("pivot_rounds",),
        "graphs.wedges": ("bad_triangle_scan", "wedge_count", "wedge_enumerate"),
        "molecules.bonded": ("BondedTerms", "bonded_energy", "bonded_energy_forces", "bonded_terms"),
        "molecules.cfconv_mlp": ("cfconv_mlp",),
        "molecules.cfconv_table": ("cfconv_table",),
        "molecules.langevin_baoab": (
            "baoab_drift",
            "blown_replicas",
            "brownian_step",
            "half_kick",
            "philox_normal",
        ),
        "molecules.neighbors": ("HalfList", "half_list", "transposed_list"),
        "molecules.pair_geometry": ("pair_geometry",),
        "molecules.radius_pairs": ("list_is_stale", "radius_pairs", "without_pairs"),
        "molecules.segment_sum_csr": ("segment_sum_csr",),
    },
)

if TYPE_CHECKING:
    from icml_kernels.dispatch import routes as routes
    from icml_kernels.graphs.local_moves import local_moves_pass as local_moves_pass
    from icml_kernels.graphs.mwu_cover import cover_costs as cover_costs
    from icml_kernels.graphs.mwu_cover import mwu_cover_pass as mwu_cover_pass
    from icml_kernels.graphs.mwu_cover import raised_cover as raised_cover
    from icml_kernels.graphs.mwu_cover import scaled_packing as scaled_packing
    from icml_kernels.graphs.pivot_rounds import pivot_rounds as pivot_rounds
    from icml_kernels.graphs.wedges import bad_triangle_scan as bad_triangle_scan
    from icml_kernels.graphs.wedges import wedge_count as wedge_count
    from icml_kernels.graphs.wedges import wedge_enumerate as wedge_enumerate
    from icml_kernels.molecules.bonded import BondedTerms as BondedTerms
    from icml_kernels.molecules.bonded import bonded_energy as bonded_energy
    from icml_kernels.molecules.bonded import bonded_energy_forces as bonded_energy_forces
    from icml_kernels.molecules.bonded import bonded_terms as bonded_terms
    from icml_kernels.molecules.cfconv_mlp import cfconv_mlp as cfconv_mlp
    from icml_kernels.molecules.cfconv_table import cfconv_table as cfconv_table
    from icml_kernels.molecules.langevin_baoab import baoab_drift as baoab_drift
    from icml_kernels.molecules.langevin_baoab import blown_replicas as blown_replicas
    from icml_kernels.molecules.langevin_baoab import brownian_step as brownian_step
    from icml_kernels.molecules.langevin_baoab import half_kick as half_kick
    from icml_kernels.molecules.langevin_baoab import philox_normal as philox_normal
    from icml_kernels.molecules.neighbors import HalfList as HalfList
    from icml_kernels.molecules.neighbors import half_list as half_list
    from icml_kernels.molecules.neighbors import transposed_list as transposed_list
    from icml_kernels.molecules.pair_geometry import pair_geometry as pair_geometry
    from icml_kernels.molecules.radius_pairs import list_is_stale as list_is_stale
    from icml_kernels.molecules.radius_pairs import radius_pairs as radius_pairs
    from icml_kernels.molecules.radius_pairs import without_pairs as without_pairs
    from icml_kernels.molecules.segment_sum_csr import segment_sum_csr as segment_sum_csr
