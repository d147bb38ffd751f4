"""Claims that are theorems, or whose truth is enumerated.

The identity of entropies, mutual information, and the exact distribution of each decoder's outputs.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

CASES = {"smoke": 20, "small": 400, "full": 2000}
PUZZLES = {"smoke": 6, "small": 60, "full": 300}


def identity(run: Run, seed: int) -> dict[str, Any]:
    """H(p̄) - mean H - JSD on random distributions, each term by its own formula in float64."""
    import torch
    from icml_kernels import buffer_mix

    generator = torch.Generator().manual_seed(seed)
    gaps = []
    for _ in range(CASES[run.scale]):
        d, vocab = (int(torch.randint(2, high, (), generator=generator)) for high in (6, 400))
        spread = 6 * float(torch.rand((), generator=generator))
        logits = spread * torch.randn(d, vocab, generator=generator, dtype=torch.float64)
        logp = torch.log_softmax(logits, 1)
        mixture = buffer_mix(logp, torch.ones(1, d, dtype=torch.float64), torch.arange(d)[None])
        mean_entropy = -(logp.exp() * logp).sum(1).mean()
        if run.ablation == "geometric-mean":
            averaged = torch.log_softmax(logp.mean(0), 0)
            entropy = -(averaged.exp() * averaged).sum()
        else:
            entropy = mixture.entropy[0]
        gaps.append(abs(float(entropy - mean_entropy - mixture.jsd[0])))
    return {"gap": gaps}


def mutual_information(run: Run, seed: int) -> dict[str, float]:
    """Correlation of the buffer's JSD with the enumerated I(x_i; c | s) along decodings of exact sudoku.

    Positions that stand in all d contexts are compared. These contexts differ by the tokens that were
    accepted since the oldest of them. Given that one, I = H(x_i | oldest) - E H(x_i | oldest and those
    tokens), over the tokens' exact joint distribution.
    """
    import numpy as np
    import torch

    from icml_ccd.coherent_rules import CCD
    from icml_ccd.decoding import decode
    from icml_ccd.exact_denoiser import ExactDenoiser
    from icml_ccd.small_languages import sudoku_grids
    from icml_ccd.tasks import Sudoku, masked_out

    denoiser = ExactDenoiser(sudoku_grids(), vocab=4)
    given, _ = masked_out(Sudoku(), PUZZLES[run.scale], seed=seed)
    depth = 3
    contexts: list[Any] = []
    pairs: list[tuple[float, float]] = []
    current = given.clone()

    def watch(step: int, state: Any, selection: Any) -> None:
        contexts.append(current.clone())
        if selection.jsd is not None and len(contexts) >= depth:
            oldest = contexts[-depth]
            for row, place in torch.isfinite(selection.jsd).nonzero().tolist():
                changed = (oldest[row] != current[row]).nonzero()[:, 0].tolist()
                if changed:
                    exact = exact_information(denoiser, oldest[row], place, changed)
                    pairs.append((float(selection.jsd[row, place]), exact))
        current.copy_(torch.where(selection.accept, selection.tokens, current))

    rule = CCD(depth, least=None)
    decode(denoiser, given, rule=rule, budget=1, infill=True, callback=watch, shift_logits=False)
    estimated, exact = np.array(pairs).T
    return {
        "correlation": float(np.corrcoef(estimated, exact)[0, 1]),
        "pairs": float(len(pairs)),
        "mean_estimated": float(estimated.mean()),
        "mean_exact": float(exact.mean()),
    }


def exact_information(denoiser: Any, context: Any, place: int, others: list[int]) -> float:
    """I(x_place; x_others | context) under a listed language, nats."""
    import torch

    hidden = context == denoiser.mask_id
    agrees = (hidden | (context == denoiser.sequences)).all(1)
    table, weight = denoiser.sequences[agrees], denoiser.weights[agrees]
    weight = weight / weight.sum()
    key = torch.zeros(len(table), dtype=torch.int64)
    for other in others:
        key = key * denoiser.vocab + table[:, other]

    def entropy(labels: Any) -> float:
        _, index = labels.unique(return_inverse=True)
        p = torch.zeros(int(index.max()) + 1, dtype=torch.float64).index_add(0, index, weight)
        return float(-(p * p.log()).sum())

    token = table[:, place]
    return entropy(token) + entropy(key) - entropy(key * denoiser.vocab + token)


def output_distribution(run: Run, seed: int) -> dict[str, float]:
    """Total variation between every rule's outputs at temperature 1 and the true distribution.

    Hidden Markov text of six tokens and balanced brackets of eight, all sequences enumerated.
    """
    from icml_ccd.exact_denoiser import ExactDenoiser
    from icml_ccd.hidden_markov import HiddenMarkovDenoiser
    from icml_ccd.sequence_distribution import decoder_distribution, total_variation
    from icml_ccd.small_languages import balanced_brackets

    markov = HiddenMarkovDenoiser.random(3, 3, seed=seed)
    brackets = ExactDenoiser(balanced_brackets(4))
    lengths = {"markov": 4 if run.scale == "smoke" else 6, "brackets": 8}
    figures: dict[str, float] = {}
    for name, model in (("markov", markov), ("brackets", brackets)):
        for rule in ("neg_entropy", "confidence", "margin", "random", "ccd", "ccd_plus"):
            for b in (1, 2):
                every, p = decoder_distribution(model, lengths[name], model.vocab, rule, budget=b, batch=2048)
                true = model.log_probability(every).exp()
                figures[f"{rule}_b{b}_{name}"] = total_variation(p, true)
        for rule, options in (("threshold", {}), ("ccd_ds", {"eps": 0.3})):
            every, p = decoder_distribution(model, lengths[name], model.vocab, rule, batch=2048, **options)
            figures[f"{rule}_{name}"] = total_variation(p, model.log_probability(every).exp())
    local = ("neg_entropy", "confidence", "margin", "random")
    figures["local_b1"] = max(figures[f"{rule}_b1_{name}"] for rule in local for name in lengths)
    figures["ccd_b1"] = max(figures[f"ccd_b1_{name}"] for name in lengths)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, ablations=("geometric-mean",))(identity)
    suite.measure(seeds={"smoke": 1, "small": 5, "full": 5})(mutual_information)
    suite.measure(seeds={"smoke": 1, "small": 3, "full": 5})(output_distribution)
    suite.claim(
        "entropy-is-mean-entropy-plus-divergence",
        of=identity,
        figure="gap",
        kind="every",
        at_most=1e-6,
        statement="|H(p̄) - mean H - JSD| is below 1e-6 on random distributions.",
        paper="Theorem: H(p̄) = mean H + I(x_i; c | s).",
        teeth="geometric-mean",
        unit="nats",
    )
    suite.claim(
        "divergence-follows-mutual-information",
        of=mutual_information,
        figure="correlation",
        kind="mean",
        at_least=0.5,
        statement="The buffer's divergence correlates with the enumerated I(x_i; c | s) above 0.5.",
        paper="The divergence is the mutual information over the contexts (theorem in expectation).",
    )
    suite.claim(
        "local-rules-are-exact-at-one-token",
        of=output_distribution,
        figure="local_b1",
        kind="every",
        at_most=1e-5,
        statement="With exact posteriors and one token a step the local rules give the true distribution.",
        paper="No figure: the chain rule in any order.",
        unit="total variation",
    )
    suite.claim(
        "averaging-moves-the-distribution",
        of=output_distribution,
        figure="ccd_b1",
        kind="mean",
        statement="Total variation of CCD at temperature 1: averages of older contexts are no posteriors.",
        paper="No figure.",
        unit="total variation",
    )
