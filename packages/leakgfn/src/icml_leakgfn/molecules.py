"""A scoring function in, molecules out: the sampler with everything that a chemist would not want to
choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from icml_leakgfn.fragments import FragmentEnv
from icml_leakgfn.gfn import Callback, LeakGFN
from icml_leakgfn.rewards import OnError, Shaping
from icml_leakgfn.samples import Samples
from icml_leakgfn.scores import molecule_reward


class MoleculeGenerator:
    """Molecules from fragments, in proportion to a score.

    Args:
        score: a name (``"qed"``, ``"sa"``, ``"similarity:celecoxib"``, ``"package.module:function"``), or a
            function of an RDKit molecule, of SMILES (annotate the parameter ``str``), or of a list of either.
        blocks: ``"default105"``, a file, or a list; see :class:`FragmentEnv`.
        max_blocks: L_max.
        min_blocks: fewer blocks are no finished molecule.
        truncation: "leak" or "cap", see :class:`FragmentEnv`.
        shaping: how a score becomes a reward.
        vectorised: the function takes a list.
        on_error: "raise" or "floor", see :class:`Reward`.
        constraint: molecules for which it is false are worth nothing.
        options: of :class:`LeakGFN`, and ``stop``, ``horizon`` and ``attach`` of :class:`FragmentEnv`.

    Example:
        >>> blocks = ["*c1ccccc1*", "*C", "*O", "*C(N)=O"]
        >>> generator = MoleculeGenerator("qed", blocks=blocks, max_blocks=3, hidden=16)
        >>> molecules = generator.fit(steps=20).sample(5, seed=0)
        >>> len(molecules.smiles)
        5
    """

    def __init__(
        self,
        score: str | Callable[[Any], Any] = "qed",
        *,
        blocks: str | Path | Iterable[str | tuple[str, Sequence[int]]] = "default105",
        max_blocks: int = 8,
        min_blocks: int = 2,
        truncation: Literal["leak", "cap"] = "leak",
        shaping: Shaping | None = None,
        vectorised: bool | None = None,
        on_error: OnError = "raise",
        constraint: Callable[[Any], bool] | None = None,
        **options: Any,
    ) -> None:
        of_env = {name: options.pop(name) for name in ("stop", "horizon", "attach") if name in options}
        self.env = FragmentEnv(blocks, max_blocks, min_blocks, truncation, **of_env)
        self.reward = molecule_reward(
            score, shaping=shaping, vectorised=vectorised, on_error=on_error, constraint=constraint
        )
        self.gfn = LeakGFN(self.env, self.reward, **options)

    def fit(
        self, steps: int = 10_000, batch: int = 8, *, callbacks: Sequence[Callback] = ()
    ) -> MoleculeGenerator:
        """Train; see :meth:`LeakGFN.fit`."""
        self.gfn.fit(steps, batch, callbacks=callbacks)
        return self

    def sample(self, n: int, *, seed: int | None = None, **options: Any) -> Samples:
        """Draw molecules; see :meth:`LeakGFN.sample`."""
        return self.gfn.sample(n, seed=seed, **options)
