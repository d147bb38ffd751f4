"""A claim on text: windows with a quarter of their tokens masked, filled by CCD and by the entropy order.

At full scale the model is SmolLM2-135M turned into a masked diffusion model; at the smaller scales a little
model of bytes stands in, so that the same code runs in seconds.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

STEPS = {"smoke": 3, "small": 400, "full": 2000}
WINDOWS = {"smoke": 4, "small": 64, "full": 256}
LENGTH = {"smoke": 16, "small": 48, "full": 128}
SHARE = 0.25
"""Of the tokens of a window that are masked."""
HELD_OUT = 256
"""Windows at the end that no training sees."""


def text_infilling(run: Run, seed: int) -> dict[str, float]:
    """Share of masked tokens that come back as they were, at 1 and 4 tokens a step."""
    import torch

    from icml_ccd.decoding import decode

    model, windows = _model_and_windows(run)
    windows = windows[-min(HELD_OUT, len(windows) // 2) :]
    generator = torch.Generator().manual_seed(seed)
    chosen = windows[torch.randperm(len(windows), generator=generator)[: WINDOWS[run.scale]]]
    masked = torch.rand(chosen.shape, generator=generator).argsort(1).argsort(1) < SHARE * chosen.shape[1]
    given = torch.where(masked, model.mask_id, chosen).to(run.device)
    figures: dict[str, float] = {}
    for b in (1, 4):
        for rule in ("neg_entropy", "ccd", "ccd_plus"):
            out = decode(model, given, rule=rule, budget=b, infill=True)
            same = (out.sequences.cpu() == chosen)[masked]
            figures[f"{rule}_b{b}"] = float(same.double().mean())
    return figures


def _model_and_windows(run: Run) -> tuple[Any, Any]:
    from hashlib import sha256
    from itertools import islice
    from pathlib import Path

    from icml_lm import ByteTokenizer, artefact

    from icml_ccd.text_mdm import library_prose, smollm2_mdm, text_windows
    from icml_ccd.tiny_mdm import MDMConfig, TinyMDM
    from icml_ccd.training import MaskedDiffusionTraining

    length, steps = LENGTH[run.scale], STEPS[run.scale]
    if run.scale == "full":
        start, tokenizer = smollm2_mdm(device=run.device)
        config, batch, lr = start.config, 32, 1e-4
    else:
        tokenizer = ByteTokenizer()
        config, start, batch, lr = MDMConfig(260, 259, d=64, layers=2, shift_logits=True), None, 64, 3e-3
    # The smoke scale reads one file; tokenising all of the library takes seconds.
    texts = list(islice(library_prose(), 8 if run.scale == "smoke" else None))
    windows = text_windows(texts, tokenizer, length, most=8192)
    key = sha256(f"1 {run.scale} {length} {steps} {batch} {lr} {config}".encode()).hexdigest()[:12]

    def build(folder: Path) -> None:
        data = windows[: -min(HELD_OUT, len(windows) // 2)]
        training = MaskedDiffusionTraining(data, config, steps=steps, batch=batch, lr=lr, model=start)
        training.fit().model.save(folder)

    return TinyMDM.load(artefact("ccd-text", key, build)).to(run.device), windows


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 3, "full": 5})(text_infilling)
    for b in (1, 4):
        suite.claim(
            f"text-infilling-{b}",
            of=text_infilling,
            figure=f"ccd_b{b}",
            baseline=f"neg_entropy_b{b}",
            kind="mean",
            statement=f"Masked tokens of text that come back at {b} a step: CCD over the entropy order.",
            paper="No figure for text; at full scale the model is SmolLM2-135M.",
        )
