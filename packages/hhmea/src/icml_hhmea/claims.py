"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("hhmea")

for name in ("simulator", "responses", "inference"):
    import_module(f"icml_hhmea.claims_of_{name}").add_claims(suite)
