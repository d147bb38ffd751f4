"""What `icml verify flashschnet` measures: speed, memory, accuracy, conservation, determinism, ensemble."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

suite = ClaimSuite("flashschnet")

PAPER = "FlashSchNet, arXiv 2602.13140"
REPLICAS = {"smoke": 1, "small": 4, "full": 64}
"""Replicas of the 269-bead chain that a step evaluates."""


@suite.measure(
    seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("unfused", "untabulated"), exclusive=True
)
def speed(run: Run, seed: int) -> dict[str, float]:
    """Seconds of one step (energies and forces of all replicas), ours and the baseline's in turn."""
    from icml_flashschnet.step_measurement import StepCase, time_steps

    ours = run.ablation or "fused"
    n_beads = 60 if run.scale == "smoke" else 269
    case = StepCase(n_beads, REPLICAS[run.scale], seed, run.device)
    seconds = time_steps(case.steps(ours, "baseline"), repeats=1 if run.scale == "smoke" else 7)
    return {"ours": seconds[ours], "baseline": seconds["baseline"]}


suite.claim(
    "faster-than-cgschnet",
    of=speed,
    figure="baseline",
    baseline="ours",
    kind="ratio",
    at_least=10.0,
    unit="times",
    teeth="unfused",
    statement="A step of four replicas of 269 beads is ten times as fast as with CGSchNet in plain torch.",
    paper="6.5 times the replica-steps per second of CGSchNet (438 to 2861; 269 beads, 128 replicas, one "
    f"RTX PRO 6000). {PAPER}",
)
suite.claim(
    "tables-pay",
    of=speed,
    figure="baseline",
    baseline="ours",
    kind="ratio",
    at_least=10.0,
    unit="times",
    teeth="untabulated",
    statement="That takes the tables: it fails where filter networks are evaluated at every pair.",
    paper="Beyond the paper, which evaluates the filter network at every edge.",
)


@suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, exclusive=True, needs=("openmm>=8.2",))
def classical(run: Run, seed: int) -> dict[str, float]:
    """Seconds a replica and step: the network's energies and forces, and a classical chain in OpenMM."""
    from statistics import median

    import torch

    from icml_flashschnet.classical_chain import classical_chain, seconds_of_a_step
    from icml_flashschnet.compact_chain import compact_chain
    from icml_flashschnet.step_measurement import StepCase, time_steps

    n_beads, n_replicas = (60 if run.scale == "smoke" else 269), REPLICAS[run.scale]
    pos, _ = compact_chain(n_beads, seed=seed % 2**31)
    chain = classical_chain(pos.numpy(), threads=torch.get_num_threads())
    steps = StepCase(n_beads, n_replicas, seed, run.device).steps("fused")
    ours, theirs = [], []
    for _ in range(1 if run.scale == "smoke" else 7):
        ours.append(time_steps(steps, repeats=1)["fused"] / n_replicas)
        theirs.append(seconds_of_a_step(chain))
    return {"network": median(ours), "classical": median(theirs)}


suite.claim(
    "beside-a-classical-chain",
    of=classical,
    figure="network",
    baseline="classical",
    kind="ratio",
    unit="times",
    statement="What a replica's step costs beside a bead-spring chain of as many beads in OpenMM on the CPU.",
    paper=f"Faster than the classical force field MARTINI, many replicas on one GPU. {PAPER}",
)


@suite.measure(seeds={"smoke": 1, "small": 1, "full": 1}, ablations=("unfused",), exclusive=True)
def memory(run: Run, seed: int) -> dict[str, float]:
    """Peak growth of memory over three steps, in a process of its own."""
    from icml_flashschnet.step_measurement import StepCase, peak_growth

    ours = run.ablation or "fused"
    replicas = {"smoke": 1, "small": 8, "full": 128}[run.scale]
    case = StepCase(n_replicas=replicas, seed=seed, device=run.device)
    growth = peak_growth(case, ours, "baseline")
    return {"share": growth[ours] / growth["baseline"], "megabytes": growth[ours] / 1e6}


suite.claim(
    "little-memory",
    of=memory,
    figure="share",
    kind="every",
    at_most=0.2,
    teeth="unfused",
    statement="Memory grows by at most a fifth of what CGSchNet in plain torch takes for the same steps.",
    paper=f"80 % less peak memory (94 to 17 GB at 128 replicas of 269 beads). {PAPER}",
)


@suite.measure(seeds={"smoke": 1, "small": 3, "full": 3})
def accuracy(run: Run, seed: int) -> dict[str, float]:
    """Largest error of a force over the largest force, against double precision and autograd."""
    import torch

    from icml_flashschnet.step_measurement import StepCase

    n_beads = 40 if run.scale == "smoke" else 269
    case = StepCase(n_beads=n_beads, n_replicas=1, seed=seed, device=run.device)
    (exact,) = case.steps("baseline", dtype=torch.float64).values()
    _, forces = exact()
    steps = case.steps("fused", "untabulated", "unfused", "baseline")
    return {
        route: float((step()[1] - forces).abs().max() / forces.abs().max()) for route, step in steps.items()
    }


for _route, _bound, _what in (
    ("baseline", 1e-5, "CGSchNet in plain torch and single precision"),
    ("untabulated", 1e-5, "the compiled kernels with filter networks"),
    ("fused", 1e-4, "the compiled kernels with tables"),
    ("unfused", 1e-4, "plain torch with tables"),
):
    suite.claim(
        f"accurate-{_route}",
        of=accuracy,
        figure=_route,
        kind="every",
        at_most=_bound,
        statement=f"Forces of {_what} agree with double precision and autograd.",
        paper=f"Structures are reproduced as well as with CGSchNet (Q, RMSD, GDT-TS unchanged). {PAPER}",
    )


@suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("no-envelope-derivative",))
def gradient(run: Run, seed: int) -> dict[str, list[float]]:
    """Forces against central differences along random directions, in double precision."""
    from icml_flashschnet.compact_chain import compact_chain
    from icml_flashschnet.compression import compress
    from icml_flashschnet.conservation import gradient_errors, without_envelope_slope
    from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

    n_beads, directions = (30, 5) if run.scale == "smoke" else (120, 50)
    model = FlashSchNet(SchNetConfig(), seed=seed % 2**31).double().to(run.device)
    pos, types = compact_chain(n_beads, seed=seed % 2**31)
    pos, types = pos.to(run.device), types.to(run.device)
    if run.ablation == "no-envelope-derivative":
        models = [without_envelope_slope(model)]
    else:
        models = [model, compress(model)[0]]
    errors = [gradient_errors(m, pos, types, directions=directions, seed=seed) for m in models]
    return {"error": [max(e) for e in errors]}


suite.claim(
    "forces-are-the-gradient",
    of=gradient,
    figure="error",
    kind="every",
    at_most=1e-6,
    teeth="no-envelope-derivative",
    statement="Forces, with networks or tables, are minus the energy's gradient in 50 random directions.",
    paper="Implied. The published kernels leave out the envelope's derivative; without it this fails.",
)


@suite.measure(seeds={"smoke": 1, "small": 1, "full": 3})
def free_motion(run: Run, seed: int) -> dict[str, float]:
    """Drift of the energy over 20,000 steps of 2 fs without a thermostat, in double precision."""
    import numpy as np

    from icml_flashschnet.compression import compress
    from icml_flashschnet.conservation import drift_per_degree_of_freedom
    from icml_flashschnet.demo import demo_model
    from icml_flashschnet.potential import SumPotential
    from icml_flashschnet.prior import CGPrior
    from icml_flashschnet.simulation import LangevinSimulator
    from icml_flashschnet.structure import chain_molecule, example_structure, read_pdb
    from icml_flashschnet.units import BOLTZMANN

    temperature, steps = 300.0, 200 if run.scale == "smoke" else 20_000
    protein = read_pdb(example_structure("1ejg"))
    beads = int(np.searchsorted(protein.residue_of, 6))
    molecule = chain_molecule(protein.sequence[:6], protein.pos[:beads])
    saved = demo_model()
    network, _ = compress(saved.network.double())
    potential = SumPotential(network, CGPrior(molecule, saved.prior))
    options = {"seed": seed, "dt": 0.002, "device": run.device, "dtype": "float64"}
    warm = LangevinSimulator(potential, molecule, temperature=temperature, **options)
    warm.run(steps // 10, save_every=steps)
    free = LangevinSimulator(
        potential, molecule, temperature=temperature, integrator="nve", pos=warm.state.pos, **options
    )
    trajectory = free.run(steps, save_every=steps // 200)
    kinetic = 1.5 * beads * BOLTZMANN * trajectory.temperature
    drift = drift_per_degree_of_freedom(trajectory.energy + kinetic, trajectory.time, beads, temperature)
    return {"drift": drift}


suite.claim(
    "energy-is-conserved",
    of=free_motion,
    figure="drift",
    kind="every",
    at_most=1e-4,
    unit="kT per degree of freedom and ps",
    statement="Without a thermostat the shipped model's energy does not drift over 20,000 steps of 2 fs.",
    paper="Implied.",
)


@suite.measure(seeds={"smoke": 1, "small": 3, "full": 3})
def determinism(run: Run, seed: int) -> dict[str, float]:
    """The same step again, and with its pairs given in another order."""
    import torch
    from icml_kernels.molecules.neighbors import half_list

    from icml_flashschnet.compact_chain import compact_chain
    from icml_flashschnet.compression import compress
    from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

    n_beads, n_replicas = (40 if run.scale == "smoke" else 269), REPLICAS[run.scale]
    seed = seed % 2**31
    model, _ = compress(FlashSchNet(SchNetConfig(), seed=seed).to(run.device))
    pos, types = compact_chain(n_beads, n_replicas=n_replicas, seed=seed)
    pos, types = pos.float().to(run.device), types.to(run.device)
    pairs = model.neighbours(pos, n_replicas=n_replicas)
    i, j = pairs.ij()
    order = torch.randperm(len(i), generator=torch.Generator().manual_seed(seed)).to(run.device)
    flipped = half_list(j[order], i[order], pairs.n_atoms)
    energy, forces = model.energy_forces(pos, types, n_replicas=n_replicas, nlist=pairs)
    again, forces_again = model.energy_forces(pos, types, n_replicas=n_replicas, nlist=pairs)
    _, shuffled = model.energy_forces(pos, types, n_replicas=n_replicas, nlist=flipped)
    return {
        "repeated": float((forces - forces_again).abs().max() + (energy - again).abs().max()),
        "shuffled": float((forces - shuffled).abs().max() / forces.abs().max()),
    }


suite.claim(
    "bit-identical",
    of=determinism,
    figure="repeated",
    kind="every",
    at_most=0.0,
    statement="The same step gives the same energies and forces to the last bit.",
    paper=f"Contention-free aggregation: sums by rows instead of atomic additions. {PAPER}",
)
suite.claim(
    "order-does-not-matter",
    of=determinism,
    figure="shuffled",
    kind="every",
    at_most=1e-6,
    statement="Forces do not depend on the order in which pairs are given.",
    paper=f"Contention-free aggregation. {PAPER}",
)


@suite.measure(seeds={"smoke": 1, "small": 1, "full": 3}, ablations=("euler",))
def ensemble(run: Run, seed: int) -> dict[str, float | list[float]]:
    """Averages of 64 independent replicas against exact ones, in standard errors."""
    from icml_flashschnet.reference_systems import (
        HarmonicDimer,
        TrappedCluster,
        equilibrium_samples,
        standard_score,
    )

    temperature = 300.0
    steps = {"smoke": 100, "small": 8000, "full": 100_000}[run.scale]
    options = {
        "steps": steps,
        "seed": seed,
        "temperature": temperature,
        "euler": run.ablation == "euler",
        "device": run.device,
    }
    dimer, cluster = HarmonicDimer(), TrappedCluster()
    bond, bond_temperature = equilibrium_samples(dimer, **options)
    # The cluster vibrates four times more slowly than the bond. The friction of the bond overdamps its trap,
    # and so short a run sees too few independent states to notice a wrong integrator.
    drop, drop_temperature = equilibrium_samples(cluster, **options, dt=0.004, friction=2.0)
    return {
        "kinetic": [standard_score(t.mean(1), temperature) for t in (bond_temperature, drop_temperature)],
        "length": list(dimer.scores(bond, temperature)),
        "virial": cluster.virial_score(drop, temperature),
    }


for _figure, _statement in (
    ("kinetic", "The mean kinetic energy of a bond and of a trapped cluster of seven beads is that of 300 K"),
    ("length", "Mean and variance of a bond's length are the exact integrals"),
    ("virial", "The mean virial of a trapped Lennard-Jones cluster of seven beads is 3 N kT"),
):
    suite.claim(
        f"right-{_figure}",
        of=ensemble,
        figure=_figure,
        kind="every",
        at_most=3.0,
        unit="standard errors",
        teeth="euler",
        statement=f"{_statement}, within 3 standard errors over 64 replicas (right sampling misses one such "
        "comparison in 260).",
        paper="Implied: BAOAB Langevin dynamics. With an Euler step of the same length this fails.",
    )
