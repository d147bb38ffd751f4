"""Claims about the centred log-likelihood, on models that can be enumerated."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

GRID = (0.0, 0.5, 1.0, 1.5)
LENGTHS = (5, 20, 80)


def centring(run: Run, seed: int) -> dict[str, float]:
    """Mean and variance of z on texts that a tabular model sampled itself, and by enumeration.

    Without centring, z is that of the log-likelihood less its mean over all contexts.
    """
    import math

    import torch

    from icml_idft.centred import cll
    from icml_idft.tabular import TabularLM

    vocab = {"smoke": 30, "small": 100, "full": 1000}[run.scale]
    rows = {"smoke": 300, "small": 2800, "full": 28_000}[run.scale]
    model = TabularLM.random(vocab, seed=seed)
    p = model.table.detach().softmax(1)
    logp = model.table.detach().log_softmax(1)
    phi = logp - (p * logp).sum(1, keepdim=True)
    exact = (p * phi).sum(1).abs().max()
    variance = (p * phi**2).sum(1)
    token_z, text_z = [], []
    for length in range(1, 9):
        ids = model.sample(rows, length + 1, seed=seed + length)
        found = cll(model, ids)
        context = ids[:, :-1]
        given = found.phi[:, 1:]
        if run.ablation == "no-centring":
            given = found.logp[:, 1:]
            given = given - given.mean()
        spread = variance[context]
        token_z.append((given / spread.sqrt()).flatten())
        text_z.append(given.sum(1) / spread.sum(1).sqrt())
    tokens, texts = torch.cat(token_z), torch.cat(text_z)
    return {
        "tokens": float(len(tokens)),
        "mean_in_errors": abs(float(tokens.mean() / tokens.std())) * math.sqrt(len(tokens)),
        "variance": float(texts.var()),
        "exact_mean": float(exact),
    }


def separating(run: Run, seed: int) -> dict[str, float]:
    """d' of the log-likelihood with a times the entropy, in one random world; and the AUC at 80 tokens.

    Without centring the statistic that is called centred has a = 0.
    """
    import torch

    from icml_idft.separation import auc, discriminability, world

    size = {"smoke": 20, "small": 200, "full": 1000}[run.scale]
    logp, logq = world(size, seed=seed)
    figures: dict[str, float] = {}
    for length in LENGTHS:
        grid = [0.0 if run.ablation == "no-centring" and a == 1.0 else a for a in GRID]
        for kind, pooled in (("", True), ("own_", False)):
            found = discriminability(logp, logq, grid, length, pooled=pooled)
            for a, value in zip(GRID, found.tolist(), strict=True):
                figures[f"{kind}d_{length}_{a:g}"] = value
    generator = torch.Generator().manual_seed(seed)
    texts, length = {"smoke": 50, "small": 1000, "full": 10_000}[run.scale], LENGTHS[-1]
    entropy = -(logp.exp() * logp).sum(1)
    phi, ratio = [], []
    for source in (logp, logq):
        contexts = torch.randint(size, (texts, length), generator=generator)
        flat = contexts.flatten()
        drawn = torch.multinomial(source.exp()[flat], 1, generator=generator)[:, 0]
        own = logp[flat, drawn]
        phi.append((own + entropy[flat]).view(texts, length).mean(1))
        ratio.append((own - logq[flat, drawn]).view(texts, length).mean(1))
    figures["auc_phi"], figures["auc_ratio"] = auc(*phi), auc(*ratio)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("no-centring",))(centring)
    suite.measure(seeds={"smoke": 1, "small": 20, "full": 20}, ablations=("no-centring",))(separating)
    theory = "Follows from the definition."
    suite.claim(
        "phi-is-centred",
        of=centring,
        figure="mean_in_errors",
        kind="every",
        at_most=4.0,
        statement="Over 10⁵ tokens of a model's own the mean standardised φ is within 4 errors of 0.",
        paper=theory,
        teeth="no-centring",
    )
    suite.claim(
        "phi-is-centred-exactly",
        of=centring,
        figure="exact_mean",
        kind="every",
        at_most=1e-12,
        statement="By enumeration, E[φ] is 0 in every context.",
        paper=theory,
    )
    suite.claim(
        "z-has-unit-variance",
        of=centring,
        figure="variance",
        kind="every",
        between=(0.95, 1.05),
        statement="z of texts of one to eight tokens has a variance of 1.",
        paper=theory,
        teeth="no-centring",
    )
    snr = "Theorem on the signal-to-noise ratio; no figures seen."
    for length in LENGTHS:
        for other in (a for a in GRID if a != 1.0):
            suite.claim(
                f"centred-beats-{str(other).replace('.', '-')}-at-{length}",
                of=separating,
                figure=f"d_{length}_1",
                baseline=f"d_{length}_{other:g}",
                kind="mean",
                at_least=0.0,
                statement=f"At {length} tokens, d' of log p + H is above that of log p + {other:g} H.",
                paper=snr,
                teeth="no-centring" if other == 0.0 else None,
            )
    suite.claim(
        "a-known-source-is-told-better-by-the-ratio",
        of=separating,
        figure="auc_ratio",
        baseline="auc_phi",
        kind="mean",
        at_least=0.0,
        statement="Where the other source is known, the log-ratio tells 80 tokens apart with a higher AUC.",
        paper="None; a limit of the test.",
    )
