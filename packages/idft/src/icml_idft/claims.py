"""What `icml verify` measures."""

from __future__ import annotations

from importlib import import_module

from icml_core import ClaimSuite

suite = ClaimSuite("idft")

for name in ("statistic", "finetuning", "rewriting", "speed"):
    import_module(f"icml_idft.claims_of_{name}").add_claims(suite)
