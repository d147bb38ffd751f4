"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from icml_core import Example


def sampler(seed: int) -> Example:
    """Cells of a grid: what is drawn after a few steps is no forbidden end, or cut off and worth nothing."""
    from icml_leakgfn.gfn import LeakGFN
    from icml_leakgfn.worlds import HyperGridEnv, HyperGridReward

    env = HyperGridEnv(6, 2)

    def build():
        return LeakGFN(env, HyperGridReward(6), hidden=16, seed=seed, device="cpu", replay=0.25)

    def call(gfn, steps):
        drawn = gfn.fit(steps, batch=8).sample(20, seed=3)
        return gfn.history_, drawn

    def check(result):
        history, drawn = result
        assert len(history) == 6
        allowed = env.mask(drawn.states)[:, -1]
        for fine, done, reward in zip(allowed, drawn.done, drawn.reward, strict=True):
            assert fine == (done == 2) == (reward > 0)

    def resumed(gfn, steps, directory):
        gfn.fit(steps // 2, batch=8).save(directory / "half.safetensors")
        again = LeakGFN.load(directory / "half.safetensors", env, HyperGridReward(6), device="cpu")
        return call(again, steps - steps // 2)

    return Example(build=build, inputs=lambda: 6, call=call, check=check, resumed=resumed, bad=lambda: -1)


def molecules(seed: int) -> Example:
    """Molecules of up to three blocks; their scores are those of the function."""
    from icml_leakgfn.molecules import MoleculeGenerator

    def build():
        return MoleculeGenerator(
            _carbon_share, blocks=["*c1ccccc1*", "*C", "*O", "*N*"], max_blocks=3, hidden=8, seed=seed,
            device="cpu", message_steps=1,
        )  # fmt: skip

    def call(generator, steps):
        drawn = generator.fit(steps, batch=4).sample(6, seed=1)
        return drawn.smiles, drawn.score_raw

    def check(result):
        from rdkit import Chem

        smiles, scores = result
        assert len(smiles) == 6
        for name, score in zip(smiles, scores, strict=True):
            assert score != score or abs(_carbon_share(Chem.MolFromSmiles(name)) - score) < 1e-9

    return Example(build=build, inputs=lambda: 2, call=call, check=check, bad=lambda: -1)


def _carbon_share(mol) -> float:  # type: ignore[no-untyped-def]
    """Share of carbon among the heavy atoms."""
    return sum(atom.GetAtomicNum() == 6 for atom in mol.GetAtoms()) / mol.GetNumAtoms()


def loss(seed: int) -> Example:
    """Log flows of a small graph: the loss of the exact flows is 0, so that of others is above."""
    import torch

    from icml_leakgfn.losses import LeakLoss, rows_from_edges

    generator = torch.Generator().manual_seed(seed)
    # 0 -> 1, 0 -> 2, 1 -> 2; state 1 is interior, state 2 is cut off.
    flows = {
        "log_chem_in": torch.randn(3, generator=generator),
        "log_fraction_in": -torch.rand(3, generator=generator),
        "ptr": torch.tensor([0, 0, 1, 3]),
        "log_chem_out": torch.randn(3, 2, generator=generator),
        "log_fraction_out": -torch.rand(3, 2, generator=generator),
        "log_stop": torch.randn(3, generator=generator),
    }
    done = torch.tensor([0, 0, 1])
    bad = dict(flows, ptr=torch.tensor([0, 1]))

    def call(function, given):
        rows = rows_from_edges(**given, done=done, log_reward=given["log_stop"].detach() * 0 - torch.inf)
        return function(rows).total

    def check(value):
        assert float(value) > 0

    return Example(
        build=lambda: LeakLoss(-9.0),
        inputs=lambda: {name: value.clone() for name, value in flows.items()},
        call=call,
        check=check,
        bad=lambda: bad,
    )


def dual_head(seed: int) -> Example:
    """Flows of five random states; λ is below 1."""
    import torch
    from icml_core.randomness import seeded

    from icml_leakgfn.networks import DualHead, FlatEncoder

    generator = torch.Generator().manual_seed(seed)
    given = {
        "vector": torch.randn(5, 7, generator=generator),
        "remaining": torch.tensor([0, 1, 2, 3, 3]),
    }

    def build():
        with seeded(seed):
            return DualHead(FlatEncoder(7, hidden=8), 3, hidden=8, budgets=3)

    def check(flows):
        assert flows.chem.shape == (5, 3)
        assert bool((flows.log_fraction < 1e-6).all())

    return Example(
        build=build,
        inputs=lambda: {name: value.clone() for name, value in given.items()},
        call=lambda net, x: net({"vector": x["vector"]}, x["remaining"]),
        check=check,
        bad=lambda: dict(given, remaining=torch.tensor([9, 1, 2, 3, 3])),
    )


def exact_flow(seed: int) -> Example:
    """Words of up to 8 brackets: the sum of R is 87.63, and every word but the empty one has its share."""
    from dataclasses import replace

    from icml_leakgfn.exact import ExactFlow, FlowProblem
    from icml_leakgfn.worlds import BracketEnv, bracket_reward

    def check(solution):
        assert abs(solution.Z - 87.6333) < 1e-3
        assert abs(solution.probability.sum() - 1) < 1e-12

    return Example(
        build=ExactFlow,
        inputs=lambda: FlowProblem(BracketEnv(8, horizon=10), bracket_reward),
        call=lambda solver, problem: solver.solve(problem),
        check=check,
        corrupt=lambda solution: replace(solution, log_valid=solution.log_valid + 0.1 * solution.objects),
        bad=lambda: FlowProblem(BracketEnv(1), bracket_reward),
        expected_failures={},
    )


def metrics(seed: int) -> Example:
    """Three molecules, one of them twice."""
    from icml_leakgfn.metrics import MoleculeMetrics

    def check(figures):
        assert figures["uniqueness"] == 0.75
        assert figures["success"] == 0.5
        assert abs(figures["novelty"] - 2 / 3) < 1e-12

    return Example(
        build=lambda: MoleculeMetrics(top=10, success=0.5),
        inputs=lambda: (["CCO", "CCO", "c1ccccc1", "CCN"], [0.6, 0.6, 0.4, 0.2]),
        call=lambda evaluator, subject: evaluator.evaluate(subject, reference=["OCC"]),
        check=check,
        bad=lambda: (["CCO"], [0.1, 0.2]),
    )
