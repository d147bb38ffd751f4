"""Claims about hinted decoding: rewritten answers are more the model's own, and as right."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

BETAS = (0.0, 0.5, 1.0, 3.0, 6.0)
SCALES = {
    "smoke": {"steps": 4, "batch": 8, "d": 16, "layers": 1, "rows": 6},
    "small": {"steps": 800, "batch": 64, "d": 64, "layers": 3, "rows": 200},
    "full": {"steps": 6000, "batch": 128, "d": 128, "layers": 4, "rows": 1000},
}


def rewriting(run: Run, seed: int) -> dict[str, float]:
    """Answers to an operator that is unknown without a hint: mean φ and share of right ones, by beta.

    Without the drafter every beta is 0.
    """
    import torch
    from icml_lm import collate, generate
    from icml_lm.tasks.digit_ops import tokenizer

    from icml_idft import hint_world
    from icml_idft.advice import advise
    from icml_idft.demonstrations import encode_rows, prompt_ids
    from icml_idft.hinted import HintedDecoder
    from icml_idft.realignment import realign

    size = SCALES[run.scale]
    symbols = tokenizer()
    model = hint_world.model(hint_world.Size(size["d"], size["layers"], size["steps"], size["batch"]), seed)
    rows = hint_world.rows(size["rows"], seed=seed)
    encoded = encode_rows(rows, symbols).rows
    figures = {"raw_phi": advise(model, encoded, pad=symbols.pad_token_id, limit=len(encoded)).phi}
    new = hint_world.FOREIGN_LENGTH + 10
    prompts, hints = [r["prompt"] for r in rows], [r["response"] for r in rows]
    for beta in BETAS:
        asked = 0.0 if run.ablation == "no-drafter" else beta
        decoder = HintedDecoder(
            model, symbols, beta=asked, split=None, hinted_prompt=hint_world.hinted_prompt, temperature=0.3
        )
        found = decoder.generate(prompts, hints, new, torch.Generator().manual_seed(seed))
        figures[f"phi_{beta:g}"] = sum(f.phi_mean for f in found) / len(found)
        right = [hint_world.right(r, f.text) and f.finish == "eos" for r, f in zip(rows, found, strict=True)]
        figures[f"right_{beta:g}"] = sum(right) / len(found)
        figures[f"lambda_{beta:g}"] = sum(f.lam_mean for f in found) / len(found)
    # The best beta is the most fluent one that costs no more than a twentieth of the right answers.
    usable = [b for b in BETAS if b and figures[f"right_{b:g}"] >= 0.95 * figures["right_0"]]
    best = max(usable or [min(b for b in BETAS if b)], key=lambda b: figures[f"phi_{b:g}"])
    figures |= {"best_beta": best, "best_phi": figures[f"phi_{best:g}"]}
    figures["best_right"] = figures[f"right_{best:g}"]
    batch = collate([prompt_ids(symbols, p) for p in prompts], symbols.pad_token_id, side="left")
    out = generate(
        model, batch["input_ids"], batch["attention_mask"], max_new_tokens=new, eos_id=symbols.eos_token_id
    )
    texts = symbols.batch_decode(out.ids, skip_special_tokens=True)
    figures["right_unhinted"] = sum(hint_world.right(r, t) for r, t in zip(rows, texts, strict=True)) / len(
        rows
    )
    decoder = HintedDecoder(
        model,
        symbols,
        beta=0.0 if run.ablation == "no-drafter" else 1.0,
        split=None,
        hinted_prompt=hint_world.hinted_prompt,
    )
    done = realign(rows[:50], decoder, hint_world.right, max_new_tokens=new, seed=seed)
    kept = [r for r in done if r["realigned"]]
    figures["realigned"] = len(kept) / len(done)
    figures["realigned_right"] = float(
        all(
            hint_world.right(row, r["response"]) for row, r in zip(rows, done, strict=False) if r["realigned"]
        )
    )
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measure and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("no-drafter",))(rewriting)
    paper = "Mean φ from below -0.1 to about -0.05 (7 B, demo, beta 3)."
    for name, figure in (("best", "best_phi"), ("beta-1", "phi_1"), ("beta-3", "phi_3")):
        for baseline, label, what in (
            ("phi_0", "self-distillation", "the hinted prompt alone"),
            ("raw_phi", "the-data", "the data as they are"),
        ):
            suite.claim(
                f"{name}-more-own-than-{label}",
                of=rewriting,
                figure=figure,
                baseline=baseline,
                kind="mean",
                at_least=0.0,
                statement=f"Mean φ of rewritten answers ({name}) less that of {what}.",
                paper=paper,
                teeth="no-drafter" if baseline == "phi_0" else None,
                unit="nats a token",
            )
        suite.claim(
            f"{name}-stays-right",
            of=rewriting,
            figure={"best": "best_right", "beta-1": "right_1", "beta-3": "right_3"}[name],
            baseline="right_0",
            kind="mean",
            at_least=-0.05,
            statement=f"Share of right answers ({name}) less that of the hinted prompt alone.",
            paper="Answers stay right.",
            unit="accuracy",
        )
    for figure, statement in (
        ("raw_phi", "Mean φ of the data."),
        ("phi_0", "Mean φ of the hinted prompt alone."),
        ("phi_0.5", "Mean φ at beta 0.5."),
        ("right_6", "Share of right answers at beta 6."),
        ("right_unhinted", "Share of right answers without a hint."),
        ("realigned", "Share of 50 rows that realignment replaces, at beta 1."),
    ):
        suite.claim(
            f"measured-{figure.replace('_', '-').replace('.', '-')}",
            of=rewriting,
            figure=figure,
            kind="mean",
            statement=statement,
            paper=paper,
        )
    suite.claim(
        "realigned-rows-are-right",
        of=rewriting,
        figure="realigned_right",
        kind="every",
        at_least=1.0,
        statement="Every answer that realignment puts in place of another is right.",
        paper="Checked by construction.",
    )
