"""Posteriors over the discrete latents of a frozen generative model, without data, gradients or fine-tuning.

log rho(z) = log p_prior(z) + log likelihood(f(z)), with f the frozen decoder. For a set C of classes the
likelihood is

    logsumexp_{c in C} (l_c / tau + log w_c) - logsumexp_c (l_c / tau).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_discrete_samplers.energies import CallableEnergy
from icml_discrete_samplers.off_policy import fit
from icml_discrete_samplers.sampler import MaskedSampler


def posterior_energy(
    prior_logprob: Callable[[Int64[Tensor, "n D"]], Tensor],
    decode: Callable[[Int64[Tensor, "n D"]], Any],
    loglik: Callable[[Any], Tensor],
    D: int,
    V: int,
) -> CallableEnergy:
    """The posterior's energy.

    Args:
        prior_logprob: log p of latents, up to a constant.
        decode: what the latents stand for.
        loglik: log likelihood of that.
        D: latent sites.
        V: codebook size.

    Raises:
        ValueError: D < 1 or V < 2.
    """
    return CallableEnergy(lambda z: prior_logprob(z).double() + loglik(decode(z)).double(), D, V)


def class_likelihood(
    classify: Callable[[Any], Float[Tensor, "n classes"]],
    classes: Mapping[int, float] | list[int],
    temperature: float = 1.0,
) -> Callable[[Any], Float[Tensor, " n"]]:
    """log probability that a classifier finds one of some classes, at a temperature.

    Args:
        classify: logits of decoded samples.
        classes: the set C, with weights w_c or without (then 1).
        temperature: tau; small values follow the classifier's mode.

    Raises:
        ValueError: no classes, weights or a temperature that are not positive.
    """
    weights = dict(classes) if isinstance(classes, Mapping) else dict.fromkeys(classes, 1.0)
    if not weights or any(not w > 0 for w in weights.values()):
        raise ValueError(f"classes={classes} must be one or more, with positive weights")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
    columns = list(weights)
    logs = [math.log(w) for w in weights.values()]

    def loglik(decoded: Any) -> Float[Tensor, " n"]:
        logits = classify(decoded).double() / temperature
        if min(columns) < 0 or max(columns) >= logits.shape[1]:
            raise ValueError(f"classes {columns} are not all among the classifier's 0..{logits.shape[1] - 1}")
        chosen = logits[:, columns] + torch.tensor(logs, dtype=torch.float64, device=logits.device)
        return chosen.logsumexp(1) - logits.logsumexp(1)

    return loglik


def fit_posterior(
    prior_logprob: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Any],
    loglik: Callable[[Any], Tensor],
    D: int,
    V: int,
    **options: Any,
) -> tuple[CallableEnergy, MaskedSampler]:
    """The posterior's energy and a sampler trained on it, by log variance and categorical exploration.

    Args:
        prior_logprob, decode, loglik, D, V: as for :func:`posterior_energy`.
        options: of :func:`fit`.

    Raises:
        ValueError: options that do not fit.
    """
    energy = posterior_energy(prior_logprob, decode, loglik, D, V)
    chosen: dict[str, Any] = {"loss": "lv", "mcmc": "categorical", "k": 1} | options
    return energy, fit(energy, **chosen)
