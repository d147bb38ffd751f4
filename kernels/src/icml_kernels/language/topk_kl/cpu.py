"""The divergence from listed tokens on the CPU: products by BLAS, the softmax by numba."""

from __future__ import annotations

from functools import partial

from icml_kernels.language import rows_cpu
from icml_kernels.language.topk_kl import blocked

forward = partial(blocked.forward, rows_cpu)
backward = partial(blocked.backward, rows_cpu)
