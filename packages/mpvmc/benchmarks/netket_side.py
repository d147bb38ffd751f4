"""NetKet's side of ``beside_netket.py``: reads a case as JSON, prints seconds and figures as JSON.

python netket_side.py '{"case": "rbm", "shape": [64], ...}'
"""

from __future__ import annotations

import json
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import netket as nk
import numpy as np


class PeriodicConv(nn.Module):
    """3 x 3 on a torus."""

    filters: int

    @nn.compact
    def __call__(self, x):
        return nn.Conv(self.filters, (3, 3), padding="CIRCULAR", param_dtype=jnp.float64, dtype=jnp.float64)(
            x
        )


class ResCNN(nn.Module):
    """The architecture of ``icml_mpvmc.ResCNN``."""

    side: int
    filters: int = 16
    blocks: int = 4

    @nn.compact
    def __call__(self, x):
        h = PeriodicConv(self.filters)(x.astype(jnp.float64).reshape(-1, self.side, self.side, 1))
        for _ in range(self.blocks):
            inner = nn.gelu(nn.LayerNorm(param_dtype=jnp.float64)(h))
            inner = nn.gelu(PeriodicConv(self.filters)(inner))
            h = h + PeriodicConv(self.filters)(inner)
        return nn.LayerNorm(param_dtype=jnp.float64)(h).sum((1, 2, 3))


def timed(call, repeats):
    """Least seconds after one call that compiles."""
    jax.block_until_ready(call())
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main():
    """One case."""
    given = json.loads(sys.argv[1])
    shape, chains, draws = given["shape"], given["chains"], given["draws"]
    graph = nk.graph.Chain(shape[0], pbc=True) if len(shape) == 1 else nk.graph.Square(shape[0], pbc=True)
    space = nk.hilbert.Spin(0.5, N=graph.n_nodes)
    if given["model"] == "rbm":
        model = nk.models.RBM(alpha=given["alpha"], param_dtype=float)
    else:
        model = ResCNN(shape[0])
    sampler = nk.sampler.MetropolisLocal(space, n_chains=chains, sweep_size=graph.n_nodes, dtype=np.int8)
    state = nk.vqs.MCState(sampler, model, n_samples=chains * draws, n_discard_per_chain=0, seed=1)
    if given.get("weights"):
        arrays = np.load(given["weights"])
        parameters = {
            "Dense": {"kernel": jnp.asarray(arrays["weight"]), "bias": jnp.asarray(arrays["hidden_bias"])},
            "visible_bias": jnp.asarray(arrays["visible_bias"]),
        }
        state.parameters = parameters
    out = {"version": nk.__version__}
    if given["measure"] == "sampling":
        state.sample(chain_length=given.get("burn_in", 20))
        out["seconds"] = timed(lambda: state.sample(chain_length=draws), given["repeats"])
        series = state.log_value(state.samples.reshape(-1, graph.n_nodes)).real
        out["log_p"] = (2 * np.asarray(series)).reshape(chains, -1).tolist()
    else:
        energy = nk.operator.Ising(space, graph, h=given["h"], J=1.0)
        state.n_discard_per_chain = 5
        # The driver that NetKet recommends: it chooses the cheaper of its two matrices.
        driver = nk.driver.VMC_SR(energy, nk.optimizer.Sgd(1e-3), diag_shift=1e-3, variational_state=state)
        log = nk.logging.RuntimeLog()
        driver.run(2, out=log, show_progress=False)
        begin = time.perf_counter()
        driver.run(given["repeats"], out=log, show_progress=False)
        jax.block_until_ready(state.parameters)
        out["seconds"] = (time.perf_counter() - begin) / given["repeats"]
    print(json.dumps(out))


if __name__ == "__main__":
    main()
