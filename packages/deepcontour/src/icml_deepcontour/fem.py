"""Kirchhoff plates by finite elements: Morley triangles of scikit-fem, with a consistent mass."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from icml_core.errors import NeedsError, install_command

from icml_deepcontour.datasets import FIELD, Instance


def morley_plate(refinements: int, seed: int, *, poisson: float = 0.3, size: int = FIELD) -> Instance:
    """A clamped square plate of variable thickness, Morley elements, consistent mass.

    A(u, v) = integral of D ((1 - nu) D2u : D2v + nu lap u lap v), B(u, v) = integral of t u v, D = t^3,
    t = 1 + 0.3 sin(2 pi (x + a)) cos(2 pi (y + b)).

    Args:
        refinements: of two triangles; 5 give about 4,000 unknowns.
        seed: chooses a and b.
        poisson: nu.
        size: points of the fields along an edge.

    Raises:
        NeedsError: scikit-fem is not installed.
        ValueError: refinements outside of 1 to 9.
    """
    if not 1 <= refinements <= 9:
        raise ValueError(f"refinements={refinements}; expected 1 to 9")
    try:
        import skfem
        from skfem.helpers import dd, ddot, eye, trace
    except ImportError as error:
        raise NeedsError("scikit-fem", hint=install_command("scikit-fem")) from error
    a, b = np.random.default_rng(seed).uniform(size=2)

    def thickness(x: Any, y: Any) -> Any:
        return 1 + 0.3 * np.sin(2 * np.pi * (x + a)) * np.cos(2 * np.pi * (y + b))

    @skfem.BilinearForm
    def bending(u: Any, v: Any, w: Any) -> Any:
        def moment(curvature: Any) -> Any:
            return (1 - poisson) * curvature + poisson * eye(trace(curvature), 2)

        return thickness(*w.x) ** 3 * ddot(moment(dd(u)), dd(v))

    @skfem.BilinearForm
    def inertia(u: Any, v: Any, w: Any) -> Any:
        return thickness(*w.x) * u * v

    mesh = skfem.MeshTri.init_symmetric().refined(refinements - 1)
    basis = skfem.Basis(mesh, skfem.ElementTriMorley())
    K, M = bending.assemble(basis), inertia.assemble(basis)
    free = np.setdiff1d(np.arange(K.shape[0]), basis.get_dofs().all())
    K, M = sp.csc_array(sp.csr_array(K)[free][:, free]), sp.csc_array(sp.csr_array(M)[free][:, free])
    line = (np.arange(size) + 0.5) / size
    x, y = np.meshgrid(line, line, indexing="ij")
    fields = np.stack([thickness(x, y) ** 3, thickness(x, y)])
    return Instance(
        sp.csc_array((K + K.T) / 2), sp.csc_array((M + M.T) / 2), fields, f"morley-{refinements}-{seed}"
    )
