"""What `icml run flashschnet.<component>` executes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from icml_core import Run, resumable

Kernel = Literal["auto", "triton", "cpu", "torch"]

TRAJECTORY = "trajectory"
DATA = "data"


@dataclass(frozen=True)
class Network:
    """Sizes of the network to train.

    Attributes:
        hidden: width of the bead features.
        filters: width of the filters.
        n_rbf: radial basis functions.
        layers: interaction layers.
        r_cut: cutoff, Å.
        rbf: kind of basis.
        out: hidden widths of the readout.
    """

    hidden: int = 128
    filters: int = 128
    n_rbf: int = 64
    layers: int = 4
    r_cut: float = 15.0
    rbf: Literal["gauss", "expnorm"] = "gauss"
    out: tuple[int, ...] = (128, 64)


@dataclass(frozen=True)
class Training:
    """How to train it.

    Attributes:
        epochs: passes over the frames.
        batch_size: frames a step.
        optimizer: one of torch's by name, or a plug-in's, such as sso.sso.
        learning_rate: of the optimizer.
        weight_decay: of the optimizer.
        schedule: of the learning rate.
        ema: decay of the averaged weights.
        patience: epochs without progress after which training stops; 0 never.
        validation: fraction of every data set, at its end, that is held out.
        chunk: frames in one graph.
    """

    epochs: int = 300
    batch_size: int = 256
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    schedule: Literal["constant", "cosine"] = "constant"
    ema: float = 0.999
    patience: int = 30
    validation: float = 0.1
    chunk: int = 32


@dataclass(frozen=True)
class Peptides:
    """Which peptides to simulate, and for how long.

    Attributes:
        permutations: how often each amino acid appears in all sequences together; 0 for no peptides.
        length: residues of a peptide; must divide 20.
        starts: simulations of each, from different conformations.
        steps: steps of each, of 2 fs.
        save_every: steps between frames.
    """

    permutations: int = 8
    length: int = 5
    starts: int = 3
    steps: int = 14000
    save_every: int = 40


DEMO_NETWORK = Network(hidden=64, filters=64, n_rbf=32, layers=2, r_cut=12.0, out=(64,))
DEMO_TRAINING = Training(
    epochs=12,
    batch_size=32,
    learning_rate=2e-3,
    weight_decay=0.0,
    schedule="cosine",
    patience=0,
)
DEMO_EVERY = 1


@resumable(may_change=("steps",))
def langevin(
    *,
    run: Run,
    pdb: Path | None = None,
    model: Path | None = None,
    chain: str | None = None,
    cg: Literal["5bead", "ca"] = "5bead",
    incomplete: Literal["raise", "skip"] = "raise",
    replicas: int = 4,
    steps: int = 2000,
    temperature: float = 300.0,
    temperatures: list[float] | None = None,
    exchange_every: int = 100,
    friction: float = 1.0,
    dt: float = 0.004,
    integrator: Literal["baoab", "nve", "overdamped"] = "baoab",
    save_every: int = 100,
    checkpoint_every: int = 1000,
    kernel: Kernel = "auto",
    filter: Literal["table", "network"] = "table",
    tol: float = 1e-5,
    dtype: Literal["float32", "float64"] = "float32",
    dcd: bool = True,
    xtc: bool = False,
    check_nlist: int = 0,
) -> dict[str, Any]:
    """Simulate many replicas of a protein with a coarse-grained network potential.

    Reads a structure, keeps a few beads a residue, and runs Langevin dynamics of all replicas at once.
    Writes the trajectory (numpy chunks, and DCD or XTC files where mdtraj is installed), topology.pdb,
    energies.csv, energies.png, shape.csv and shape.png. Speeds are aggregate: all replicas together.

    Args:
        pdb: PDB or mmCIF file, plain or gzipped; ubiquitin (1UBI) by default.
        model: model file of `flashschnet.force_match`; the small one of the package by default.
        chain: the only chain to simulate.
        cg: beads of a residue; must be what the model was trained on.
        incomplete: what to do with a residue that lacks a needed atom.
        replicas: number of replicas.
        steps: number of steps; with --resume, counted from the beginning.
        temperature: K.
        temperatures: K, for replica exchange: one replica at each, instead of --replicas and --temperature.
        exchange_every: steps between attempts to swap neighbouring temperatures.
        friction: 1/ps.
        dt: time step, ps.
        integrator: Langevin (baoab), constant energy (nve), or overdamped.
        save_every: steps between frames.
        checkpoint_every: steps between checkpoints.
        kernel: code of the convolution.
        filter: tabulated filters, or the network as it was trained.
        tol: relative error of tabulated filters.
        dtype: precision of positions and forces.
        dcd: write a DCD file of every replica.
        xtc: write an XTC file of every replica.
        check_nlist: steps between two looks whether the neighbour list lacks a pair; 0 never looks.
    """
    from icml_flashschnet.replica_exchange import ReplicaExchangeSimulator
    from icml_flashschnet.run_reports import report_trajectory, write_replicas
    from icml_flashschnet.simulation import LangevinSimulator
    from icml_flashschnet.structure import example_structure, read_pdb, write_pdb

    _check_kernel(kernel, run.device)
    molecule = read_pdb(pdb or example_structure(), cg=cg, chain=chain, incomplete=incomplete)
    potential = _potential(model, molecule, kernel, filter, tol, dtype)
    options: dict[str, Any] = {
        "friction": friction,
        "dt": dt,
        "seed": run.seed,
        "device": run.device,
        "dtype": dtype,
        "integrator": integrator,
        "check_nlist": check_nlist,
    }
    if temperatures is None:
        simulator = LangevinSimulator(potential, molecule, replicas, temperature, **options)
    else:
        simulator = ReplicaExchangeSimulator(potential, molecule, temperatures, exchange_every, **options)
        replicas = simulator.n_replicas
    with run.path("topology.pdb") as temporary:
        write_pdb(molecule, temporary)
    with run.progress(f"{molecule.n_beads} beads x {replicas} replicas", total=steps) as bar:

        def report(done: int, figures: dict[str, float]) -> None:
            bar.advance(done, **figures, ns_per_day=simulator.timing.aggregate_ns_per_day)
            run.log(simulator.state.step, **figures)

        trajectory = simulator.run(
            steps, save_every, run.directory / TRAJECTORY, checkpoint_every, report, resume=run.resumed
        )
    summary: dict[str, Any] = {
        "structure": f"{len(molecule.residues)} residues, {molecule.n_beads} beads",
        "replicas": replicas,
        "steps": simulator.state.step,
        "aggregate_simulated_ns": replicas * simulator.state.step * dt / 1000.0,
        "frozen_replicas": [vars(blown) for blown in simulator.blown],
    }
    if isinstance(simulator, ReplicaExchangeSimulator):
        summary["temperatures"] = simulator.statistics.temperatures
        summary["swaps_accepted"] = simulator.statistics.acceptance
    if simulator.timing.replica_steps:
        summary["aggregate_ns_per_day"] = simulator.timing.aggregate_ns_per_day
        summary["seconds"] = simulator.timing.seconds
        summary["first_step_seconds"] = simulator.timing.first_step_seconds
    if len(trajectory):
        target = temperature if integrator == "baoab" and temperatures is None else None
        summary |= report_trajectory(run, molecule, trajectory, target=target)
        for ending, wanted in (("dcd", dcd), ("xtc", xtc)):
            if wanted:
                summary[ending] = write_replicas(run, molecule, trajectory, ending)
    return summary


@resumable
def force_match(
    *,
    run: Run,
    data: list[Path],
    network: Network = Network(),
    training: Training = Training(),
    every: int = 1,
    prior: bool = True,
    temperature: float = 300.0,
    min_count: int = 500,
    kernel: Kernel = "auto",
    length_unit: str = "Å",
    force_unit: str = "kcal/mol/Å",
) -> dict[str, Any]:
    """Train a coarse-grained model on mapped positions and forces.

    Fits the classical prior, tries it in a short simulation, subtracts its forces, and trains the network on
    what is left. Writes model.safetensors, prior.txt, history.csv and history.png.

    Args:
        data: .npz files with coords [T, N, 3], forces [T, N, 3], types [N] and sequence; or folders of them.
        network: sizes of the network.
        training: how to train it.
        every: train on every n-th frame; the prior is fitted to all of them.
        prior: fit and subtract a classical prior.
        temperature: at which the data were sampled, K.
        min_count: samples that a class of prior terms needs.
        kernel: code of the convolution.
        length_unit: unit of the positions: Å, nm or bohr.
        force_unit: unit of the forces, such as kJ/mol/nm.
    """
    from icml_flashschnet.reference_data import read_references
    from icml_flashschnet.training_pipeline import train

    _check_kernel(kernel, run.device)
    sets = list(read_references(data, units=(length_unit, force_unit)))
    return train(run, sets, network, training, every, prior, temperature, min_count, kernel)


@resumable
def reference_data(
    *,
    run: Run,
    peptides: Peptides = Peptides(),
    proteins: list[Path] | None = None,
    protein_steps: int = 12000,
    shipped: bool = True,
    solvent: Literal["obc2", "gbn2"] = "obc2",
    force_map: Literal["slice", "aggregate", "optimal"] = "optimal",
) -> dict[str, Any]:
    """Simulate peptides and proteins with all atoms in implicit water, and map positions and forces to five
    beads.

    Amber ff14SB, 300 K, Langevin dynamics of 2 fs without constraints, by OpenMM on one thread. Writes one
    .npz file a molecule into the folder data; those that are there already when a run is resumed are kept.

    Args:
        peptides: short sequences in which all amino acids stand equally often.
        proteins: structure files of proteins to simulate as well.
        protein_steps: steps of each of them.
        shipped: simulate crambin, which ships with the package.
        solvent: generalised-Born model; gbn2 is 4 to 7 times slower on CPUs.
        force_map: how atomistic forces become forces on beads.
    """
    from icml_flashschnet.reference_data import SHIPPED
    from icml_flashschnet.structure import example_structure
    from icml_flashschnet.training_pipeline import generate

    extra = [(path, protein_steps) for path in proteins or []]
    own = [(example_structure(name), steps) for name, steps in SHIPPED] if shipped else []
    return generate(run, peptides, [*own, *extra], solvent, force_map)


@resumable
def demo_model(
    *,
    run: Run,
    data: Path | None = None,
    network: Network = DEMO_NETWORK,
    training: Training = DEMO_TRAINING,
    every: int = DEMO_EVERY,
    kernel: Kernel = "auto",
) -> dict[str, Any]:
    """Make the model that ships with the package from nothing: simulations, prior, training.

    Simulates 32 peptides and crambin: the data of the job flashschnet.reference_data at its defaults. Takes
    about half an hour on one core, most of it for the simulations. Writes the folder data and
    model.safetensors.

    Args:
        data: folder of data sets made earlier, instead of the simulations.
        network: sizes of the network.
        training: how to train it.
        every: train on every n-th frame.
        kernel: code of the convolution.
    """
    from icml_flashschnet.reference_data import SHIPPED, read_references
    from icml_flashschnet.structure import example_structure
    from icml_flashschnet.training_pipeline import generate, train

    _check_kernel(kernel, run.device)
    made = {}
    if data is None:
        proteins = [(example_structure(name), steps) for name, steps in SHIPPED]
        made = generate(run, Peptides(), proteins, "obc2", "optimal")
        data = run.directory / DATA
    sets = list(read_references([data]))
    return made | train(run, sets, network, training, every, True, 300.0, 500, kernel)


def _check_kernel(kernel: str, device: str) -> None:
    if (kernel == "triton" and not device.startswith("cuda")) or (kernel == "cpu" and device != "cpu"):
        raise ValueError(
            f"--kernel {kernel} does not run on device {device}; take auto or torch, or another --device"
        )


def _potential(model: Path | None, molecule: Any, kernel: Kernel, filter: str, tol: float, dtype: str) -> Any:
    """Network, tabulated where asked for, and its prior for this molecule."""
    from icml_flashschnet.checkpoint import load_model
    from icml_flashschnet.compression import compress
    from icml_flashschnet.demo import demo_path
    from icml_flashschnet.filter_table import FilterTable
    from icml_flashschnet.potential import SumPotential
    from icml_flashschnet.prior import CGPrior

    saved = load_model(model or demo_path(), kernel=kernel)
    # Tables are made in the precision of the run, where double asks for more than the file holds.
    network = saved.network.double() if dtype == "float64" else saved.network
    largest = int(molecule.types.max())
    if network.config.n_types <= largest:
        raise ValueError(
            f"the model knows bead types 0 to {network.config.n_types - 1}, the molecule has type {largest}: "
            "it was trained on another map (--cg)"
        )
    if filter == "table" and not isinstance(network.interactions[0].filter, FilterTable):
        network, _ = compress(network, tol=tol)
    return network if saved.prior is None else SumPotential(network, CGPrior(molecule, saved.prior))
