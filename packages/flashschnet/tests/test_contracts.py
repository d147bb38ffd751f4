"""The contracts of the components, light imports, and every measure of the claims at the scale of a smoke test."""

from icml_core.testing import check_plugin

test_contracts = check_plugin("flashschnet")
