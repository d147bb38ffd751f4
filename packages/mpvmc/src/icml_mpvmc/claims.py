"""What `icml verify` measures; each part has a module of its own."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("mpvmc")

for name in ("bounds", "corrections", "training", "speed"):
    import_module(f"icml_mpvmc.claims_of_{name}").add_claims(suite)
