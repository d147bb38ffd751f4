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
        "covariance.batched_gram": ("batched_gram",),
        "covariance.spectrum_moments": ("SpectrumMoments", "spectrum_moments"),
        "dispatch": ("routes",),
        "flows.canonical_trees": ("BlockKinds", "CanonicalTrees", "canonical_trees"),
        "flows.dag_levels": ("dag_levels",),
        "flows.segment_logsumexp": ("segment_logsumexp",),
        "flows.unique_rows": ("unique_rows",),
        "graphs.local_moves": ("local_moves_pass",),
        "graphs.mwu_cover": ("cover_costs", "mwu_cover_pass", "raised_cover", "scaled_packing"),
        "graphs.pivot_rounds": ("pivot_rounds",),
        "graphs.wedges": ("bad_triangle_scan", "wedge_count", "wedge_enumerate"),
        "language.buffer_mix": ("Mixture", "buffer_mix"),
        "language.geometric_mix_sample": ("MixSample", "geometric_mix_sample"),
        "language.masked_entropy_argmax": ("RowScores", "masked_entropy_argmax"),
        "language.token_stats": ("TokenStats", "token_stats"),
        "language.topk_kl": ("topk_kl",),
        "language.topk_logprobs": ("TopK", "topk_logprobs"),
        "language.weighted_nll": ("WeightedNLL", "weighted_nll"),
        "lattices.hamming_ball_mh": ("SparseTerms", "Walked", "hamming_ball_mh", "sparse_terms"),
        "lattices.swendsen_wang": ("Swept", "swendsen_wang"),
        "matrices.block_krylov": ("KrylovTop", "block_vectors", "krylov_top", "start_block"),
        "matrices.krylov_sign": ("KrylovSign",),
        "matrices.lanczos": ("KrylovModel", "block_lanczos", "lanczos_top"),
        "matrices.msign": ("msign", "msign_rank1"),
        "matrices.ns_syrk": ("ns_poly", "ns_syrk"),
        "matrices.polar_express": ("polar_express_coefficients",),
        "matrices.rank1_load": ("rank1_load",),
        "matrices.retract_axpy": ("retract_axpy", "retract_axpy_"),
        "matrices.singular": ("power_iter", "top_singular"),
        "matrices.small_eigh": ("small_eigh",),
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
        "neurons.hh_run": ("HHRun", "Membrane", "hh_run", "hh_step"),
        "neurons.hines_solve": ("hines_solve",),
        "series.elastic_cross": ("elastic_cross",),
        "series.elastic_table": ("Alignment", "elastic_alignment"),
        "series.soft_elastic": ("soft_elastic",),
        "subspaces.block_b_orth": ("Orthogonalised", "block_b_orth"),
        "subspaces.lu_solve_adjoint": ("SparseFactors", "lu_solve_adjoint", "sparse_factors"),
        "subspaces.moment_accumulate": ("moment_accumulate", "moment_accumulate_"),
        "subspaces.spmm_csr": ("spmm_csr",),
        "spectral.mode_product": ("mode_product",),
        "spectral.radial_spectral_loss": ("radial_spectral_loss", "radial_weight", "spectral_amplitude"),
        "spectral.spectral_conv": ("corner_modes", "spectral_conv", "truncated_irfft", "truncated_rfft"),
        "unmasking.prefix_embed_cumsum": ("prefix_embed_cumsum",),
        "unmasking.unmask_step": ("Unmasked", "unmask_step"),
        "wavefunctions.metropolis_draws": ("metropolis_draws",),
        "wavefunctions.rbm_log_ratios": ("rbm_log_ratios",),
        "wavefunctions.rbm_metropolis": ("largest_hidden_angle", "rbm_metropolis", "single_flips"),
    },
)

if TYPE_CHECKING:
    from icml_kernels.covariance.batched_gram import batched_gram as batched_gram
    from icml_kernels.covariance.spectrum_moments import SpectrumMoments as SpectrumMoments
    from icml_kernels.covariance.spectrum_moments import spectrum_moments as spectrum_moments
    from icml_kernels.dispatch import routes as routes
    from icml_kernels.flows.canonical_trees import BlockKinds as BlockKinds
    from icml_kernels.flows.canonical_trees import CanonicalTrees as CanonicalTrees
    from icml_kernels.flows.canonical_trees import canonical_trees as canonical_trees
    from icml_kernels.flows.dag_levels import dag_levels as dag_levels
    from icml_kernels.flows.segment_logsumexp import segment_logsumexp as segment_logsumexp
    from icml_kernels.flows.unique_rows import unique_rows as unique_rows
    from icml_kernels.graphs.local_moves import local_moves_pass as local_moves_pass
    from icml_kernels.graphs.mwu_cover import cover_costs as cover_costs
    from icml_kernels.graphs.mwu_cover import mwu_cover_pass as mwu_cover_pass
    from icml_kernels.graphs.mwu_cover import raised_cover as raised_cover
    from icml_kernels.graphs.mwu_cover import scaled_packing as scaled_packing
    from icml_kernels.graphs.pivot_rounds import pivot_rounds as pivot_rounds
    from icml_kernels.graphs.wedges import bad_triangle_scan as bad_triangle_scan
    from icml_kernels.graphs.wedges import wedge_count as wedge_count
    from icml_kernels.graphs.wedges import wedge_enumerate as wedge_enumerate
    from icml_kernels.language.buffer_mix import Mixture as Mixture
    from icml_kernels.language.buffer_mix import buffer_mix as buffer_mix
    from icml_kernels.language.geometric_mix_sample import MixSample as MixSample
    from icml_kernels.language.geometric_mix_sample import geometric_mix_sample as geometric_mix_sample
    from icml_kernels.language.masked_entropy_argmax import RowScores as RowScores
    from icml_kernels.language.masked_entropy_argmax import masked_entropy_argmax as masked_entropy_argmax
    from icml_kernels.language.token_stats import TokenStats as TokenStats
    from icml_kernels.language.token_stats import token_stats as token_stats
    from icml_kernels.language.topk_kl import topk_kl as topk_kl
    from icml_kernels.language.topk_logprobs import TopK as TopK
    from icml_kernels.language.topk_logprobs import topk_logprobs as topk_logprobs
    from icml_kernels.language.weighted_nll import WeightedNLL as WeightedNLL
    from icml_kernels.language.weighted_nll import weighted_nll as weighted_nll
    from icml_kernels.lattices.hamming_ball_mh import SparseTerms as SparseTerms
    from icml_kernels.lattices.hamming_ball_mh import Walked as Walked
    from icml_kernels.lattices.hamming_ball_mh import hamming_ball_mh as hamming_ball_mh
    from icml_kernels.lattices.hamming_ball_mh import sparse_terms as sparse_terms
    from icml_kernels.lattices.swendsen_wang import Swept as Swept
    from icml_kernels.lattices.swendsen_wang import swendsen_wang as swendsen_wang
    from icml_kernels.matrices.block_krylov import KrylovTop as KrylovTop
    from icml_kernels.matrices.block_krylov import block_vectors as block_vectors
    from icml_kernels.matrices.block_krylov import krylov_top as krylov_top
    from icml_kernels.matrices.block_krylov import start_block as start_block
    from icml_kernels.matrices.krylov_sign import KrylovSign as KrylovSign
    from icml_kernels.matrices.lanczos import KrylovModel as KrylovModel
    from icml_kernels.matrices.lanczos import block_lanczos as block_lanczos
    from icml_kernels.matrices.lanczos import lanczos_top as lanczos_top
    from icml_kernels.matrices.msign import msign as msign
    from icml_kernels.matrices.msign import msign_rank1 as msign_rank1
    from icml_kernels.matrices.ns_syrk import ns_poly as ns_poly
    from icml_kernels.matrices.ns_syrk import ns_syrk as ns_syrk
    from icml_kernels.matrices.polar_express import polar_express_coefficients as polar_express_coefficients
    from icml_kernels.matrices.rank1_load import rank1_load as rank1_load
    from icml_kernels.matrices.retract_axpy import retract_axpy as retract_axpy
    from icml_kernels.matrices.retract_axpy import retract_axpy_ as retract_axpy_
    from icml_kernels.matrices.singular import power_iter as power_iter
    from icml_kernels.matrices.singular import top_singular as top_singular
    from icml_kernels.matrices.small_eigh import small_eigh as small_eigh
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
    from icml_kernels.neurons.hh_run import HHRun as HHRun
    from icml_kernels.neurons.hh_run import Membrane as Membrane
    from icml_kernels.neurons.hh_run import hh_run as hh_run
    from icml_kernels.neurons.hh_run import hh_step as hh_step
    from icml_kernels.neurons.hines_solve import hines_solve as hines_solve
    from icml_kernels.series.elastic_cross import elastic_cross as elastic_cross
    from icml_kernels.series.elastic_table import Alignment as Alignment
    from icml_kernels.series.elastic_table import elastic_alignment as elastic_alignment
    from icml_kernels.series.soft_elastic import soft_elastic as soft_elastic
    from icml_kernels.spectral.mode_product import mode_product as mode_product
    from icml_kernels.spectral.radial_spectral_loss import radial_spectral_loss as radial_spectral_loss
    from icml_kernels.spectral.radial_spectral_loss import radial_weight as radial_weight
    from icml_kernels.spectral.radial_spectral_loss import spectral_amplitude as spectral_amplitude
    from icml_kernels.spectral.spectral_conv import corner_modes as corner_modes
    from icml_kernels.spectral.spectral_conv import spectral_conv as spectral_conv
    from icml_kernels.spectral.spectral_conv import truncated_irfft as truncated_irfft
    from icml_kernels.spectral.spectral_conv import truncated_rfft as truncated_rfft
    from icml_kernels.subspaces.block_b_orth import Orthogonalised as Orthogonalised
    from icml_kernels.subspaces.block_b_orth import block_b_orth as block_b_orth
    from icml_kernels.subspaces.lu_solve_adjoint import SparseFactors as SparseFactors
    from icml_kernels.subspaces.lu_solve_adjoint import lu_solve_adjoint as lu_solve_adjoint
    from icml_kernels.subspaces.lu_solve_adjoint import sparse_factors as sparse_factors
    from icml_kernels.subspaces.moment_accumulate import moment_accumulate as moment_accumulate
    from icml_kernels.subspaces.moment_accumulate import moment_accumulate_ as moment_accumulate_
    from icml_kernels.subspaces.spmm_csr import spmm_csr as spmm_csr
    from icml_kernels.unmasking.prefix_embed_cumsum import prefix_embed_cumsum as prefix_embed_cumsum
    from icml_kernels.unmasking.unmask_step import Unmasked as Unmasked
    from icml_kernels.unmasking.unmask_step import unmask_step as unmask_step
    from icml_kernels.wavefunctions.metropolis_draws import metropolis_draws as metropolis_draws
    from icml_kernels.wavefunctions.rbm_log_ratios import rbm_log_ratios as rbm_log_ratios
    from icml_kernels.wavefunctions.rbm_metropolis import largest_hidden_angle as largest_hidden_angle
    from icml_kernels.wavefunctions.rbm_metropolis import rbm_metropolis as rbm_metropolis
    from icml_kernels.wavefunctions.rbm_metropolis import single_flips as single_flips
