"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("sso")

for name in ("solver", "training"):
    import_module(f"icml_sso.claims_{name}").add_claims(suite)
