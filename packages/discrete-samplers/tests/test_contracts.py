from icml_core.testing import check_plugin

test_contracts = check_plugin("discrete-samplers")
