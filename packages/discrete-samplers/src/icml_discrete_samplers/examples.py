"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from icml_core import Example


def masked_mlp(seed: int) -> Example:
    """Log-probabilities of partly masked states; each site's sum to 1."""
    from icml_discrete_samplers.networks import MaskedMLP

    return _masked(lambda: MaskedMLP(4, 3, hidden=8, layers=2, seed=seed), seed)


def masked_vit(seed: int) -> Example:
    """The same on a 2 x 2 lattice."""
    from icml_discrete_samplers.networks import MaskedViT

    return _masked(lambda: MaskedViT(2, 3, dim=16, blocks=1, heads=2, seed=seed), seed)


def _masked(build, seed: int) -> Example:  # type: ignore[no-untyped-def]
    import torch

    x = torch.randint(0, 4, (5, 4), generator=torch.Generator().manual_seed(seed))

    def check(logp):
        torch.testing.assert_close(logp.exp().sum(-1), torch.ones(5, 4))

    return Example(
        build=build,
        inputs=lambda: x.clone(),
        call=lambda model, states: model(states),
        check=check,
        bad=lambda: x + 4,
    )


def uniform_mlp(seed: int) -> Example:
    """Untrained logits are those of the reference: ``stay`` at the symbol shown, 0 elsewhere."""
    import torch

    from icml_discrete_samplers.networks import UniformMLP

    g = torch.Generator().manual_seed(seed)
    x, t = torch.randint(0, 3, (5, 4), generator=g), torch.rand(5, 1, generator=g)

    def check(logits):
        torch.testing.assert_close(logits, 2.0 * torch.nn.functional.one_hot(x, 3).float())

    return Example(
        build=lambda: UniformMLP(4, 3, hidden=8, layers=1, stay=2.0, seed=seed),
        inputs=lambda: (x.clone(), t.clone()),
        call=lambda model, given: model(*given),
        check=check,
        bad=lambda: (x + 3, t),
    )


def masked(seed: int) -> Example:
    """Weights of an untrained sampler of one field average to Z = (1 + e)^8."""
    import math

    from icml_discrete_samplers.energies import from_callable
    from icml_discrete_samplers.networks import MaskedMLP
    from icml_discrete_samplers.sampler import MaskedSampler

    def build():
        energy = from_callable(lambda x: x.sum(1).double(), 8, 2)
        return MaskedSampler(MaskedMLP(8, 2, hidden=8, layers=1, seed=seed), energy)

    def check(result):
        _, log_w = result
        mean, se = log_w.exp().mean(), log_w.exp().std() / math.sqrt(len(log_w))
        assert abs(mean - (1 + math.e) ** 8) < 5 * se

    return Example(
        build=build,
        inputs=lambda: 4000,
        call=lambda sampler, n: sampler.sample_weighted(n, seed=1),
        check=check,
        bad=lambda: -1,
    )


def bridge(seed: int) -> Example:
    """An untrained bridge stays with the reference's probability at each of its steps."""
    import torch

    from icml_discrete_samplers.bridge import Bridge
    from icml_discrete_samplers.networks import UniformMLP

    x0 = torch.zeros(2000, 3, dtype=torch.int64)

    def build():
        nets = [UniformMLP(3, 2, hidden=8, layers=1, stay=2.0, seed=seed + i) for i in range(2)]
        found = Bridge(*nets, steps=1)
        found.data = x0
        return found

    def check(x1):
        stay = torch.sigmoid(torch.tensor(2.0))
        assert abs((x1 == 0).double().mean() - stay) < 0.03

    return Example(
        build=build,
        inputs=lambda: x0.clone(),
        call=lambda b, x: b.transport(x, seed=1),
        check=check,
        bad=lambda: x0 + 2,
    )


def mcmc(seed: int) -> Example:
    """Chains in a strong field end at all ones."""
    import torch

    from icml_discrete_samplers.mcmc import MarkovChains
    from icml_discrete_samplers.polynomials import Polynomial

    energy = Polynomial({(i,): -1.0 for i in range(5)}, beta=0.5)

    def check(x):
        share = torch.sigmoid(torch.tensor(0.5))
        assert abs(x.double().mean() - share) < 0.05

    return Example(
        build=lambda: MarkovChains(energy, "single_site_mh", 100),
        inputs=lambda: torch.zeros(400, 5, dtype=torch.int64),
        call=lambda chains, x: chains.sample(len(x), seed=2, x=x),
        check=check,
        bad=lambda: torch.full((400, 5), 2),
    )


def off_policy(seed: int) -> Example:
    """A few updates on a small lattice; stopped and continued they give the same."""
    import math

    from icml_discrete_samplers.energies import Ising2D
    from icml_discrete_samplers.off_policy import OffPolicyTrainer

    energy = Ising2D(2, 0.3)

    def build():
        return OffPolicyTrainer(
            energy,
            seed=seed,
            steps=8,
            batch=16,
            prefill=2,
            mcmc_every=3,
            mcmc_states=8,
            mcmc_steps=5,
            k=(1, 2),
            network={"hidden": 8, "layers": 2},
        )

    def call(trainer, steps):
        sampler = trainer.fit(steps)
        return trainer.history, sampler.sample(20, seed=3)

    def check(result):
        history, x = result
        assert [h["on_policy"] for h in history[:6]] == [1, 0, 0, 1, 0, 0]
        assert all(math.isfinite(h["loss"]) for h in history)
        assert 0 <= int(x.min()) <= int(x.max()) <= 1

    def resumed(trainer, steps, directory):
        trainer.fit(steps // 2)
        trainer.save(directory / "half.safetensors")
        return call(build().restore(directory / "half.safetensors"), steps - steps // 2)

    return Example(build=build, inputs=lambda: 8, call=call, check=check, resumed=resumed, bad=lambda: -1)


def d2e_ipf(seed: int) -> Example:
    """Two rounds of a bridge between fields; stopped after one and continued they give the same."""
    import torch

    from icml_discrete_samplers.bridge import BridgeTrainer
    from icml_discrete_samplers.polynomials import Polynomial

    energy = Polynomial({(i,): -1.0 for i in range(3)})
    data = torch.zeros(50, 3, dtype=torch.int64)

    def build():
        return BridgeTrainer(
            data,
            energy,
            seed=seed,
            steps=2,
            rounds=2,
            updates=3,
            batch=8,
            hidden=8,
            layers=1,
            chains=8,
            mcmc_steps=2,
        )

    def call(trainer, rounds):
        found = trainer.fit(rounds)
        return trainer.history, found.transport(data, seed=1), found.reverse(data, seed=1)

    def check(result):
        history, x1, x0 = result
        assert [h["alpha"] for h in history] == [0.4, 1.0]
        assert x1.shape == x0.shape == data.shape

    def resumed(trainer, rounds, directory):
        trainer.fit(1)
        trainer.save(directory / "half.safetensors")
        return call(build().restore(directory / "half.safetensors"), rounds - 1)

    return Example(build=build, inputs=lambda: 2, call=call, check=check, resumed=resumed, bad=lambda: -1)


def posterior(seed: int) -> Example:
    """Two latent bits with an even prior, and a likelihood of their sum."""
    import torch

    from icml_discrete_samplers.posterior import fit_posterior

    def call(function, steps):
        energy, sampler = function(
            lambda z: torch.zeros(len(z)),
            lambda z: z.sum(1),
            lambda s: s.double(),
            2,
            2,
            steps=steps,
            batch=32,
            prefill=1,
            seed=seed,
            network={"hidden": 8, "layers": 1},
            coverage=False,
            lr=3e-2,
        )
        x, log_w = sampler.sample_weighted(500, seed=0)
        return energy.log_density(x), log_w

    def check(result):
        log_rho, log_w = result
        wanted = torch.tensor((1 + torch.e) ** 2).log()
        assert abs(log_w.logsumexp(0) - torch.tensor(500.0).log() - wanted) < 0.1
        assert set(log_rho.tolist()) <= {0.0, 1.0, 2.0}

    return Example(build=lambda: fit_posterior, inputs=lambda: 40, call=call, check=check, bad=lambda: 0)


def metrics(seed: int) -> Example:
    """Samples that are the truth have no distance to it."""
    import torch

    from icml_discrete_samplers.energies import Ising2D
    from icml_discrete_samplers.exact import enumerate_law
    from icml_discrete_samplers.metrics import SamplerMetrics

    energy = Ising2D(2, 0.4)
    truth = enumerate_law(energy).sample(300, seed)

    def check(figures):
        assert figures["two_point_error"] == 0.0
        assert figures["tv_of_samples"] < 0.15
        assert figures["mmd"] < 0.05

    return Example(
        build=lambda: SamplerMetrics(energy, truth),
        inputs=lambda: truth.clone(),
        call=lambda evaluator, x: evaluator.evaluate(x),
        check=check,
        bad=lambda: torch.full((3, 4), 2),
    )
