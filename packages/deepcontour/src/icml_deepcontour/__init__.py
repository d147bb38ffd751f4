"""Certified eigenpairs of families of large sparse pencils: predicted contours, slices, inertia counts
(DeepContour; arXiv 2511.01927)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_deepcontour.contour import Contour as Contour
    from icml_deepcontour.contour import contour_quadrature as contour_quadrature
    from icml_deepcontour.contour_solvers import cirr as cirr
    from icml_deepcontour.contour_solvers import feast as feast
    from icml_deepcontour.contour_solvers import ssm as ssm
    from icml_deepcontour.density import kde_contours as kde_contours
    from icml_deepcontour.eigensolver import EigsStats as EigsStats
    from icml_deepcontour.eigensolver import eigs as eigs
    from icml_deepcontour.errors import EigenConvergenceError as EigenConvergenceError
    from icml_deepcontour.errors import FillError as FillError
    from icml_deepcontour.errors import TooManyEigenvaluesError as TooManyEigenvaluesError
    from icml_deepcontour.inertia import Count as Count
    from icml_deepcontour.inertia import certify as certify
    from icml_deepcontour.pencil_features import spectral_features as spectral_features
    from icml_deepcontour.predictor import Predictor as Predictor
    from icml_deepcontour.resolvent import winding_number as winding_number

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Contour": "contour",
        "Count": "inertia",
        "EigenConvergenceError": "errors",
        "EigsStats": "eigensolver",
        "FillError": "errors",
        "Predictor": "predictor",
        "TooManyEigenvaluesError": "errors",
        "certify": "inertia",
        "cirr": "contour_solvers",
        "contour_quadrature": "contour",
        "eigs": "eigensolver",
        "feast": "contour_solvers",
        "kde_contours": "density",
        "spectral_features": "pencil_features",
        "ssm": "contour_solvers",
        "winding_number": "resolvent",
    },
)
