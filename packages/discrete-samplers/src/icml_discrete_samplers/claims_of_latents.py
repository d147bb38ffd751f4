"""Claims on the data-free posterior over the latents of a frozen model of digits: it is the exact
posterior.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

CLASSES = [1, 4]
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"codes": 2, "codebook": 3, "model_steps": 5, "steps": 3, "hidden": 8},
    "small": {"codes": 6, "codebook": 8, "model_steps": 600, "steps": 4000, "hidden": 128},
    "full": {"codes": 6, "codebook": 8, "model_steps": 2000, "steps": 10_000, "hidden": 256},
}


def latents(run: Run, seed: int) -> dict[str, float]:
    """Codes of digits whose decoded images are a 1 or a 4: marginal laws of pairs of codes, and the
    classifier's hits.

    Both exact: the posterior by enumeration, the sampler by its law over partly masked codes. The ablations
    forget the prior or the likelihood, so that the sampler learns the other alone.
    """
    import torch

    from icml_discrete_samplers import experiments as e
    from icml_discrete_samplers.exact import enumerate_law, sampler_law, states_of
    from icml_discrete_samplers.latent_images import digits, train_latent_images
    from icml_discrete_samplers.posterior import class_likelihood, fit_posterior, posterior_energy

    sizes = SIZES[run.scale]
    D, V = sizes["codes"], sizes["codebook"]
    images, labels = digits()
    if run.scale == "smoke":
        images, labels = images[:200], labels[:200]
    latent = train_latent_images(images, labels, codes=D, codebook=V, steps=sizes["model_steps"], seed=seed)
    loglik = class_likelihood(latent.classify, CLASSES)
    truth = enumerate_law(posterior_energy(latent.prior_logprob, latent.decode, loglik, D, V)).log_prob.exp()

    def flat(z: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(z))

    prior = flat if run.ablation == "no-prior" else latent.prior_logprob
    seen = (lambda image: torch.zeros(len(image))) if run.ablation == "no-likelihood" else loglik
    _, sampler = fit_posterior(
        prior,
        latent.decode,
        seen,
        D,
        V,
        steps=sizes["steps"],
        seed=seed,
        coverage=False,
        mcmc_every=e.EVERY,
        network={"hidden": sizes["hidden"], "layers": 2},
    )
    law = sampler_law(sampler.model)
    apart = 0.5 * (e.pair_law(law, D, V) - e.pair_law(truth, D, V)).abs().sum((1, 2))
    codes = states_of(torch.arange(V**D), D, V)
    found = torch.cat([latent.classify(latent.decode(part)).argmax(1) for part in codes.split(65536)])
    exact, own = (e.accuracy(found, CLASSES, p) for p in (truth, law))
    return {
        "pair_tv": float(apart.mean()),
        "worst_pair_tv": float(apart.max()),
        "accuracy_gap": abs(own - exact),
        "accuracy": own,
        "reconstruction": latent.error,
    }


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(
        seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("no-prior", "no-likelihood")
    )(latents)
    paper = "MNIST odd, even or one digit: images only."
    suite.claim(
        "posterior-of-codes-is-exact",
        of=measure,
        figure="worst_pair_tv",
        kind="every",
        at_most=0.05,
        statement="The total variation of every marginal pair of codes to the enumerated posterior "
        "is below 0.05.",
        paper=paper,
        unit="total variation",
        teeth="no-prior",
    )
    suite.claim(
        "posterior-classes-are-as-exact",
        of=measure,
        figure="accuracy_gap",
        kind="every",
        at_most=0.02,
        statement="The classifier finds the wanted classes within 2 points of exact posterior sampling.",
        paper=paper,
        unit="probability",
        teeth="no-likelihood",
    )
    suite.claim(
        "mean-pair-of-codes",
        of=measure,
        figure="pair_tv",
        kind="mean",
        statement="The mean total variation over pairs of codes.",
        paper=paper,
        unit="total variation",
    )
