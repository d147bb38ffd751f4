"""Trajectories: frames of all replicas, written in chunks that are complete or absent, and read back.

A trajectory folder holds `pos-<first step>.npy` ([replicas, frames, beads, 3], Å, float32) and, of the same
frames, `log-<first step>.npz` (step, potential energy and temperature). DCD and XTC files of
single replicas need mdtraj.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from icml_core.run import write_atomically
from jaxtyping import Float, Int

from icml_flashschnet.structure import Molecule, write_pdb

NM_PER_ANGSTROM = 0.1
CHUNK_BYTES = 64 << 20
"""Frames are written out when they fill this much memory."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Frames of all replicas.

    Attributes:
        pos: positions, Å.
        step: step of each frame, from the beginning of the simulation.
        energy: potential energies, kcal/mol; NaN from where a replica was frozen.
        temperature: of the beads' motion, K; NaN for overdamped motion and frozen replicas.
        dt: time step, ps.
    """

    pos: Float[np.ndarray, "replicas frames beads 3"]
    step: Int[np.ndarray, " frames"]
    energy: Float[np.ndarray, "replicas frames"]
    temperature: Float[np.ndarray, "replicas frames"]
    dt: float

    @property
    def time(self) -> Float[np.ndarray, " frames"]:
        """Time of each frame, ps."""
        return self.step * self.dt

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, eq=False)
class Frame:
    """One moment of all replicas, as the writer takes it."""

    step: int
    pos: Float[np.ndarray, "replicas beads 3"]
    energy: Float[np.ndarray, " replicas"]
    temperature: Float[np.ndarray, " replicas"]


class TrajectoryWriter:
    """Collects frames and writes them in chunks; without a folder it keeps them in memory.

    Args:
        folder: where to write, or None.
        dt: time step, ps.
        after: step of the last frame to keep of those already in the folder; later ones are removed.
    """

    def __init__(self, folder: Path | None, dt: float, *, after: int = 0) -> None:
        self.folder = folder
        self.dt = dt
        self.frames: list[Frame] = []
        self.last_step = after
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("pos-*.npy")) + sorted(folder.glob("log-*.npz")):
                if _first_step(path) > after:
                    path.unlink()

    def add(self, frame: Frame) -> None:
        """Take one frame; those of steps already taken are passed over."""
        if frame.step <= self.last_step:
            return
        self.frames.append(frame)
        self.last_step = frame.step
        if self.folder is not None and frame.pos.nbytes * len(self.frames) > CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the frames collected so far, the log first: a chunk counts where its positions are there."""
        if self.folder is None or not self.frames:
            return
        part = _stack(self.frames, self.dt)
        name = f"{int(part.step[0]):015d}"
        with write_atomically(self.folder / f"log-{name}.npz") as temporary:
            np.savez(temporary, step=part.step, energy=part.energy, temperature=part.temperature, dt=self.dt)
        with write_atomically(self.folder / f"pos-{name}.npy") as temporary:
            np.save(temporary, part.pos)
        self.frames = []

    def trajectory(self, n_replicas: int, n_beads: int) -> Trajectory:
        """All frames, those on disk included."""
        if self.folder is not None:
            self.flush()
            if any(self.folder.glob("pos-*.npy")):
                return load_trajectory(self.folder)
        if not self.frames:
            empty = np.zeros((n_replicas, 0))
            return Trajectory(
                np.zeros((n_replicas, 0, n_beads, 3), np.float32),
                np.zeros(0, np.int64),
                empty,
                empty,
                self.dt,
            )
        return _stack(self.frames, self.dt)


def load_trajectory(folder: str | os.PathLike[str]) -> Trajectory:
    """Read a trajectory folder; one chunk is mapped into memory, several are joined.

    Raises:
        FileNotFoundError: no such folder, or no frames in it.
        ValueError: chunks that do not fit together.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("pos-*.npy"))
    if not paths:
        raise FileNotFoundError(f"no trajectory chunks (pos-*.npy) in {folder}")
    parts = []
    for path in paths:
        pos = np.load(path, mmap_mode="r", allow_pickle=False)
        log_path = folder / path.name.replace("pos-", "log-").replace(".npy", ".npz")
        if not log_path.is_file():
            raise FileNotFoundError(f"{path} has no log {log_path.name} beside it")
        with np.load(log_path, allow_pickle=False) as log:
            parts.append(Trajectory(pos, log["step"], log["energy"], log["temperature"], float(log["dt"])))
    if any(p.pos.shape[::2] != parts[0].pos.shape[::2] or p.pos.shape[1] != len(p.step) for p in parts):
        raise ValueError(
            f"{folder}: chunks of different replicas or beads; they belong to different simulations"
        )
    if len(parts) == 1:
        return parts[0]
    return Trajectory(
        np.concatenate([p.pos for p in parts], 1),
        np.concatenate([p.step for p in parts]),
        np.concatenate([p.energy for p in parts], 1),
        np.concatenate([p.temperature for p in parts], 1),
        parts[0].dt,
    )


def write_dcd(
    trajectory: Trajectory,
    molecule: Molecule,
    folder: str | os.PathLike[str],
    replicas: Sequence[int] | None = None,
) -> list[Path]:
    """Write single replicas as DCD files with their topology, for VMD, PyMOL, mdtraj and the like.

    Args:
        trajectory: the frames.
        molecule: the beads; its topology is written as `topology.pdb`.
        folder: where to write `topology.pdb` and `replica-<number>.dcd`.
        replicas: which; all by default.

    Returns:
        The DCD files.

    Raises:
        ModuleNotFoundError: mdtraj is not installed (extra `mdtraj`).
    """
    from mdtraj.formats import DCDTrajectoryFile

    files = _replica_files(trajectory, molecule, folder, replicas, "dcd")
    for replica, path in files.items():
        with (
            write_atomically(path) as temporary,
            DCDTrajectoryFile(str(temporary), "w", force_overwrite=True) as dcd,
        ):
            dcd.write(np.asarray(trajectory.pos[replica], dtype=np.float32))
    return list(files.values())


def write_xtc(
    trajectory: Trajectory,
    molecule: Molecule,
    folder: str | os.PathLike[str],
    replicas: Sequence[int] | None = None,
) -> list[Path]:
    """Write single replicas as XTC files (GROMACS) with their topology: a third of a DCD file's size.

    XTC keeps positions to 0.001 nm, and holds each frame's step and time.

    Args:
        trajectory: the frames.
        molecule: the beads; its topology is written as `topology.pdb`.
        folder: where to write `topology.pdb` and `replica-<number>.xtc`.
        replicas: which; all by default.

    Returns:
        The XTC files.

    Raises:
        ModuleNotFoundError: mdtraj is not installed (extra `mdtraj`).
    """
    from mdtraj.formats import XTCTrajectoryFile

    files = _replica_files(trajectory, molecule, folder, replicas, "xtc")
    for replica, path in files.items():
        with (
            write_atomically(path) as temporary,
            XTCTrajectoryFile(str(temporary), "w", force_overwrite=True) as xtc,
        ):
            xtc.write(
                np.asarray(trajectory.pos[replica] * NM_PER_ANGSTROM, dtype=np.float32),
                time=np.asarray(trajectory.time, dtype=np.float32),
                step=np.asarray(trajectory.step, dtype=np.int32),
            )
    return list(files.values())


def _replica_files(
    trajectory: Trajectory,
    molecule: Molecule,
    folder: str | os.PathLike[str],
    replicas: Sequence[int] | None,
    ending: str,
) -> dict[int, Path]:
    """The file of each replica, in a folder that holds their topology."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    write_pdb(molecule, home / "topology.pdb")
    wanted = range(len(trajectory.pos)) if replicas is None else replicas
    return {replica: home / f"replica-{replica:03d}.{ending}" for replica in wanted}


def _first_step(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _stack(frames: Sequence[Frame], dt: float) -> Trajectory:
    return Trajectory(
        np.stack([f.pos for f in frames], 1).astype(np.float32),
        np.array([f.step for f in frames], dtype=np.int64),
        np.stack([f.energy for f in frames], 1),
        np.stack([f.temperature for f in frames], 1),
        dt,
    )
