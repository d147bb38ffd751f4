"""Prior energies of coarse-grained molecules: bonds, angles, dihedrals and repulsion of all replicas at once.

The forms are those of mlcg (`bonded_terms` writes them out). One pass over a replica gives its energies and
exact forces, with the terms of one molecule shared by all replicas.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.bonded import reference
from icml_kernels.molecules.bonded.terms import BondedTerms as BondedTerms
from icml_kernels.molecules.bonded.terms import bonded_terms as bonded_terms
from icml_kernels.molecules.checks import FLOATS, require_list, require_shape
from icml_kernels.molecules.neighbors import HalfList

_HERE = "icml_kernels.molecules.bonded"
PARTS = ("bond", "angle", "dihedral", "repulsion")
"""Order of the energies that `bonded_energy_forces` gives."""


def bonded_energy(
    pos: Float[Tensor, "replicas beads 3"],
    terms: BondedTerms,
    pairs: HalfList | None = None,
    offset: Float[Tensor, "pairs 3"] | None = None,
) -> Float[Tensor, " replicas"]:
    """Energy of each replica in kcal/mol, float64: the sum of the terms that `bonded_terms` writes out.

    Differentiable at will by the positions, the coefficients and the offsets. The first derivative by the
    positions is computed together with the energy; all others run in plain torch.

    Args:
        pos: Positions in Å. Bonded beads stand whole: only `pairs` may cross a periodic boundary.
        terms: The molecule's terms.
        pairs: For the repulsion: pairs of beads (numbered replica * beads + bead), without those that are
            bonded too closely (`without_pairs`); needed where the terms have a repulsion.
        offset: What is added to x_j - x_i of each pair (lattice vectors of periodic images), in Å.

    Raises:
        TypeError: Positions neither float32 nor float64.
        ValueError: Beads, pairs or devices that do not fit the terms.
    """
    tensors, limits = _arguments(pos, terms, pairs, offset)
    return _bonded(*tensors, *limits)[0]


def bonded_energy_forces(
    pos: Float[Tensor, "replicas beads 3"],
    terms: BondedTerms,
    pairs: HalfList | None = None,
    offset: Float[Tensor, "pairs 3"] | None = None,
) -> tuple[Float[Tensor, "replicas 4"], Float[Tensor, "replicas beads 3"]]:
    """Energies of bonds, angles, dihedrals and repulsion (kcal/mol, float64), and forces; without a graph.

    Args:
        pos: Positions in Å.
        terms: The molecule's terms.
        pairs: As in `bonded_energy`.
        offset: As in `bonded_energy`.

    Raises:
        TypeError: Positions neither float32 nor float64.
        ValueError: Beads, pairs or devices that do not fit the terms.
    """
    tensors, limits = _arguments(pos, terms, pairs, offset)
    energy, gradient = _energy_gradient(*(tensor.detach() for tensor in tensors), *limits)
    return energy, -gradient


def _arguments(
    pos: Tensor, terms: BondedTerms, pairs: HalfList | None, offset: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[float, float]]:
    if pos.dtype not in FLOATS:
        raise TypeError(f"pos has dtype {pos.dtype}; expected torch.float32 or torch.float64")
    require_shape("pos", pos, (None, terms.n_beads, 3))
    if terms.bonds.device != pos.device:
        raise ValueError(f"terms lie on {terms.bonds.device} but pos on {pos.device}; use terms.to(...)")
    if pairs is None:
        if len(terms.sigma):
            raise ValueError("the terms have a repulsion (sigma); give the pairs that it acts on")
        none = torch.zeros(0, dtype=torch.int32, device=pos.device)
        pointers = torch.zeros(pos.shape[0] * pos.shape[1] + 1, dtype=torch.int32, device=pos.device)
        lists = (pointers, none, pointers, none, none)
    else:
        require_list(pairs, pos.device)
        if pairs.n_atoms != pos.shape[0] * pos.shape[1]:
            raise ValueError(
                f"pairs has {pairs.n_atoms} rows; {pos.shape[0]} replicas of {pos.shape[1]} beads need "
                f"{pos.shape[0] * pos.shape[1]}"
            )
        lists = pairs.tensors()
    if offset is None:
        offset = pos.new_zeros(0, 3)
    else:
        require_shape("offset", offset, (lists[1].shape[0], 3))
    tensors = (
        pos,
        terms.bonds,
        terms.bond_table,
        terms.angles,
        terms.angle_table,
        terms.dihedrals,
        terms.dihedral_table,
        terms.types,
        terms.sigma,
        *lists,
        offset,
        terms.incidence_ptr,
        terms.incidence,
    )
    return tensors, (terms.cutoff, terms.switch)


def _fake(pos: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return pos.new_empty(pos.shape[0], len(PARTS), dtype=torch.float64), torch.empty_like(pos)


_energy_gradient = raw_op(
    "bonded_energy_gradient",
    reference.energy_gradient,
    fake=_fake,
    cpu=f"{_HERE}.cpu:energy_gradient",
    cuda=f"{_HERE}.triton:energy_gradient",
)

_VALUES = (0, 2, 4, 6, 8, 14)
"""Positions of pos, the four tables and offset among the arguments: what derivatives are taken by."""


def _pull_back(
    by_energy: Tensor, by_gradient: Tensor, tensors: tuple[Tensor, ...], limits: tuple[float, ...]
) -> Any:
    """Gradient of sum(by_energy * E) + sum(by_gradient * dE/dx) by what derivatives are taken by."""

    def definition(*values: Tensor) -> tuple[Tensor, Tensor]:
        arguments = list(tensors)
        for place, value in zip(_VALUES, values, strict=True):
            arguments[place] = value
        parts, gradient = reference.energy_gradient(*arguments, *limits)
        return parts.sum(-1), gradient

    _, vjp = torch.func.vjp(definition, *(tensors[place] for place in _VALUES))
    return vjp((by_energy, by_gradient))


class _HessianProduct(torch.autograd.Function):
    """(direction, arguments) -> the Hessian times the direction, [replicas, beads, 3]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(direction: Tensor, *arguments: Any) -> Tensor:
        zero = direction.new_zeros(direction.shape[0], dtype=torch.float64)
        return _pull_back(zero, direction, arguments[:-2], arguments[-2:])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: forward mode over forward mode is not offered."""


_hessian_product = differentiable(_HessianProduct)


class _Bonded(torch.autograd.Function):
    """(pos, tables, offset) -> (energy, gradient); the gradient is what backward multiplies."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        parts, gradient = _energy_gradient(*arguments)
        return parts.sum(-1), gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1], *inputs[:-2])
        ctx.save_for_forward(output[1], *inputs[:-2])
        ctx.limits = inputs[-2:]
        # The gradient of the second output is rare and dear: None tells that nobody asks for it.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_energy: Any, by_gradient: Any) -> Any:
        gradient, *tensors = ctx.saved_tensors
        result: list[Any] = [None] * (len(tensors) + 2)
        wanted = [place for place in _VALUES if ctx.needs_input_grad[place]]
        if by_energy is None:
            by_energy = gradient.new_zeros(gradient.shape[0], dtype=torch.float64)
        if by_gradient is None and wanted == [0]:
            result[0] = by_energy[:, None, None].to(gradient.dtype) * gradient
            return tuple(result)
        if by_gradient is None:
            by_gradient = torch.zeros_like(gradient)
        gradients = _pull_back(by_energy, by_gradient, tuple(tensors), ctx.limits)
        for place, value in zip(_VALUES, gradients, strict=True):
            result[place] = value
        return tuple(result)

    @staticmethod
    def jvp(ctx: Any, pos_t: Any, *rest: Any) -> Any:
        gradient, *tensors = ctx.saved_tensors
        if any(t is not None for t in rest):
            raise RuntimeError(
                "bonded_energy has forward-mode derivatives by the positions alone; "
                "use reverse mode for the coefficients"
            )
        energy_t = (gradient * pos_t).double().sum((-1, -2))
        return energy_t, _hessian_product(pos_t, *tensors, *ctx.limits)


_bonded = differentiable(_Bonded)
