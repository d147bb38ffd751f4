"""The small model that ships with the package, trained by the job `flashschnet.demo_model`.

Network and prior know short peptides and crambin, all twenty residues: enough to start a simulation of any
protein, not enough to fold one.
"""

from __future__ import annotations

from pathlib import Path

from icml_flashschnet.checkpoint import SavedModel, load_model
from icml_flashschnet.prior_fit import PriorParameters


def demo_path() -> Path:
    """Where the shipped model file lies."""
    return Path(__file__).parent / "data" / "demo.safetensors"


def demo_model() -> SavedModel:
    """The shipped model: `.network`, and `.prior`, which serves any protein of the twenty residues."""
    return load_model(demo_path())


def demo_prior() -> PriorParameters:
    """The shipped prior parameters.

    Example:
        >>> demo_prior().representation
        '5bead'
    """
    prior = demo_model().prior
    assert prior is not None
    return prior
