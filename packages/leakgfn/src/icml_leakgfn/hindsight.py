"""Ways under other budgets: what was walked under one L_max is as good a lesson under another.

The equations of flows hold in every state under every budget, whoever walked there. A way that ended within
one budget is under a smaller one a way that is cut off where that budget ends, and its further states belong
to the chemical flow alone. So each trajectory is learnt again under budgets drawn anew, and one network hears
of all of them, not only of those that its own policy walked under.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from icml_leakgfn.rollout import Trajectories


def relabelled(
    env: Any,
    trajectories: Trajectories,
    budgets: tuple[int, int],
    generator: torch.Generator,
    copies: int = 1,
) -> Trajectories:
    """Copies of trajectories under budgets drawn evenly from a range.

    Args:
        env: the environment.
        trajectories: of any policy.
        budgets: least and largest L_max.
        generator: of the budgets.
        copies: of each trajectory.
    """
    low, high = budgets
    parts = []
    for _ in range(copies):
        budget = torch.randint(low, high + 1, (len(trajectories),), generator=generator).numpy()
        # What goes beyond its budget counts as a walk: its further states are the chemical flow's.
        beyond = env.length(trajectories.ends) > budget
        done = env.status(trajectories.ends, np.where(beyond, env.horizon, budget)).astype(np.int64)
        done = np.where(done == 0, trajectories.done, done)
        parts.append(replace(trajectories, budget=budget, done=done, walks=trajectories.walks | beyond))
    return Trajectories.join(parts)
