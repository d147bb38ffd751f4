"""The amortised posterior beside sbi's: seconds of training, and log density of held-out parameters.

    python packages/hhmea/benchmarks/posterior.py [--quick]

Both get the same simulations of retinal ganglion cells under a hexagonal array and flows of the same size;
the log density is that of parameters as real numbers. Where sbi is not installed it is left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from icml_core.run import provenance, public, write_json
from icml_hhmea import RGC, AmortisedPosterior, ElectrodeArray, NPEOptions, Simulator


def sbi_training(
    u: torch.Tensor, x: torch.Tensor, test: tuple[torch.Tensor, torch.Tensor], epochs: int
) -> tuple[float, float]:
    """Seconds, and mean log density, of sbi's NPE with a neural spline flow."""
    from sbi.inference import NPE
    from sbi.neural_nets import posterior_nn

    build = posterior_nn(model="zuko_nsf", hidden_features=64, num_transforms=5, num_bins=8)
    begin = time.perf_counter()
    trainer = NPE(density_estimator=build, show_progress_bars=False)
    estimator = trainer.append_simulations(u, x).train(
        training_batch_size=256, max_num_epochs=epochs, stop_after_epochs=15
    )
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        found = estimator.log_prob(test[0][None], condition=test[1]).mean()
    return seconds, float(found)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count, held, epochs = (60, 20, 3) if options.quick else (3000, 300, 200)
    simulator = Simulator(
        RGC(), ElectrodeArray.hexagon(2 if options.quick else 4), count=3 if options.quick else 5
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta, features = simulator.draw(count + held, 0)
    good = torch.isfinite(features).all(1)
    theta, features = theta[good], features[good]
    split = len(theta) - max(5, held // 3)
    bounds = simulator.bounds
    u = bounds.real(theta).float()
    model = AmortisedPosterior(bounds, features.shape[1], NPEOptions(epochs=epochs), simulator.names)
    begin = time.perf_counter()
    model.train(theta[:split], features[:split])
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        z = (u[split:] - model.u_shift) / model.u_scale
        inner = model.flow(model._standard(features[split:].float())).log_prob(z)
        ours = float((inner - model.u_scale.log().sum()).mean())
    entry = {"seconds": seconds, "log_density": ours}
    peers: dict[str, Any] = {}
    print(f"ours: {seconds:.2f} s, log density {ours:.3f}")
    if importlib.util.find_spec("sbi") is None:
        print("left out: sbi")
    else:
        taken, value = sbi_training(
            u[:split], features[:split].float(), (u[split:], features[split:].float()), epochs
        )
        peers["sbi"] = {"version": version("sbi"), "seconds": taken, "log_density": value}
        print(f"sbi: {taken:.2f} s, log density {value:.3f}, times {taken / seconds:.2f}")
    row = {
        "case": f"{split} simulations",
        "ours": entry,
        "peers": peers,
        "ratios": {n: p["seconds"] / seconds for n, p in peers.items()},
    }
    if not options.quick:
        path = Path(__file__).parent / "results" / "posterior.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"benchmark": "posterior", "environment": public(provenance()), "rows": [row]})


if __name__ == "__main__":
    main()
