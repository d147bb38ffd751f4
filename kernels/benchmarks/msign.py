"""Polar factors and Krylov spaces on one core, beside torch.optim.Muon's iteration, at equal steps.

    python kernels/benchmarks/msign.py [--quick] [--device cpu] [--out kernels/benchmarks/results]

Eight Newton-Schulz steps in bfloat16 and float32. The last lines time what else a step of the Spectral Sphere
Optimizer needs: a block Lanczos model, the norm of the weights, a rank-one load, retraction and update. The
results are written after each shape.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_kernels import block_lanczos, lanczos_top, msign, rank1_load
from icml_kernels.matrices.block_krylov import krylov_top, start_block
from icml_kernels.matrices.retract_axpy import retract_axpy_

SHAPES = ((8, 128, 2048), (1, 256, 1024), (1, 512, 512), (1, 512, 2048), (1, 1024, 1024))
QUICK = ((2, 32, 128),)
STEPS = 8
MUON = (3.4445, -4.7750, 2.0315)


def muon_iteration(x: torch.Tensor) -> torch.Tensor:
    """What torch.optim.Muon does with each matrix, one after the other, in bfloat16."""
    from torch.optim._muon import _zeropower_via_newtonschulz

    return torch.stack([_zeropower_via_newtonschulz(m, MUON, STEPS, 1e-7) for m in x])


def plain_iteration(x: torch.Tensor) -> torch.Tensor:
    """The same in float32."""
    a, b, c = MUON
    y = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    for _ in range(STEPS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y


def best(call: Callable[[], Any], device: str, repeats: int = 5) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        if device != "cpu":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []

    def report(case: str, ours: Callable[[], Any], peer: tuple[str, Callable[[], Any]] | None = None) -> None:
        seconds = best(ours, options.device)
        peers = {}
        if peer is not None:
            peers[peer[0]] = {"version": torch.__version__, "seconds": best(peer[1], options.device)}
        ratios = {name: row["seconds"] / seconds for name, row in peers.items()}
        rows.append({"case": case, "ours": {"seconds": seconds}, "peers": peers, "ratios": ratios})
        beside = "".join(f"; {name} {ratio:.2f} times" for name, ratio in ratios.items())
        print(f"{case:44} {1e3 * seconds:9.3f} ms{beside}", flush=True)

    for batch, m, n in QUICK if options.quick else SHAPES:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, m, n, generator=generator).to(options.device)
        u, v = x[:, :, 0] / x[:, :, :1].norm(dim=1), x[:, 0] / x[:, :1].norm(dim=2)
        one, phi = x.new_ones(batch), x.bfloat16()
        name = f"{batch} x {m} x {n}"
        for form in ("auto", "standard", "gram"):
            report(
                f"msign bfloat16 {form}, {name}",
                lambda x=x, form=form: msign(x, STEPS, form),
                ("torch.optim.Muon", lambda x=x: muon_iteration(x)),
            )
        report(
            f"msign float32 auto, {name}",
            lambda x=x: msign(x, STEPS, dtype=torch.float32),
            ("plain torch", lambda x=x: plain_iteration(x)),
        )
        report(f"block Lanczos, k = 8, {name}", lambda x=x, u=u, v=v: block_lanczos(x, u, v, 8))
        report(f"norm by 16 Lanczos steps, {name}", lambda x=x, u=u: lanczos_top(x, u, 16))
        block = krylov_top(x, start_block(x)).block
        report(f"norm from the last block, {name}", lambda x=x, block=block: krylov_top(x, block))
        report(
            f"rank-one load, {name}",
            lambda x=x, u=u, v=v, one=one: rank1_load(x, u, v, one, one, torch.bfloat16),
        )
        weight = x.clone()
        report(
            f"retraction and update, {name}",
            lambda weight=weight, one=one, phi=phi: retract_axpy_(weight, one, phi, 1e-3 * one),
        )
        write(rows, options)


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write what has been measured so far."""
    environment = {"python": platform.python_version(), "torch": torch.__version__, "device": options.device}
    environment |= {"threads": "1", "processor": platform.processor() or platform.machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "msign", "environment": environment, "rows": rows}
    temporary = options.out / "msign.json.tmp"
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    temporary.replace(options.out / "msign.json")


if __name__ == "__main__":
    main()
