"""The divergence from listed tokens on the GPU: products by BLAS, the softmax by Triton."""

from __future__ import annotations

from functools import partial

from icml_kernels.language import rows_triton
from icml_kernels.language.topk_kl import blocked

forward = partial(blocked.forward, rows_triton)
backward = partial(blocked.backward, rows_triton)
