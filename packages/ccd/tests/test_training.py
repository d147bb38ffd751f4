"""Training: the loss against its formula, masks, resuming, artefacts."""

from __future__ import annotations

import math

import pytest
import torch
from icml_ccd import ExactDenoiser, MaskedDiffusionTraining, MDMConfig, TinyMDM, exact_bound, train_mdm
from icml_ccd.training import masked_copy, masked_loss


def test_every_number_of_masks_is_equally_likely_and_prompts_stay():
    tokens = torch.arange(6).repeat(5000, 1)
    maskable = torch.tensor([False, False, True, True, True, True]).expand(5000, 6)
    ids, masked, t = masked_copy(tokens, maskable, 9, torch.Generator().manual_seed(0))
    counts = torch.bincount(masked.sum(1), minlength=5)
    assert counts.tolist() == pytest.approx([0, 1250, 1250, 1250, 1250], abs=2)
    assert not masked[:, :2].any()
    assert torch.equal(ids == 9, masked)
    torch.testing.assert_close(t.double(), masked.sum(1) / 4.0, check_dtype=False)
    assert masked[:, 2:].double().mean(0).tolist() == pytest.approx([0.625] * 4, abs=0.02)


def test_the_mean_loss_is_the_negative_bound():
    """Over all masks the loss is minus the likelihood bound, a token."""

    class Wrapped:
        shift_logits = False

        def __call__(self, ids):
            return denoiser(ids)

    denoiser = ExactDenoiser([[0, 1, 2], [1, 2, 0], [2, 2, 2], [0, 1, 1]], floor=0.1, vocab=3)
    tokens = torch.tensor([[0, 1, 2]]).repeat(6000, 1)
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    ids, masked, t = masked_copy(tokens, maskable, 3, torch.Generator().manual_seed(1))
    loss = masked_loss(Wrapped(), tokens, ids, masked, t, maskable)
    expected = (
        -exact_bound(denoiser, torch.empty(0, dtype=torch.int64), tokens[0], shift_logits=False).value / 3
    )
    assert float(loss) == pytest.approx(expected, rel=0.02)


def test_a_trained_model_comes_near_the_exact_posterior():
    """Rows that count: two visible neighbours decide a token."""
    data = (torch.arange(6) + torch.arange(5)[:, None]) % 5
    model = train_mdm(data, 6, 5, 6, steps=80, d=32, layers=1, heads=2, batch=32, lr=1e-2)
    ids = data.clone()
    ids[:, 2:] = 5
    p = model(ids).softmax(-1)[..., :5]
    exact = ExactDenoiser(data, vocab=5).posterior(ids)
    assert float((p.detach().double() - exact)[:, 2:].abs().max()) < 0.1


def test_any_optimizer_by_name():
    data = (torch.arange(6) + torch.arange(5)[:, None]) % 5
    losses = []
    for optimizer in ("adamw", "sgd"):
        config = MDMConfig(6, 5, d=16, layers=1, heads=2)
        training = MaskedDiffusionTraining(data, config, steps=5, optimizer=optimizer).fit()
        losses.append(training.log_.loss)
    assert losses[0][0] == losses[1][0] == pytest.approx(math.log(6), rel=0.05)
    assert losses[0][-1] != losses[1][-1]


def test_a_training_of_a_given_model_goes_on_with_it():
    model = TinyMDM(MDMConfig(6, 5, d=16, layers=1, heads=2), seed=7)
    before = model.lm.lm_head.weight.detach().clone()
    data = torch.zeros(4, 6, dtype=torch.int64)
    training = MaskedDiffusionTraining(data, model.config, steps=2, model=model).fit()
    assert training.model is model
    assert not torch.equal(before, model.lm.lm_head.weight)


@pytest.mark.parametrize(
    ("tokens", "maskable", "message"),
    [
        (torch.zeros(0, 4, dtype=torch.int64), None, "expected integer rows"),
        (torch.zeros(2, 4), None, "expected integer rows"),
        (torch.full((2, 4), 6), None, "do not fit a vocabulary of 6"),
        (torch.full((2, 4), 5), None, "the mask id 5 occurs"),
        (torch.zeros(2, 4, dtype=torch.int64), torch.zeros(4), "row 0 has no position"),
    ],
)
def test_bad_data_is_named(tokens, maskable, message):
    with pytest.raises(ValueError, match=message):
        MaskedDiffusionTraining(tokens, MDMConfig(6, 5), maskable=maskable)
    with pytest.raises(ValueError, match="tokens has 4 columns, and seq_len=3"):
        train_mdm(torch.zeros(2, 4, dtype=torch.int64), 6, 5, 3)
