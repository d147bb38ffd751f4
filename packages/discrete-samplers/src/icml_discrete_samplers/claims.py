"""What `icml verify` measures; each part has a module of its own."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("discrete-samplers")

for name in ("modes", "lattices", "bridges", "latents", "speed"):
    import_module(f"icml_discrete_samplers.claims_of_{name}").add_claims(suite)
