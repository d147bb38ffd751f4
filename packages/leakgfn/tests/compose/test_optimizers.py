"""The flow network trained by an optimizer of another package, chosen by its name."""

import pytest
from icml_leakgfn import BracketEnv, LeakGFN, exact_flow, exact_policy_distribution
from icml_leakgfn.worlds import bracket_reward


@pytest.mark.parametrize("optimizer", ["sso.sso", "sso.muonsphere"])
def test_matrix_optimizers_train_both_heads(optimizer):
    """The loss falls to a third at least, and the exact distance to the target falls with it."""
    env = BracketEnv(6)
    exact = exact_flow(env, bracket_reward)
    gfn = LeakGFN(
        env,
        bracket_reward,
        optimizer=optimizer,
        lr=2e-2,
        gamma=1.0,
        hidden=32,
        reach_mask=True,
        decay_steps=80,
        device="cpu",
    )
    before = exact_policy_distribution(gfn, graph=exact.graph).total_variation(exact)
    gfn.fit(80, 32)
    after = exact_policy_distribution(gfn, graph=exact.graph).total_variation(exact)
    assert after < before
    losses = [row["loss"] for row in gfn.history_]
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
