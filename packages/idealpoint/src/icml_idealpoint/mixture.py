"""Annotators who do not all mean the same: an ideal series for each latent group of them.

Annotator a belongs to group k with probability pi_k, and answers by the ideal point of the group:

    log L = sum_a log sum_k pi_k prod_{m of a} P_k(answer m)

Expectation maximisation (Dempster, Laird and Rubin 1977): responsibilities r_ak are proportional to pi_k
prod_m P_k(m); then pi_k = mean_a r_ak, and every ideal point is fitted to all answers with weights r_ak.
That fit is a few steps of Adam, so that the algorithm is a generalised one: a group's new parameters are
taken only where they raise its expected log-likelihood sum_a r_ak sum_m log P_k(m), hence log L never falls.

Groups and starts are rows of one batch, as the starts of the ranker are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor

from icml_idealpoint.comparisons import Comparisons, warn_if_disconnected
from icml_idealpoint.ideal_point import IdealMetric, Likelihood, Sign, answer_losses
from icml_idealpoint.optimization import Fit, Objective, Report, anneal
from icml_idealpoint.ranker import COIN, IdealPointRanker
from icml_idealpoint.series import Gaps, Layout, SeriesSet

UNSURE = 0.2  # share of the first responsibilities that is spread over all groups
REFIT_RATE = 0.02  # Adam's first rate in a refit; it falls with the square root of the round
LEAST_SHARE = 1e-9  # of an answer in a group's weights: a group of nobody has a loss all the same
GAIN = 1e-3  # log-likelihood an answer by which a round must be better, or it is the last

_OWN = ("n_groups", "em_iter", "em_steps")  # options that the ranker does not have


def annotator_loglik(
    objective: Objective,
    distances: Float[Tensor, "ideals items"],
    log_scale: Float[Tensor, " ideals"],
    logits: Float[Tensor, "ideals rates"],
) -> Float[Tensor, "ideals annotators"]:
    """sum of weight * log P(answer) over the answers of each annotator, under each ideal point.

    Args:
        objective: with the answers, and how they come about.
        distances: of the items from the ideal series.
        log_scale: of distances.
        logits: of the flip rates.
    """
    answers = objective.answers
    flips = objective.flips(logits)
    losses = answer_losses(
        distances, answers, log_scale.exp(), flips, objective.likelihood, objective.sign
    ) * torch.from_numpy(answers.weight).to(distances)
    sums = losses.new_zeros(len(losses), answers.n_annotators)
    return sums.index_add(1, torch.from_numpy(answers.annotator).to(losses.device), -losses)


def responsibilities(
    weights: Float[Tensor, "*starts groups"], loglik: Float[Tensor, "*starts groups annotators"]
) -> tuple[Float[Tensor, "*starts groups annotators"], Float[Tensor, "*starts annotators"]]:
    """How probable each group is for each annotator, and the annotator's log-likelihood over all groups.

    r_ka = pi_k exp(l_ka) / sum_j pi_j exp(l_ja), and log sum_j pi_j exp(l_ja).

    Example:
        >>> loglik = torch.log(torch.tensor([[0.3], [0.1]]))
        >>> shares, total = responsibilities(torch.tensor([0.5, 0.5]), loglik)
        >>> [round(float(s), 4) for s in (*shares[:, 0], total.exp())]
        [0.75, 0.25, 0.2]
    """
    joint = weights.log()[..., None] + loglik
    total = joint.logsumexp(-2)
    return (joint - total[..., None, :]).exp(), total


@dataclass
class _State:
    """Where all starts have come to; rows of ``fit`` are start after start, group by group."""

    fit: Fit
    weights: Float[Tensor, "starts groups"]
    loglik: Float[Tensor, "starts groups annotators"]
    history: list[Float[Tensor, " starts"]]


class IdealPointMixture(BaseEstimator):
    """Learn several ideal series, and which annotators answer by which.

    Every group has an ideal series, a scale, and flip rates of its own.

    Args:
        n_groups: of annotators.
        metric, nu, lam, gamma, length, likelihood, sign, rough, large, window, layout, nan, dtype, device,
            random_state: as those of :class:`~icml_idealpoint.IdealPointRanker`; ``"hinge"`` is no
            likelihood.
        noise: flip rates ``"shared"`` within each group, ``"per_annotator"`` in each group, or None. With a
            rate of his own someone of another group can pass for one who flips coins, which blurs groups.
        n_starts: first guesses, by turns from annotators clustered on the agreement of their answers, and at
            random; the one of the highest log-likelihood in the end is kept.
        max_iter: steps of Adam from each guess.
        em_iter: rounds of expectation maximisation after them, at most.
        em_steps: steps of Adam in each round.

    Attributes:
        groups_: [annotators, groups], the probability that an annotator belongs to a group; the prior one for
            numbers that gave no answer.
        weights_: [groups], the prior probabilities, largest first.
        ideal_points_: [groups, length, channels], in the units of the data.
        scales_: [groups], distance (of standardised data) that makes odds of e to 1.
        scores_: [items, groups], of the items of ``fit``.
        reliability_: of each annotator, 1 - 2 eps, with eps weighted by his groups.
        loglik_, history_: the log-likelihood of all answers at the end, and from before the first round on.
        n_iter_, converged_: rounds taken, and whether the last gained nothing any more.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 6)[:, None] * np.ones(8)
        >>> up = [[i, j, who] for who in (0, 1) for i in range(6) for j in range(i)]
        >>> down = [[j, i, who] for who in (2, 3) for i in range(6) for j in range(i)]
        >>> mixture = IdealPointMixture(2, max_iter=30).fit(X, up + down)
        >>> first = mixture.groups_.argmax(1)
        >>> bool(first[0] == first[1] != first[2] == first[3])
        True
    """

    def __init__(
        self,
        n_groups: int = 2,
        *,
        metric: IdealMetric = "soft_twed",
        nu: float = 0.003,
        lam: float = 0.1,
        gamma: tuple[float, float] = (1.0, 0.3),
        length: int | None = None,
        noise: str | None = "shared",
        likelihood: Likelihood = "logistic",
        sign: Sign = "nearest",
        rough: float = 1e-3,
        large: float = 1e-3,
        n_starts: int = 4,
        max_iter: int = 100,
        em_iter: int = 20,
        em_steps: int = 20,
        window: float | int | None = None,
        layout: Layout = "ntc",
        nan: Gaps = "raise",
        dtype: str = "float64",
        device: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.n_groups = n_groups
        self.metric = metric
        self.nu = nu
        self.lam = lam
        self.gamma = gamma
        self.length = length
        self.noise = noise
        self.likelihood = likelihood
        self.sign = sign
        self.rough = rough
        self.large = large
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.em_iter = em_iter
        self.em_steps = em_steps
        self.window = window
        self.layout = layout
        self.nan = nan
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        pairs: Any,
        *,
        weights: Any = None,
        outcomes: Any = None,
        times: Any = None,
        report: Report | None = None,
    ) -> IdealPointMixture:
        """Learn from comparisons of several annotators.

        Args:
            X: the items, in any form of :func:`~icml_idealpoint.series.as_series`.
            pairs: [answers, 3]: winner, loser, annotator.
            weights, outcomes: of the pairs; outcome 0.5 is a draw.
            times: of the points.
            report: told the step and the least loss over groups and starts, in the steps from first guesses.

        Raises:
            TypeError, ValueError: bad series, comparisons or options, pairs without annotators, or fewer
                annotators than groups.
        """
        self._check(pairs)
        options = self.get_params(deep=False)
        self._ranker = IdealPointRanker(**{name: options[name] for name in options if name not in _OWN})
        answers = self._ranker._prepare(X, pairs, None, None, weights, outcomes, times)
        self._objective = self._ranker._objective
        people = np.unique(answers.annotator)
        if len(people) < self.n_groups:
            raise ValueError(
                f"{len(people)} annotators gave answers, fewer than n_groups={self.n_groups}; ask for at "
                "most as many groups as there are annotators"
            )
        items = self._objective.series
        warn_if_disconnected(answers, len(items))
        shares = self._first_shares(answers, people, len(items)).to(items.values)
        fit = anneal(
            self._objective,
            self._first_ideals(shares, answers, items),
            steps=self.max_iter,
            gamma=self.gamma,
            weight=self._answer_weights(shares),
            report=report,
        )
        state = _State(fit, shares[..., people].mean(-1), self._loglik(fit), [])
        self._maximise(state, people)
        self._keep(state)
        return self

    def _check(self, pairs: Any) -> None:
        for name, least in (("n_groups", 1), ("em_iter", 0), ("em_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.likelihood == "hinge":
            raise ValueError("likelihood='hinge' gives answers no probability; use 'logistic' or 'probit'")
        if not isinstance(pairs, Comparisons) and np.shape(pairs)[1:] != (3,):
            raise ValueError(
                f"pairs have shape {list(np.shape(pairs))}; groups of annotators need [answers, 3]: winner, "
                "loser, annotator"
            )

    def _first_shares(
        self, answers: Comparisons, people: np.ndarray, n_items: int
    ) -> Float[Tensor, "starts groups annotators"]:
        """A guess for each start: clusters of annotators where its number is even, else random groups."""
        generator = self._ranker._generator(2)
        clusters = _clusters(answers, people, n_items, self.n_groups, self._ranker._seed)
        shares = torch.full(
            (self.n_starts, self.n_groups, answers.n_annotators), UNSURE / self.n_groups, dtype=torch.float64
        )
        for start in range(self.n_starts):
            # A shuffled deal leaves no group without annotators.
            order = torch.randperm(len(people), generator=generator).numpy()
            label = clusters if start % 2 == 0 else order % self.n_groups
            shares[start, label, people] += 1 - UNSURE
        return shares

    def _first_ideals(self, shares: Tensor, answers: Comparisons, items: SeriesSet) -> Tensor:
        """The ranker's first ideal series of the same number, from the answers that each group counts."""
        found = []
        for start in range(self.n_starts):
            for group in range(self.n_groups):
                share = shares[start, group].cpu().double().numpy()[answers.annotator]
                counted = replace(answers, weight=answers.weight * share)
                found.append(self._ranker._starts(items, counted)[start])
        return torch.stack(found)

    def _answer_weights(self, shares: Float[Tensor, "starts groups annotators"]) -> Tensor:
        answers = self._objective.answers
        who = torch.from_numpy(answers.annotator).to(shares.device)
        each = shares.flatten(0, 1).clamp(min=LEAST_SHARE)[:, who]
        return each * torch.from_numpy(answers.weight).to(shares)

    def _loglik(self, fit: Fit) -> Float[Tensor, "starts groups annotators"]:
        with torch.no_grad():
            found = annotator_loglik(
                self._objective,
                self._ranker._distances(self._objective.series, fit.ideal),
                fit.log_scale,
                fit.logits,
            )
        return found.reshape(self.n_starts, self.n_groups, -1)

    def _maximise(self, state: _State, people: np.ndarray) -> None:
        """Rounds of expectation maximisation, of all starts at once, until none gains."""
        last = self.gamma[1]
        shares, total = responsibilities(state.weights, state.loglik)
        state.history.append(total.sum(-1))
        for turn in range(self.em_iter):
            fit = anneal(
                self._objective,
                state.fit.ideal,
                steps=self.em_steps,
                gamma=(last, last),
                log_scale=state.fit.log_scale,
                logits=state.fit.logits,
                weight=self._answer_weights(shares),
                learning_rate=REFIT_RATE / (turn + 1) ** 0.5,
            )
            loglik = self._loglik(fit)
            better = (shares * loglik).sum(-1) > (shares * state.loglik).sum(-1)
            state.fit = _chosen(better.flatten(), fit, state.fit)
            state.loglik = torch.where(better[..., None], loglik, state.loglik)
            state.weights = shares[..., people].mean(-1)
            shares, total = responsibilities(state.weights, state.loglik)
            state.history.append(total.sum(-1))
            if bool(self._settled(state).all()):
                break

    def _settled(self, state: _State) -> Tensor:
        """Which starts gained nothing in the last round."""
        if len(state.history) < 2:
            return torch.zeros_like(state.history[-1], dtype=torch.bool)
        return state.history[-1] - state.history[-2] <= GAIN * len(self._objective.answers)

    def _keep(self, state: _State) -> None:
        start = int(state.history[-1].argmax())
        order = torch.argsort(state.weights[start], descending=True, stable=True)
        rows = start * self.n_groups + order
        self._ideal, self._log_scale, self._logits = (
            part[rows] for part in (state.fit.ideal, state.fit.log_scale, state.fit.logits)
        )
        weights, loglik = state.weights[start, order], state.loglik[start, order]
        shares, _ = responsibilities(weights, loglik)
        self.groups_, self.weights_ = shares.T.cpu().numpy(), weights.cpu().numpy()
        center, spread = self._ranker._center, self._ranker._spread
        self.ideal_points_ = (self._ideal * spread + center).cpu().numpy()
        self.scales_ = self._log_scale.exp().cpu().numpy()
        flips = self._objective.flips(self._logits)
        rates = torch.zeros_like(shares) if flips is None else flips
        self.reliability_ = (1 - 2 * (shares * rates).sum(0)).cpu().numpy()
        self.history_ = tuple(float(value[start]) for value in state.history)
        self.loglik_, self.n_iter_ = self.history_[-1], len(self.history_) - 1
        self.converged_ = bool(self._settled(state)[start])
        self.n_features_in_ = int(self._ideal.shape[2])
        self.scores_ = self._scores(self._objective.series)
        if -self.loglik_ > (np.log(2) - COIN) * self._objective.answers.weight.sum():
            warnings.warn(
                f"the answers contradict any {self.n_groups} rankings: the model explains them no better "
                "than coin flips; check what was asked",
                UserWarning,
                stacklevel=3,
            )

    def _scores(self, items: SeriesSet) -> Float[np.ndarray, "items groups"]:
        near = self._ranker._distances(items, self._ideal).cpu().numpy().T
        return (-near if self.sign == "nearest" else near) / self.scales_

    def predict(
        self, X: Any, group: int | None = None, *, times: Any = None
    ) -> Float[np.ndarray, "items groups"] | Float[np.ndarray, " items"]:
        """The score of each series in every group, or in one.

        Args:
            X: series.
            group: of which the scores are wanted; of all by default.
            times: of the points.

        Raises:
            ValueError: bad series, channels that differ from those of ``fit``, or a group that is none.
            sklearn.exceptions.NotFittedError: before ``fit``.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "ideal_points_")
        if group is not None and not 0 <= group < len(self.weights_):
            raise ValueError(f"group={group}, but groups are 0 to {len(self.weights_) - 1}")
        scores = self._scores(self._ranker._new_items(X, times))
        return scores if group is None else scores[:, group]

    def bic(self) -> float:
        """The Bayesian information criterion, lower is better: parameters * log(answers) - 2 log L.

        Parameters are the points of all ideal series, the scales, the flip rates, and the weights of all
        groups but one. A rate ``"per_annotator"`` counts once: that in a group to which he does not belong
        explains nothing. Penalties and their shrinkage are not counted.

        Raises:
            sklearn.exceptions.NotFittedError: before ``fit``.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "ideal_points_")
        groups = len(self.weights_)
        people = len(np.unique(self._objective.answers.annotator))
        rates = {None: 0, "shared": groups, "per_annotator": people}[self.noise]
        parameters = self._ideal.numel() + groups + rates + groups - 1
        return float(parameters * np.log(len(self._objective.answers)) - 2 * self.loglik_)


def _clusters(answers: Comparisons, people: np.ndarray, n_items: int, n_groups: int, seed: int) -> np.ndarray:
    """Annotators clustered by what they voted for and against.

    v_a = sum over the answers of a of e_winner - e_loser, of unit length: the inner product of two
    annotators grows with answers that agree, and falls with those that contradict each other.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if n_groups == 1:
        return np.zeros(len(people), np.int64)
    row = np.searchsorted(people, answers.annotator)
    votes = np.zeros((len(people), n_items))
    gain = answers.weight * (2 * answers.outcome - 1)
    np.add.at(votes, (row, answers.winner), gain)
    np.add.at(votes, (row, answers.loser), -gain)
    votes /= np.maximum(np.linalg.norm(votes, axis=1, keepdims=True), 1e-12)
    with warnings.catch_warnings():
        # Annotators who all say the same make fewer clusters than asked for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(n_groups, n_init=10, random_state=seed % 2**32).fit_predict(votes).astype(np.int64)


def _chosen(better: Float[Tensor, " rows"], new: Fit, old: Fit) -> Fit:
    """Of every row the new parameters where they are better."""

    def either(part: Callable[[Fit], Tensor]) -> Tensor:
        one, other = part(new), part(old)
        return torch.where(better.reshape(-1, *[1] * (one.ndim - 1)), one, other)

    return Fit(
        either(lambda fit: fit.ideal),
        either(lambda fit: fit.log_scale),
        either(lambda fit: fit.logits),
        either(lambda fit: fit.loss),
        either(lambda fit: fit.grad_norm),
        old.history + new.history,
        old.steps + new.steps,
    )
