"""The data-free posterior beside enumeration; distances and observables beside closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from icml_discrete_samplers import (
    Ising2D,
    MaskedSampler,
    SamplerMetrics,
    class_likelihood,
    enumerate_law,
    fit_posterior,
    from_callable,
    posterior_energy,
)
from icml_discrete_samplers.exact import sampler_law
from icml_discrete_samplers.latent_images import digits, train_latent_images
from icml_discrete_samplers.metrics import mmd, sinkhorn, total_variation, two_point
from oracles import ExactConditionals, all_states
from scipy.optimize import linear_sum_assignment


def test_class_likelihood_is_its_formula():
    logits = torch.tensor([[1.0, -0.5, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    loglik = class_likelihood(lambda x: logits, {0: 1.0, 2: 3.0}, temperature=0.5)
    scaled = logits / 0.5
    wanted = torch.log((scaled[:, 0].exp() + 3 * scaled[:, 2].exp()) / scaled.exp().sum(1))
    torch.testing.assert_close(loglik(None), wanted)
    with pytest.raises(ValueError, match="not all among the classifier's"):
        class_likelihood(lambda x: logits, [3])(None)
    with pytest.raises(ValueError, match="temperature=0"):
        class_likelihood(lambda x: logits, [0], 0.0)
    with pytest.raises(ValueError, match="positive weights"):
        class_likelihood(lambda x: logits, {0: -1.0})


def test_the_posterior_of_digits_is_learned_from_functions_alone():
    """Three codes of five: all 125 latents enumerated; the frozen prior sums to 1."""
    images, labels = digits()
    latent = train_latent_images(images, labels, codes=3, codebook=5, steps=150, seed=0)
    z = all_states(3, 5)
    assert float(latent.prior_logprob(z).double().logsumexp(0)) == pytest.approx(0.0, abs=1e-4)
    # Better than the mean image alone, though three codes of five are few.
    assert latent.error < 0.9 * float((images - images.mean(0)).square().mean())
    loglik = class_likelihood(latent.classify, [1, 4])
    energy = posterior_energy(latent.prior_logprob, latent.decode, loglik, 3, 5)
    torch.testing.assert_close(
        energy.log_density(z), latent.prior_logprob(z).double() + loglik(latent.decode(z))
    )
    _, sampler = fit_posterior(
        latent.prior_logprob,
        latent.decode,
        loglik,
        3,
        5,
        steps=400,
        batch=64,
        seed=0,
        lr=3e-3,
        mcmc_every=50,
        network={"hidden": 32, "layers": 2},
        coverage=False,
    )
    p = enumerate_law(energy).log_prob.exp()
    assert total_variation(sampler_law(sampler.model), p) < 0.08


def test_bad_images_are_named():
    images, labels = digits()
    with pytest.raises(ValueError, match="do not match"):
        train_latent_images(images, labels[:5])
    with pytest.raises(ValueError, match="from 0 to 1"):
        train_latent_images(images * 16, labels)


def test_columns_of_the_classifier_are_class_numbers():
    """Labels 1, 4 and 7 of blobs on three pixels: column 4 is class 4; what has no images is never found."""
    g = torch.Generator().manual_seed(0)
    labels = torch.tensor([1, 4, 7]).repeat(40)
    images = torch.eye(3).repeat(40, 1) * 0.8 + 0.1 * torch.rand(120, 3, generator=g)
    latent = train_latent_images(images, labels, codes=2, codebook=3, steps=2)
    logits = latent.classify(images)
    assert logits.shape == (120, 8)
    assert torch.equal(logits.argmax(1), labels)
    assert bool(torch.isneginf(logits[:, [0, 2, 3, 5, 6]]).all())
    share = class_likelihood(latent.classify, [1, 4])(images).exp()
    assert bool(((share > 0.5) == (labels != 7)).all())
    with pytest.raises(ValueError, match="two or more class numbers"):
        train_latent_images(images, labels - 5, steps=2)


def test_energies_get_their_states_where_they_want_them():
    """An energy that takes states of one device alone, which the meta device stands in for."""
    asked = []

    def log_rho(x):
        asked.append(x.device.type)
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)

    energy = from_callable(log_rho, 3, 2)
    with pytest.raises((NotImplementedError, RuntimeError)):  # meta tensors hold no numbers
        enumerate_law(energy, device="meta")
    assert asked == ["meta"]


def test_sinkhorn_at_small_epsilon_is_the_assignment():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(12, 2, generator=g), torch.randn(12, 2, generator=g)
    cost = torch.cdist(a.double(), b.double()).square()
    rows, columns = linear_sum_assignment(cost.numpy())
    found = sinkhorn(a, b, epsilon=2e-3, iterations=20_000, relative=True)
    assert found.marginal_error < 1e-3
    assert found.cost == pytest.approx(float(cost[rows, columns].mean()), rel=0.05)
    again = sinkhorn(a, b, epsilon=2e-3 * float(cost.max()), iterations=20_000)
    assert again.cost == pytest.approx(found.cost, rel=1e-9)
    rough = sinkhorn(a, b)
    assert rough.iterations == 100
    assert rough.marginal_error > found.marginal_error
    bits = torch.tensor([[0, 1], [1, 1]])
    assert sinkhorn(bits, bits.flip(0), "hamming").cost == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="unknown cost"):
        sinkhorn(a, b, "l1")
    with pytest.raises(ValueError, match="between 0 and 12"):
        sinkhorn(a[:0], b)


def test_mmd_tells_shifted_samples_apart():
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(800, 2, generator=g), torch.randn(800, 2, generator=g)
    assert mmd(a, b) < 0.06
    # With one Gaussian kernel of width s, unit Gaussians apart by m: 2 (s²/(s²+2)) (1 - exp(-m²/(2 (s²+2)))).
    width = float(torch.pdist(b).median())
    c = width**2 / (width**2 + 2)
    wanted = math.sqrt(2 * c * (1 - math.exp(-9 / (2 * (width**2 + 2)))))
    assert mmd(a + torch.tensor([3.0, 0.0]), b) == pytest.approx(wanted, rel=0.1)
    with pytest.raises(ValueError, match="too few"):
        mmd(a[:1], b)


def test_two_point_function_of_ordered_and_striped_lattices():
    level = torch.zeros(3, 16, dtype=torch.int64)
    assert two_point(level, 4, 2).tolist() == [0.5, 0.5]
    stripes = (torch.arange(16) % 4 % 2).expand(3, 16)
    assert two_point(stripes, 4, 2).tolist() == [0.0, 0.5]


def test_figures_of_an_exact_sampler_and_of_one_that_lacks_a_sign():
    energy = Ising2D(2, 0.8)
    law = enumerate_law(energy)
    truth = law.sample(2000, 0)
    metrics = SamplerMetrics(energy, truth, seed=1)
    good = metrics.evaluate(MaskedSampler(ExactConditionals(law.log_prob, 4, 2)))
    assert good["elbo"] == pytest.approx(law.log_z, abs=1e-6)
    assert good["gap"] == pytest.approx(0.0, abs=1e-6)
    assert good["ess"] == pytest.approx(1.0)
    assert good["magnetisation_error"] < 0.08
    # Exact, not of the shares among samples.
    assert good["tv"] < 1e-6
    assert good["from_truth"] == 1.0
    assert "eubo_estimate" not in good
    states = all_states(4, 2)
    half = torch.where(states.sum(1) <= 2, law.log_prob, law.log_prob - 12)
    bad = metrics.evaluate(MaskedSampler(ExactConditionals(half - half.logsumexp(0), 4, 2)))
    assert bad["magnetisation_error"] > 0.7
    assert bad["gap"] > 4
    assert bad["sinkhorn"] > 3 * good["sinkhorn"]
    assert bad["tv"] > 0.4
    assert bad["gap"] == pytest.approx(bad["eubo"] - bad["elbo"])
    # Without true samples there is no upper bound: the collapsed sampler would have the best one.
    alone = SamplerMetrics(energy, seed=1).evaluate(
        MaskedSampler(ExactConditionals(half - half.logsumexp(0), 4, 2))
    )
    assert {"eubo", "gap"}.isdisjoint(alone)
    assert alone["eubo_estimate"] < law.log_z
    assert alone["from_truth"] == 0.0
    samples = metrics.evaluate(law.sample(500, 7))
    assert samples["tv_of_samples"] == pytest.approx(samples["tv_floor"], abs=0.06)
    assert "tv" not in samples
    with pytest.raises(ValueError, match="outside 0"):
        metrics.evaluate(torch.full((3, 4), 2))
