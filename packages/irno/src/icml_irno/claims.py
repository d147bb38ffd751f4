"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("irno")

for name in ("refinement", "ablations", "transfer"):
    import_module(f"icml_irno.claims_of_{name}").add_claims(suite)
