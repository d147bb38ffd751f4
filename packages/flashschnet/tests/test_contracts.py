"""Contracts of the components, light imports, and every measure of the claims at the smoke scale."""

from icml_core.testing import check_plugin

test_contracts = check_plugin("flashschnet")
