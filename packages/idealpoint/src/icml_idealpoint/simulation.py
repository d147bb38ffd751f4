"""Simulated items and answers with a known truth, and real series that ship with aeon."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

MAX_BYTES = 2**28  # of a file of series


@dataclass(frozen=True)
class Bumps:
    """Series of three bumps; the depth of the middle one is the severity, and the less severe item wins.

    a ~ U(0, 1);  w(t) = clip(t + W N sin(pi t) + W/2 N' sin(2 pi t), 0, 1);
    x(t) = 3 [ exp(-((w - .3) / .05)^2) - 1.2 a exp(-((w - .6) / .05)^2) + .3 exp(-((w - .8) / .06)^2) ] + .15
    noise

    Attributes:
        points: of each series.
        warp: W, the size of the random warping.
    """

    points: int = 48
    warp: float = 0.12

    def sample(self, n: int, *, seed: int) -> list[tuple[Float[np.ndarray, " points"], float]]:
        """n pairs of a series and its severity."""
        rng = np.random.default_rng(seed)
        found = []
        t = np.linspace(0, 1, self.points)
        for _ in range(n):
            a = rng.random()
            big, small = rng.normal(size=2)
            w = np.clip(
                t + self.warp * big * np.sin(np.pi * t) + self.warp / 2 * small * np.sin(2 * np.pi * t), 0, 1
            )
            bumps = np.exp(-(((w - 0.3) / 0.05) ** 2)) - 1.2 * a * np.exp(-(((w - 0.6) / 0.05) ** 2))
            bumps += 0.3 * np.exp(-(((w - 0.8) / 0.06) ** 2))
            found.append((3 * bumps + 0.15 * rng.normal(size=self.points), float(a)))
        return found

    def items(self, n: int, *, seed: int) -> tuple[Float[np.ndarray, "n points"], Float[np.ndarray, " n"]]:
        """The same as two arrays."""
        drawn = self.sample(n, seed=seed)
        return np.stack([series for series, _ in drawn]), np.array([a for _, a in drawn])


def compare(
    quality: Float[np.ndarray, " items"], answers: int, *, flip: float = 0.0, scale: float = 0.0, seed: int
) -> Int[np.ndarray, "answers 2"]:
    """Random pairs, winner first.

    The item of higher quality wins; answers are flipped with probability ``flip``. With ``scale`` > 0 the
    winner is drawn from the logistic model P = sigmoid(difference / scale) before that.

    Raises:
        ValueError: fewer than two items, or a flip rate outside 0 to 1.
    """
    if len(quality) < 2 or not 0 <= flip <= 1:
        raise ValueError(f"{len(quality)} items and flip={flip}: expected at least two items, and 0 to 1")
    rng = np.random.default_rng(seed)
    first = rng.integers(len(quality), size=answers)
    second = (first + rng.integers(1, len(quality), size=answers)) % len(quality)
    apart = quality[first] - quality[second]
    wins = rng.random(answers) < 1 / (1 + np.exp(-apart / scale)) if scale > 0 else apart > 0
    wins ^= rng.random(answers) < flip
    return np.stack([np.where(wins, first, second), np.where(wins, second, first)], axis=1)


@dataclass(frozen=True)
class Annotators:
    """People who grade into three classes, each with thresholds and a gain of their own.

    Attributes:
        people: how many.
        shift: deviation of each threshold, in units of the quality (whose range is 1).
        gain: deviation of the logarithm of the gain.
        noise: scale of the logistic noise of one look at an item.
    """

    people: int = 5
    shift: float = 0.15
    gain: float = 0.2
    noise: float = 0.1

    def grades(
        self, quality: Float[np.ndarray, " items"], answers: int, *, seed: int
    ) -> tuple[Int[np.ndarray, " answers"], Int[np.ndarray, " answers"], Int[np.ndarray, " answers"]]:
        """Items, their grades 0 to 2, and who gave them."""
        rng = np.random.default_rng(seed)
        shift = rng.normal(0, self.shift, size=(self.people, 2))
        gain = np.exp(rng.normal(0, self.gain, size=self.people))
        item = rng.integers(len(quality), size=answers)
        who = rng.integers(self.people, size=answers)
        seen = gain[who] * (quality[item] - 0.5) + 0.5 + rng.logistic(0, self.noise, size=answers)
        cuts = np.sort(np.array([1 / 3, 2 / 3]) + shift, axis=1)[who]
        return item, (seen[:, None] > cuts).sum(1), who

    def pairs(
        self, quality: Float[np.ndarray, " items"], answers: int, *, seed: int
    ) -> Int[np.ndarray, "answers 3"]:
        """Comparisons with the same noise on each of the two looks, whose difference is what counts."""
        rng = np.random.default_rng(seed)
        first = rng.integers(len(quality), size=answers)
        second = (first + rng.integers(1, len(quality), size=answers)) % len(quality)
        who = rng.integers(self.people, size=answers)
        noise = rng.logistic(0, self.noise, size=(2, answers))
        wins = quality[first] + noise[0] > quality[second] + noise[1]
        return np.stack([np.where(wins, first, second), np.where(wins, second, first), who], axis=1)


def aeon_series(
    name: str, part: str = "TRAIN"
) -> tuple[list[Float[np.ndarray, "points channels"]], list[str]]:
    """Series that ship with aeon, and their labels: GunPoint, ItalyPowerDemand, BasicMotions, JapaneseVowels,
    …

    aeon's files are read; it is never imported.

    Raises:
        FileNotFoundError: aeon is not installed, or has no such data.
        ValueError: a file that is not in the form expected.
    """
    found = importlib.util.find_spec("aeon")
    if found is None or found.origin is None:
        raise FileNotFoundError("aeon is not installed; its data come with: pip install aeon")
    path = Path(found.origin).parent / "datasets" / "data" / name / f"{name}_{part}.ts"
    if not path.is_file():
        raise FileNotFoundError(f"aeon ships no {name}_{part}.ts")
    return read_ts(path)


def read_ts(path: Path) -> tuple[list[Float[np.ndarray, "points channels"]], list[str]]:
    """Read a ``.ts`` file: channels between colons, the label last; ``?`` is NaN.

    Raises:
        ValueError: a file that is too large, a line that cannot be read.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    series, labels = [], []
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        line = line.strip()
        if not inside:
            inside = line.lower() == "@data"
            continue
        if not line or line.startswith(("#", "%")):
            continue
        *channels, label = line.split(":")
        try:
            columns = [[float(v) if v.strip() != "?" else np.nan for v in c.split(",")] for c in channels]
            series.append(np.array(columns).T)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not a series: {error}") from error
        labels.append(label.strip())
    if not series:
        raise ValueError(f"{path} holds no series after @data")
    return series, labels
