"""Forces to match: data sets of one or more systems, checked, split by contiguous blocks, and batched.

A data set holds the frames of one system: ``coords [T, N, 3]`` (Å), ``forces [T, N, 3]`` (kcal/mol/Å, or the
user's unit of energy) and ``types [N]``. What the network learns are delta forces, those that the prior
leaves unexplained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn


@dataclass(frozen=True)
class ForceData:
    """Frames of one system.

    Attributes:
        coords: positions, Å.
        forces: mapped forces.
        delta: forces minus those of the prior; ``forces`` themselves without one.
        types: bead types, the same in every frame.
    """

    coords: Float[Tensor, "frames beads 3"]
    forces: Float[Tensor, "frames beads 3"]
    delta: Float[Tensor, "frames beads 3"]
    types: Int[Tensor, " beads"]

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return self.coords.shape[0]

    def split(self, fraction: float) -> tuple[ForceData, ForceData]:
        """The first frames for training, and the last contiguous block, ``fraction`` of all, held out.

        Frames near in time are alike, so that a random split would test on what was trained on.

        Raises:
            ValueError: too few frames for both parts.
        """
        held_out = max(1, round(self.n_frames * fraction))
        if self.n_frames - held_out < 1:
            raise ValueError(
                f"{self.n_frames} frames are too few to hold out {fraction:g} of them; give at least 2"
            )
        cut = self.n_frames - held_out
        return self._frames(slice(0, cut)), self._frames(slice(cut, None))

    def _frames(self, frames: slice) -> ForceData:
        return ForceData(self.coords[frames], self.forces[frames], self.delta[frames], self.types)


@dataclass(frozen=True)
class ForceBatch:
    """Frames of several systems, as replicas of one call.

    Attributes:
        pos: positions, Å.
        types: bead types.
        batch: number of the frame that each bead belongs to, ascending.
        delta: forces to match.
    """

    pos: Float[Tensor, "beads 3"]
    types: Int[Tensor, " beads"]
    batch: Int[Tensor, " beads"]
    delta: Float[Tensor, "beads 3"]


def force_data(
    coords: ArrayLike,
    forces: ArrayLike,
    types: ArrayLike,
    *,
    prior: nn.Module | None,
    dtype: torch.dtype,
    device: torch.device,
    name: str = "data set",
) -> ForceData:
    """Check one system's arrays and subtract the prior's forces.

    Args:
        coords: positions [T, N, 3], Å.
        forces: mapped forces [T, N, 3].
        types: bead types [N].
        prior: potential whose forces are subtracted, with the call of ``Potential``.
        dtype: of the tensors.
        device: of the tensors.
        name: what errors call this data set.

    Raises:
        ValueError: shapes that do not fit together (atoms instead of beads are named as such), NaN.
    """
    x, f, z = np.asarray(coords), np.asarray(forces), np.asarray(types)
    if x.ndim != 3 or x.shape[2] != 3:
        raise ValueError(f"{name}: coords must be [frames, beads, 3], got {list(x.shape)}")
    if f.shape != x.shape:
        hint = ""
        if f.ndim == 3 and f.shape[::2] == x.shape[::2] and f.shape[1] != x.shape[1]:
            hint = (
                f": the forces are those of {f.shape[1]} atoms, not of {x.shape[1]} beads; "
                "map them with a force_map first"
            )
        raise ValueError(f"{name}: coords {list(x.shape)} and forces {list(f.shape)} differ{hint}")
    if z.shape != (x.shape[1],):
        raise ValueError(f"{name}: types must be [{x.shape[1]}], one a bead, got {list(z.shape)}")
    for what, array in (("coords", x), ("forces", f)):
        if not np.isfinite(array).all():
            frame = int(np.argwhere(~np.isfinite(array))[0, 0])
            raise ValueError(f"{name}: {what} of frame {frame} are not finite")
    pos = torch.as_tensor(x, dtype=dtype, device=device)
    force = torch.as_tensor(f, dtype=dtype, device=device)
    type_ = torch.as_tensor(z.astype(np.int64), device=device)
    delta = force if prior is None else force - prior_forces(prior, pos, type_)
    return ForceData(pos, force, delta, type_)


def prior_forces(
    potential: nn.Module, pos: Float[Tensor, "frames beads 3"], types: Int[Tensor, " beads"], chunk: int = 256
) -> Float[Tensor, "frames beads 3"]:
    """Forces of a potential on every frame, ``chunk`` frames a call."""
    out = torch.empty_like(pos)
    for begin in range(0, pos.shape[0], chunk):
        part = pos[begin : begin + chunk]
        _, forces = potential.energy_forces(part.reshape(-1, 3), types, n_replicas=part.shape[0])
        out[begin : begin + chunk] = forces.view_as(part)
    return out


def batches(
    data: Sequence[ForceData], size: int, *, generator: torch.Generator | None = None
) -> Iterator[tuple[Int[Tensor, " frames"], Int[Tensor, " frames"]]]:
    """Batches over the frames of all systems together: the system and the frame number of each.

    Args:
        data: the systems.
        size: frames a batch; the last may be smaller.
        generator: shuffles; None keeps the order.
    """
    system = torch.cat([torch.full((d.n_frames,), s) for s, d in enumerate(data)])
    frame = torch.cat([torch.arange(d.n_frames) for d in data])
    if generator is not None:
        order = torch.randperm(len(system), generator=generator)
        system, frame = system[order], frame[order]
    yield from zip(system.split(size), frame.split(size), strict=True)


def gather(
    data: Sequence[ForceData], system: Int[Tensor, " frames"], frame: Int[Tensor, " frames"]
) -> ForceBatch:
    """Frames of several systems, side by side in the order of the systems.

    Args:
        data: the systems.
        system: which system each frame is of.
        frame: its number there.
    """
    pos, types, delta, beads = [], [], [], []
    for s in system.unique().tolist():
        d = data[s]
        frames = frame[system == s].to(d.coords.device)
        pos.append(d.coords[frames].reshape(-1, 3))
        delta.append(d.delta[frames].reshape(-1, 3))
        types.append(d.types.repeat(len(frames)))
        beads += [d.types.shape[0]] * len(frames)
    replica = torch.repeat_interleave(torch.arange(len(beads)), torch.tensor(beads))
    return ForceBatch(torch.cat(pos), torch.cat(types), replica.to(pos[0].device), torch.cat(delta))


def digest(data: Sequence[ForceData]) -> str:
    """A hash of the data, by which a resumed training knows that it continues on the same."""
    hash_ = sha256()
    for d in data:
        for tensor in (d.coords, d.delta, d.types):
            hash_.update(str(tuple(tensor.shape)).encode())
            hash_.update(tensor.cpu().contiguous().numpy().tobytes())
    return hash_.hexdigest()
