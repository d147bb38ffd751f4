"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("ccd")

for name in ("exact", "trained", "theory", "cost", "text"):
    import_module(f"icml_ccd.claims_{name}").add_claims(suite)
