"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("loes")

for name in ("text", "vision", "speed"):
    import_module(f"icml_loes.claims_of_{name}").add_claims(suite)
