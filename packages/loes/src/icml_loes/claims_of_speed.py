"""Claims about speed, measured with nothing else running, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from icml_core import ClaimSuite, Run


def _seconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    taken, result = [], None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - begin)
    return min(taken), result


def selection_speed(run: Run, seed: int) -> dict[str, float]:
    """512 examples, 24 layers of 1024, k = 4: the algorithm as published, in float32, beside ours."""
    import warnings

    import torch

    from icml_loes.direct import direct_selection
    from icml_loes.selection import select_layers
    from icml_loes.synthetic import residual_stream

    n, count, dim, k = (48, 4, 32, 2) if run.scale == "smoke" else (512, 24, 1024, 4)
    x, labels = residual_stream(n, count, dim, 10, seed % 2**31)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            ours, found = _seconds(lambda: select_layers(x, labels, k, generator=0, metrics=False), 2)
            triples = [torch.tensor(row["triples"], dtype=torch.int64).reshape(-1, 3) for row in found.trace]
            y = torch.nn.functional.one_hot(labels).float()
            layers = list(x.unbind(1))
            theirs, (chosen, _) = _seconds(lambda: direct_selection(layers, y, labels, k, triples=triples), 1)
    finally:
        torch.set_num_threads(threads)
    return {"speedup": theirs / ours, "same_layers": float(chosen == found.selected), "seconds": ours}


def georeg_speed(run: Run, seed: int) -> dict[str, float]:
    """Value and gradient of GeoReg, a batch of 128 features of width 1024, float32."""
    import torch

    from icml_loes.georeg import GeoRegLoss

    batch, dim = (16, 32) if run.scale == "smoke" else (128, 1024)
    z = torch.randn(batch, dim, generator=torch.Generator().manual_seed(seed % 2**31))
    labels = torch.arange(batch) % 8
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    figures = {}
    try:
        for name, spectrum, repeats in (("gram", "gram", 20), ("eigvalsh", "eigh", 3)):
            loss = GeoRegLoss(spectrum=spectrum)

            def both(loss: GeoRegLoss = loss) -> None:
                leaf = z.clone().requires_grad_()
                loss(leaf, labels).backward()

            both()
            figures[name], _ = _seconds(both, repeats)
    finally:
        torch.set_num_threads(threads)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    fast = suite.measure(seeds={"smoke": 1, "small": 1, "full": 3}, exclusive=True)(selection_speed)
    suite.claim(
        "ten-times-faster",
        of=fast,
        figure="speedup",
        kind="every",
        at_least=10.0,
        statement="Selection by Gram matrices is at least 10 times as fast as the algorithm as published, "
        "which works in "
        "float32, one thread.",
        paper="Not in the paper.",
        unit="×",
    )
    suite.claim(
        "same-layers",
        of=fast,
        figure="same_layers",
        kind="every",
        at_least=1.0,
        statement="It chooses the same layers there.",
        paper="An exact reformulation.",
    )
    loss = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, exclusive=True)(georeg_speed)
    suite.claim(
        "georeg-twenty-times-faster",
        of=loss,
        figure="eigvalsh",
        baseline="gram",
        kind="ratio",
        at_least=20.0,
        statement="GeoReg with its gradient takes at most a twentieth of what eigvalsh takes, one thread.",
        paper="Not in the paper.",
        unit="×",
    )
