"""Marks that the kernels' tests share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: wants a CUDA or ROCm device")
