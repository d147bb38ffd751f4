"""Langevin dynamics of many replicas of one molecule on any potential, with checkpoints."""

from __future__ import annotations

import copy
import inspect
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels.molecules.langevin_baoab import blown_replicas
from icml_kernels.molecules.radius_pairs import list_is_stale
from jaxtyping import Float
from torch import Tensor

from icml_flashschnet.integrators import (
    INTEGRATORS,
    Integrator,
    Motion,
    State,
    advance,
    kinetic_temperature,
    thermal_velocities,
)
from icml_flashschnet.neighbour_check import missing_pair
from icml_flashschnet.simulation_checkpoint import (
    compare_configs,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
)
from icml_flashschnet.simulation_setup import (
    placed,
    print_progress,
    resolve_device,
    silent,
    starting_positions,
    weights_of,
)
from icml_flashschnet.structure import Molecule
from icml_flashschnet.trajectory import Frame, Trajectory, TrajectoryWriter
from icml_flashschnet.units import check_length_unit, ns_per_day

CHECKPOINT = "checkpoint.npz"
MAX_STRIDE = 1.0
"""Å by which the force may move a bead in one step, 418.4 |F| dt²/m, before its replica counts as blown."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}

Temperature = float | Sequence[float] | np.ndarray | Tensor | Callable[[int], Any]


@dataclass(frozen=True)
class BlownReplica:
    """A replica that was frozen: where and when it went wrong."""

    step: int
    replica: int
    bead: int
    energy: float
    reason: str

    def __str__(self) -> str:
        return (
            f"replica {self.replica} blew up by step {self.step}: {self.reason} at bead {self.bead}, "
            f"energy {self.energy:.6g} kcal/mol; it stays frozen, the others go on"
        )


@dataclass(frozen=True)
class Timing:
    """Wall time of the steps so far; the first step, which compiles the kernels, apart."""

    first_step_seconds: float
    seconds: float
    replica_steps: int
    dt: float

    @property
    def aggregate_ns_per_day(self) -> float:
        """Nanoseconds a day of all replicas together, without the first step; NaN before the second step."""
        return ns_per_day(self.replica_steps, self.seconds, self.dt) if self.replica_steps else math.nan


class LangevinSimulator:
    """Moves replicas of one molecule; the trajectory is a function of the seed and the replica's number.

    Cutting a run into pieces, checkpoints, and the number of replicas beside one change nothing: the noise is
    keyed by (seed, replica, step, bead). A replica whose positions or forces go wild is frozen and named.

    Args:
        model: a potential: `energy_forces(pos, types, n_replicas=..., nlist=...)` gives energies (kcal/mol)
            and forces (kcal/mol/Å); where it has `neighbours(pos, n_replicas=..., skin=...)`, its lists are
            kept while no bead has moved by half the skin.
        molecule: beads, types, masses and starting positions.
        n_replicas: number of replicas.
        temperature: K; one number, one a replica, or a function of the step that gives either.
        friction: γ, 1/ps.
        dt: time step, ps.
        seed: of velocities and noise.
        device: "auto" takes CUDA where it is there.
        dtype: "float32" or "float64".
        integrator: "baoab" (Langevin), "nve" (velocity Verlet) or "overdamped".
        pos: other starting positions, [beads, 3] or [replicas, beads, 3], Å.
        first_replica: number of the first replica, for replicas that are spread over several processes.
        skin: of the neighbour lists, Å.
        check_every: steps between two looks for blown replicas.
        remove_drift: take the motion of the centre of mass out of the initial velocities.
        check_nlist: steps between two looks whether the kept neighbour list lacks a pair; 0 never looks.

    Raises:
        ValueError: temperature, friction, dt, masses not positive; wrong shapes; NaN.

    Example:
        >>> from icml_flashschnet import CGPrior, demo_prior, example_structure, read_pdb
        >>> molecule = read_pdb(example_structure("1ejg"))
        >>> simulator = LangevinSimulator(CGPrior(molecule, demo_prior()), molecule, n_replicas=2)
        >>> simulator.run(steps=20, save_every=10).pos.shape
        (2, 2, 226, 3)
    """

    def __init__(
        self,
        model: Any,
        molecule: Molecule,
        n_replicas: int = 1,
        temperature: Temperature = 300.0,
        friction: float = 1.0,
        dt: float = 0.004,
        seed: int = 0,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        *,
        integrator: Integrator = "baoab",
        pos: np.ndarray | Tensor | None = None,
        first_replica: int = 0,
        skin: float = 1.0,
        check_every: int = 10,
        remove_drift: bool = False,
        check_nlist: int = 0,
    ) -> None:
        if integrator not in INTEGRATORS:
            raise ValueError(f"integrator {integrator!r} is none of {', '.join(INTEGRATORS)}")
        for name, number in (("n_replicas", n_replicas), ("check_every", check_every)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not (math.isfinite(dt) and dt > 0):
            raise ValueError(f"dt must be positive (ps), got {dt}")
        for name, value in (("skin", skin), ("friction", friction), ("check_nlist", check_nlist)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be at least 0, got {value}")
        if integrator == "overdamped" and not friction > 0:
            raise ValueError(f"overdamped motion needs a friction above 0, got {friction}")
        if isinstance(dtype, str) and dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        self.dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
        self.device = resolve_device(device)
        self.molecule = molecule
        self.n_replicas = n_replicas
        self.skin = float(skin)
        self.check_every = check_every
        self.check_nlist = check_nlist
        self._temperature = temperature
        self.model = placed(model, self.device, self.dtype)
        self._takes_check = "check" in inspect.signature(self.model.energy_forces).parameters
        self.types = torch.as_tensor(molecule.types, dtype=torch.int64, device=self.device)
        start = starting_positions(molecule.pos if pos is None else pos, n_replicas, molecule.n_beads)
        check_length_unit(start[0], "starting positions")
        self.motion = Motion(
            integrator,
            torch.as_tensor(np.asarray(molecule.masses), dtype=self.dtype, device=self.device),
            float(friction),
            float(dt),
            int(seed),
            torch.arange(first_replica, first_replica + n_replicas, device=self.device),
        )
        self.blown: list[BlownReplica] = []
        self._list: Any = None
        self._list_pos: Tensor | None = None
        self._first_step_seconds = self._seconds = 0.0
        self._timed_steps: int | None = None
        self._wild = False
        x = torch.as_tensor(start, dtype=self.dtype, device=self.device)
        self._good_pos = x
        temperatures = self.temperatures(0)
        begin = time.perf_counter()
        energy, force = self._forces(x, check=True)
        self._first_step_seconds = time.perf_counter() - begin
        self.state = State(
            0, x, thermal_velocities(self.motion, temperatures, remove_drift=remove_drift), force, energy,
            torch.zeros(n_replicas, dtype=torch.bool, device=self.device),
        )  # fmt: skip

    @property
    def timing(self) -> Timing:
        """Wall time and throughput so far."""
        return Timing(
            self._first_step_seconds,
            self._seconds,
            (self._timed_steps or 0) * self.n_replicas,
            self.motion.dt,
        )

    @property
    def config(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        temperature = self._temperature
        return {
            "n_replicas": self.n_replicas,
            "first_replica": int(self.motion.replica[0]),
            "temperature": "schedule" if callable(temperature) else self.temperatures(0).tolist(),
            "friction": self.motion.friction,
            "dt": self.motion.dt,
            "seed": self.motion.seed,
            "integrator": self.motion.integrator,
            "dtype": str(self.dtype).removeprefix("torch."),
            "beads": fingerprint(self.molecule.types, self.molecule.masses),
            "model": fingerprint(*weights_of(self.model)),
        }

    def temperatures(self, step: int) -> Float[Tensor, " replicas"]:
        """Temperature of each replica at a step, K.

        Raises:
            ValueError: not positive, or neither one number nor one a replica.
        """
        value = self._temperature(step) if callable(self._temperature) else self._temperature
        t = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        if t.ndim == 0:
            t = t.expand(self.n_replicas).clone()
        if t.shape != (self.n_replicas,):
            raise ValueError(
                f"temperature has shape {list(t.shape)}; give one, or one for each of {self.n_replicas}"
            )
        if not bool((torch.isfinite(t) & (t > 0)).all()):
            raise ValueError(f"temperature must be positive (K), got {value}")
        return t

    def run(
        self,
        steps: int,
        save_every: int = 100,
        out: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        progress: bool | Callable[[int, dict[str, float]], None] = False,
        *,
        resume: bool = False,
    ) -> Trajectory:
        """Advance all replicas.

        Args:
            steps: number of steps; with `resume` and `out`, counted from the very beginning.
            save_every: steps between frames, on multiples of the step number.
            out: folder for the trajectory's chunks and the checkpoint; in memory without.
            checkpoint_every: steps between checkpoints in `out`; one is written at the end and on Ctrl-C in
                any case.
            progress: print the progress on standard error, or a function called every `save_every` steps
                with the number of steps done since and a few figures.
            resume: continue from the checkpoint in `out` where there is one.

        Returns:
            The frames; with `resume`, those of the earlier part as well.

        Raises:
            ValueError: steps or intervals not positive; `resume` without `out`; a checkpoint of another
                configuration, with the differing keys.
            RuntimeError: every replica has blown up.
        """
        for name, value in (
            ("steps", steps + 1),
            ("save_every", save_every),
            ("checkpoint_every", checkpoint_every or 1),
        ):
            if value < 1:
                raise ValueError(f"{name} is out of range: {value - (name == 'steps')}")
        folder = None if out is None else Path(out)
        if resume and folder is None:
            raise ValueError("resume needs the folder `out` of the earlier run")
        last = self.state.step + steps
        if resume and folder is not None and (folder / CHECKPOINT).exists():
            self.restore(folder / CHECKPOINT)
            last = max(steps, self.state.step)
        report = progress if callable(progress) else (print_progress(last) if progress else silent)
        writer = TrajectoryWriter(folder, self.motion.dt, after=self.state.step)
        try:
            while self.state.step < last:
                self._step()
                step = self.state.step
                if step % save_every == 0:
                    writer.add(self._frame())
                    report(save_every, self._figures())
                if folder is not None and checkpoint_every is not None and step % checkpoint_every == 0:
                    self._save(folder, writer)
        except KeyboardInterrupt:
            # The state is replaced whole at the end of a step: what stands there now is a moment of the run.
            if folder is not None:
                if self.state.step % save_every == 0:
                    writer.add(self._frame())
                self._save(folder, writer)
            raise
        if folder is not None:
            self._save(folder, writer)
        return writer.trajectory(self.n_replicas, self.molecule.n_beads)

    def sample(
        self, n: int, *, seed: int, steps_between: int = 100
    ) -> Float[np.ndarray, "n replicas beads 3"]:
        """`n` frames of a fresh simulation with another seed, a number of steps apart.

        Args:
            n: number of frames.
            seed: of velocities and noise.
            steps_between: steps before each frame.
        """
        if n < 0:
            raise ValueError(f"the number of samples must be at least 0, got {n}")
        fresh = copy.copy(self)
        fresh.motion = replace(self.motion, seed=seed)
        fresh.blown, fresh._list, fresh._list_pos = [], None, None
        temperatures = fresh.temperatures(0)
        start = torch.as_tensor(
            starting_positions(self.molecule.pos, self.n_replicas, self.molecule.n_beads),
            dtype=self.dtype, device=self.device,
        )  # fmt: skip
        energy, force = fresh._forces(start, check=True)
        fresh._good_pos = start
        fresh.state = State(
            0,
            start,
            thermal_velocities(fresh.motion, temperatures),
            force,
            energy,
            torch.zeros_like(self.state.frozen),
        )
        return np.swapaxes(fresh.run(n * steps_between, save_every=steps_between).pos, 0, 1)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state from a checkpoint.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the checkpoint belongs to another configuration (the differing keys are named).
        """
        saved = load_checkpoint(Path(path))
        compare_configs(saved.config, self.config, Path(path))

        def array(name: str) -> Tensor:
            value = torch.as_tensor(saved.arrays[name])
            return value.to(
                self.device, self.dtype if name != "energy" and value.is_floating_point() else None
            )

        self._list, self._list_pos = None, None
        list_pos = array("list_pos")
        if list_pos.numel():
            self._build_list(list_pos)
        self._good_pos = array("good_pos")
        self.blown = [BlownReplica(**b) for b in saved.blown]
        self.state = State(
            saved.step, array("pos"), array("vel"), array("force"), array("energy"), array("frozen")
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `restore` continues bit by bit on the same kind of device."""
        save_checkpoint(
            Path(path), self.config, self.state.step, [vars(b) for b in self.blown],
            {name: value.cpu().numpy() for name, value in self._arrays().items()},
        )  # fmt: skip

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {name: getattr(self.state, name) for name in ("pos", "vel", "force", "energy", "frozen")}
        arrays["good_pos"] = self._good_pos
        arrays["list_pos"] = torch.zeros(0) if self._list_pos is None else self._list_pos
        return arrays

    def _save(self, folder: Path, writer: TrajectoryWriter) -> None:
        writer.flush()
        self.save(folder / CHECKPOINT)

    def _step(self) -> None:
        begin = time.perf_counter()
        self._wild = False
        state = advance(self.state, self.motion, self.temperatures(self.state.step), self._forces)
        if self._wild or state.step % self.check_every == 0:
            state = self._freeze_blown(state)
        self.state = state
        if self.check_nlist and state.step % self.check_nlist == 0:
            self._check_list()
        elapsed = time.perf_counter() - begin
        if self._timed_steps is None:
            self._first_step_seconds += elapsed
            self._timed_steps = 0
        else:
            self._seconds += elapsed
            self._timed_steps += 1

    def _forces(self, pos: Tensor, *, check: bool = False) -> tuple[Tensor, Tensor]:
        """Energies and forces; a replica that is not finite is evaluated where it was last good."""
        if self._list_pos is None or bool(list_is_stale(pos, self._list_pos, self.skin)):
            finite = torch.isfinite(pos).all(-1).all(-1)
            if not bool(finite.all()):
                self._wild = True
                pos = torch.where(finite[:, None, None], pos, self._good_pos)
            self._build_list(pos)
        options = {"check": check} if self._takes_check else {}
        energy, force = self.model.energy_forces(
            pos.view(-1, 3), self.types, n_replicas=self.n_replicas, nlist=self._list, **options
        )
        return energy.double(), force.view_as(pos)

    def _build_list(self, pos: Tensor) -> None:
        self._list_pos = pos
        if hasattr(self.model, "neighbours"):
            self._list = self.model.neighbours(pos.view(-1, 3), n_replicas=self.n_replicas, skin=self.skin)

    def _check_list(self) -> None:
        if self._list is None:
            return
        pos = torch.where(self.state.frozen[:, None, None], self._good_pos, self.state.pos)
        fresh = self.model.neighbours(pos.view(-1, 3), n_replicas=self.n_replicas)
        if (pair := missing_pair(self._list, fresh)) is not None:
            (replica, i), j = divmod(pair[0], self.molecule.n_beads), pair[1] % self.molecule.n_beads
            raise RuntimeError(
                f"step {self.state.step}: the neighbour list of replica {int(self.motion.replica[replica])} "
                f"lacks the beads {i} and {j}, which are within the cutoff; "
                "this is an error of the potential's neighbours(), or of its skin"
            )

    def _freeze_blown(self, state: State) -> State:
        """Stop replicas that went wild since the last look, where they were then, and say so."""
        reach = {"dt": self.motion.dt, "max_displacement": MAX_STRIDE}
        blown = blown_replicas(state.pos, state.force, self.motion.mass, **reach) & ~state.frozen
        if bool(blown.any()):
            for place in blown.nonzero()[:, 0].tolist():
                report = self._describe(state, place)
                self.blown.append(report)
                warnings.warn(str(report), RuntimeWarning, stacklevel=4)
            still = blown[:, None, None]
            state = replace(
                state,
                pos=torch.where(still, self._good_pos, state.pos),
                vel=torch.where(still, 0.0, state.vel),
                force=torch.where(still, 0.0, state.force),
                frozen=state.frozen | blown,
            )
            if bool(state.frozen.all()):
                raise RuntimeError(
                    f"every replica blew up, the last one thus: {self.blown[-1]} "
                    f"Try a smaller time step (dt is {self.motion.dt} ps), or relax the starting structure."
                )
        self._good_pos = state.pos
        return state

    def _describe(self, state: State, place: int) -> BlownReplica:
        pos, force = state.pos[place].double(), state.force[place].double()
        lost = ~(torch.isfinite(pos).all(-1) & torch.isfinite(force).all(-1))
        if bool(lost.any()):
            bead, reason = int(lost.nonzero()[0, 0]), "positions or forces are not finite"
        else:
            size = force.norm(dim=-1)
            bead = int((size / self.motion.mass.double()).argmax())
            reason = f"a force of {float(size[bead]):.4g} kcal/mol/Å"
        return BlownReplica(
            state.step, int(self.motion.replica[place]), bead, float(state.energy[place]), reason
        )

    def _frame(self) -> Frame:
        state = self.state
        temperature = kinetic_temperature(state.vel, self.motion.mass)
        moving = ~state.frozen
        known = moving & (self.motion.integrator != "overdamped")
        return Frame(
            state.step,
            state.pos.to(torch.float32).cpu().numpy(),
            torch.where(moving, state.energy, math.nan).cpu().numpy(),
            torch.where(known, temperature, math.nan).cpu().numpy(),
        )

    def _figures(self) -> dict[str, float]:
        frame = self._frame()
        moving = ~self.state.frozen.cpu().numpy()
        figures = {"energy": float(frame.energy[moving].mean())}
        if self.motion.integrator != "overdamped":
            figures["temperature"] = float(frame.temperature[moving].mean())
        return figures
