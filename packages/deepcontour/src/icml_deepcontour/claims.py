"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("deepcontour")

for name in ("contours", "rigour", "speed"):
    import_module(f"icml_deepcontour.claims_of_{name}").add_claims(suite)
