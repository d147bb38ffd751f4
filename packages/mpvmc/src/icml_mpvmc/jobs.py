"""What `icml run` runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from icml_core import Run, resumable


@resumable(may_change=("iterations",))
def ground_state(
    *,
    run: Run,
    lattice: Literal["tfim", "heisenberg", "j1j2"] = "tfim",
    shape: str = "12",
    coupling: float = 1.0,
    field: float = 1.0,
    j2: float = 0.5,
    hamiltonian: Path | None = None,
    molecule: str | None = None,
    network: Literal["rbm", "complex_rbm", "rescnn"] = "rbm",
    alpha: float = 2.0,
    iterations: int = 300,
    samples: int = 2048,
    chains: int = 512,
    lr: float = 0.03,
    diag_shift: float = 1e-3,
    dtype: Literal["auto", "bf16", "f16", "tf32", "f32", "f64"] = "auto",
    correction: Literal["none", "reweight", "delayed"] = "none",
    rule: str | None = None,
    compare_exact: bool = True,
    picture: bool = True,
) -> dict[str, Any]:
    """Find the ground state of a spin model, a matrix, a Pauli sum or a small molecule.

    Writes energy.json, history.csv, metrics.jsonl, training.png, wavefunction.safetensors (for
    mpvmc.metropolis and mpvmc.precision_report) and checkpoint.safetensors, from which --resume goes on.

    Args:
        lattice: model on a periodic lattice, in Pauli matrices.
        shape: its sides, as 12 or 10x10.
        coupling: J.
        field: transverse field h.
        j2: J2, coupling of next-nearest neighbours.
        hamiltonian: instead of a lattice, .npz of scipy.sparse.save_npz or .json of Pauli strings.
        molecule: instead, atoms as PySCF takes them, in STO-3G; wants a complex network.
        network: wavefunction.
        alpha: hidden units per spin.
        iterations: of stochastic reconfiguration.
        samples: of an iteration.
        chains: of Markov chains.
        lr: learning rate; falls to a tenth.
        diag_shift: added to the diagonal of S.
        dtype: precision of sampling; auto starts with the fastest and goes up where the bias would show.
        correction: exact correction of its bias.
        rule: flip, flip:2, exchange, exchange:2; by default what the conserved sums ask for.
        compare_exact: diagonalise where there are 16 spins or fewer.
        picture: draw.
    """
    from icml_mpvmc import exact
    from icml_mpvmc.fermions import from_molecule
    from icml_mpvmc.ground_state import GroundState
    from icml_mpvmc.hamiltonian import Hamiltonian
    from icml_mpvmc.networks import save_wavefunction
    from icml_mpvmc.problem_files import lattice as lattice_model
    from icml_mpvmc.problem_files import read_hamiltonian, read_shape

    if iterations < 1:
        raise ValueError(f"--iterations {iterations}; expected one at least")
    if hamiltonian is not None and molecule is not None:
        raise ValueError("give --hamiltonian or --molecule, not both")
    H: Hamiltonian
    if hamiltonian is not None:
        H = read_hamiltonian(hamiltonian)
    elif molecule is not None:
        H = from_molecule(molecule)
    else:
        H = lattice_model(lattice, read_shape(shape), J=coupling, h=field, J2=j2)
    solver = GroundState(
        network,
        alpha=alpha,
        n_iter=iterations,
        n_samples=samples,
        n_chains=chains,
        lr=lr,
        diag_shift=diag_shift,
        dtype=dtype,
        correction=None if correction == "none" else correction,
        rule=rule,
        seed=run.seed,
    )
    vmc, config = solver.training(H, run.device)  # what is wrong with the options is said before a run begins
    checkpoint = run.file("checkpoint.safetensors")
    resume = run.resumed and checkpoint.is_file()
    with run.progress("training", total=iterations) as bar:

        def shown(row: dict[str, Any]) -> None:
            run.log(row["iteration"], **{k: v for k, v in row.items() if k not in ("iteration", "dtype")})
            bar.advance(1, energy=row["energy"], err=row["err"], sigma=row["sigma"])

        solver.train(vmc, checkpoint=checkpoint, resume=resume, progress=shown)
    result = solver.result(vmc, config)
    history = vmc.history
    table = history.rows()
    _write(run, "history.csv", list(table[0]), ([row[c] for c in table[0]] for row in table))
    with run.path("wavefunction.safetensors") as temporary:
        save_wavefunction(temporary, result.model, result.config, H)
    least = exact.ground_energy(H) if compare_exact and H.n_spins <= 16 else None
    summary: dict[str, Any] = {
        "energy": result.energy,
        "error": result.error,
        "variance": result.variance,
        "energy_per_spin": result.energy_per_spin,
        "dtype": result.dtype,
        "sigma": result.sigma,
        "events": list(result.events),
        "proposals": result.proposals,
    }
    if least is not None:
        summary["exact"] = least
    with run.path("energy.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if picture:
        from icml_mpvmc.figures import draw_training

        with run.path("training.png") as temporary:
            draw_training(history, temporary, least)
    return summary


def sample(
    *,
    run: Run,
    wavefunction: Path,
    n: int = 16384,
    chains: int = 512,
    rule: str | None = None,
    total_sz: float | None = None,
    dtype: Literal["auto", "bf16", "f16", "tf32", "f32", "f64"] = "auto",
    correction: Literal["none", "reweight", "delayed"] = "none",
    thermalise: bool = True,
) -> dict[str, Any]:
    """Draw states of a wavefunction.

    Writes samples.npz: x int8 [n, spins] in the order of chains, log_p [n], and log_w [n] where there are
    weights. The summary says how large the bias of an uncorrected average can be, and what would be hidden by
    its Monte Carlo error.

    Args:
        wavefunction: file of mpvmc.ground_state.
        n: states, a multiple of the chains.
        chains: of Markov chains.
        rule: flip, flip:2, exchange, exchange:2; by default what the sums that the file keeps ask for.
        total_sz: magnetisation that exchanges keep, where the file says nothing.
        dtype: precision of the chains; auto is the fastest one.
        correction: exact correction of its bias.
        thermalise: walk until R̂ is below 1.05 first.
    """
    import numpy as np

    from icml_mpvmc import bounds
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.networks import load_wavefunction
    from icml_mpvmc.policy import ALLOWANCE

    model, config = load_wavefunction(wavefunction)
    n_spins = int(np.prod(config["shape"]))
    sampler = Metropolis(
        model.to(run.device),
        n_spins,
        n_chains=chains,
        dtype=dtype,
        correction=None if correction == "none" else correction,
        seed=run.seed,
        **_space(config, rule, total_sz),
    )
    if n % chains:
        raise ValueError(f"--n {n} is no multiple of --chains {chains}")
    sweeps = sampler.thermalise() if thermalise and chains > 1 else 0
    found = sampler.sample(n)
    arrays = {"x": found.x.cpu().numpy(), "log_p": found.log_p.cpu().numpy()}
    if found.log_w is not None:
        arrays["log_w"] = found.log_w.cpu().numpy()
    with run.path("samples.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    tau = found.tau_int if found.tau_int == found.tau_int else 1.0
    biased = correction == "none" and len(found) > 0
    return {
        "largest_bias": bounds.kl(found.sigma, 1.0) if biased else 0.0,
        "hidden_bias": ALLOWANCE * (tau / len(found)) ** 0.5 if len(found) else None,
        "samples": len(found),
        "dtype": found.dtype,
        "acceptance": found.acceptance,
        "block_acceptance": found.block_acceptance,
        "sigma": found.sigma,
        "ess": found.ess,
        "tau_int": found.tau_int,
        "r_hat": found.r_hat,
        "thermalised_after": sweeps,
    }


def precision_report(
    *,
    run: Run,
    wavefunction: Path,
    samples: Path | None = None,
    n: int = 4096,
    chains: int = 256,
    rule: str | None = None,
    total_sz: float | None = None,
    f_max: float = 1.0,
    dtypes: tuple[str, ...] = ("bf16", "f16", "f32"),
    picture: bool = True,
) -> dict[str, Any]:
    """Say in which precision a wavefunction may be sampled.

    Writes precision.csv and precision.png.

    Args:
        wavefunction: file of mpvmc.ground_state.
        samples: samples.npz of mpvmc.metropolis; drawn in float64 where it is not given.
        n: samples then.
        chains: of Markov chains then.
        rule: of proposals then; by default what the sums that the file keeps ask for.
        total_sz: magnetisation that exchanges keep, where the file says nothing.
        f_max: largest value of the functions whose averages are wanted.
        dtypes: precisions.
        picture: draw.
    """
    from dataclasses import asdict

    import numpy as np
    import torch

    from icml_mpvmc.hamiltonian import as_spins
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.networks import load_wavefunction
    from icml_mpvmc.report import precision_report as report

    model, config = load_wavefunction(wavefunction)
    model = model.to(run.device)
    n_spins = int(np.prod(config["shape"]))
    if samples is not None:
        with np.load(samples, allow_pickle=False) as file:
            if "x" not in file:
                raise ValueError(f"{samples} has no array x")
            x = as_spins(torch.from_numpy(file["x"]), n_spins, device=run.device)
            weights = torch.softmax(torch.from_numpy(file["log_w"]), 0) if "log_w" in file else None
    else:
        space = _space(config, rule, total_sz)
        sampler = Metropolis(model, n_spins, n_chains=chains, dtype="f64", seed=run.seed, **space)
        x, weights = sampler.sample(n, discard=50).x, None
    found = report(
        model, x, dtypes, f_max, weights=weights, sectors=_space(config, None, total_sz)["sectors"]
    )
    rows = [asdict(row) for row in found.rows]
    _write(run, "precision.csv", list(rows[0]), ([row[c] for c in rows[0]] for row in rows))
    if picture:
        from icml_mpvmc.figures import draw_report

        with run.path("precision.png") as temporary:
            draw_report(found, temporary)
    return {
        "fastest_ok": found.fastest_ok,
        **{row.dtype: f"{row.verdict}: {row.reason}" for row in found.rows},
    }


def _space(config: dict[str, Any], rule: str | None, total_sz: float | None) -> dict[str, Any]:
    """Rule, sectors and pairs for the chains of a stored wavefunction.

    Raises:
        ValueError: a magnetisation other than the one that it was trained in.
    """
    from icml_mpvmc.lattices import magnetisation
    from icml_mpvmc.metropolis import default_rule
    from icml_mpvmc.networks import space_of

    sectors, pairs = space_of(config)
    n_spins = 1
    for side in config["shape"]:
        n_spins *= int(side)
    wanted = magnetisation(n_spins, total_sz)
    if sectors and wanted and set(wanted) != set(sectors):
        raise ValueError(f"--total-sz {total_sz}; the wavefunction was trained with other conserved sums")
    sectors = sectors or wanted
    return {"rule": rule or default_rule(sectors), "sectors": sectors, "pairs": pairs}


def _write(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
