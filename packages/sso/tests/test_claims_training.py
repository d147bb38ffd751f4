"""What the training claims are computed with: parabola, power law, drift, arms, ablations."""

import math

import numpy as np
import pytest
from icml_core import ClaimSuite, Run
from icml_sso import claims_training
from icml_sso.small_trainings import decoder, drift_over_last_half, log_slope, parabola_minimum, train_arm


def test_the_parabola_finds_the_minimum_of_a_parabola():
    rates = (1e-3, 4e-3, 1.6e-2)
    losses = [2 + 0.3 * (math.log(r) - math.log(3e-3)) ** 2 for r in rates]
    assert abs(parabola_minimum(rates, losses) - 3e-3) < 1e-9
    # Falling all the way: the parabola's minimum lies outside, the best rate tried is given.
    assert parabola_minimum(rates, [3.0, 2.0, 1.9]) == pytest.approx(
        math.exp(_vertex(rates, [3.0, 2.0, 1.9]))
    )
    assert parabola_minimum(rates, [3.0, 2.0, 0.9]) == 1.6e-2
    assert parabola_minimum(rates, [1.0, 2.0, 1.5]) == 1e-3  # opens downwards
    with pytest.raises(ValueError, match="2 losses at 3 learning rates"):
        parabola_minimum(rates, [1.0, 2.0])


def _vertex(rates, losses):
    """Of the parabola through three equally spaced points, by finite differences."""
    x = np.log(rates)
    h = x[1] - x[0]
    return x[1] - h * (losses[2] - losses[0]) / (2 * (losses[2] - 2 * losses[1] + losses[0]))


def test_a_power_law_has_its_exponent_and_noise_lowers_r_squared():
    slope, r_squared = log_slope((0.5, 1, 2), [3 * c**1.66 for c in (0.5, 1, 2)])
    assert (slope, r_squared) == (pytest.approx(1.66), pytest.approx(1.0))
    assert log_slope((0.5, 1, 2), [1.0, 5.0, 1.0])[1] < 0.1


def test_drift_compares_the_two_ends_of_the_last_half():
    values = [99.0] * 50 + [1.0] * 10 + [7.0] * 30 + [1.25] * 10
    assert drift_over_last_half(values) == pytest.approx(0.25)
    assert drift_over_last_half([2.0, 2.0]) == 0.0


TINY = {"steps": 8, "batch": 2, "spectra_every": 1}


def arm(tmp_path, optimizer="sso", ablation=None, lr=5e-2, **options):
    run = Run(tmp_path, scale="smoke", ablation=ablation, device="cpu", quiet=True)
    return train_arm(run, 3, decoder(32, 1, context=16), optimizer, lr, **{**TINY, **options})


def test_arms_of_a_seed_begin_alike_and_ablations_change_what_they_say(tmp_path):
    arms = {name: arm(tmp_path, ablation=name) for name in (None, "no-retraction", "no-spectral-groups")}
    arms["adamw"], arms["muonsphere"] = arm(tmp_path, "adamw"), arm(tmp_path, "muonsphere")
    # The first loss is that of the first weights: one for all.
    assert len({one.record.rows[0]["loss"] for one in arms.values()}) == 1
    error = {name: abs(one.record.measured("sigma_ratio_high") - 1).max() for name, one in arms.items()}
    assert error[None] < 0.02
    assert error["no-retraction"] > 2 * error[None]
    assert error["no-spectral-groups"] > 0.1
    assert arms["no-spectral-groups"].validation == arms["adamw"].validation
    assert len({one.validation for one in arms.values()}) == 4


def test_spheres_are_watched_just_after_the_retraction(tmp_path):
    """Without retraction that is where the step before left the weights; with it, much nearer."""
    loose = arm(tmp_path, ablation="no-retraction", watch_spheres=True)
    low, high = loose.record.measured("sigma_ratio_low"), loose.record.measured("sigma_ratio_high")
    left = np.maximum(abs(low - 1), abs(high - 1))
    assert loose.sphere_errors == pytest.approx(left[:-1], rel=1e-4)
    assert max(arm(tmp_path, watch_spheres=True).sphere_errors) < 0.5 * max(left)
    assert arm(tmp_path, "adamw", watch_spheres=True).sphere_errors == ()


def test_a_diverged_arm_has_the_loss_of_a_guess(tmp_path):
    diverged = arm(tmp_path, "adamw", lr=1e30)
    assert diverged.diverged
    assert diverged.validation == math.log(256)
    assert not arm(tmp_path, "adamw", lr=1e-3).diverged


def test_the_text_is_real_and_the_loss_is_in_nats_a_byte(tmp_path):
    """Before training a byte costs about ln 256; a few steps learn that ASCII is what occurs."""
    rows = arm(tmp_path, steps=30, lr=2e-2).record.rows
    assert abs(rows[0]["cross_entropy"] - math.log(256)) < 0.1
    assert rows[-1]["cross_entropy"] < math.log(128)


def test_smaller_scales_shorten_every_training(tmp_path):
    smoke = Run(tmp_path, scale="smoke", quiet=True)
    small = Run(tmp_path, scale="small", quiet=True)
    assert (claims_training._steps(smoke, 60), claims_training._steps(small, 60)) == (2, 60)
    assert claims_training._steps(small, 80) == 80


def test_the_widths_of_a_decoder_follow_one_rule():
    for width in (32, 48, 64, 128):
        model = decoder(width, 2)
        assert model.num_attention_heads * model.head_dim == width
        assert model.intermediate_size == 3 * width
        assert model.num_attention_heads % model.num_key_value_heads == 0


def test_bounds_are_those_of_the_specification():
    suite = ClaimSuite("sso")
    claims_training.add_claims(suite)
    bounds = {name: claim.bound for name, claim in suite.claims.items()}
    assert bounds["loss-below-adamw-paper-lr"] == bounds["loss-below-adamw-high-lr"] == "<= 0"
    assert bounds["loss-not-above-muon"] == bounds["loss-not-above-muonsphere"] == "<= 0.02"
    assert bounds["spheres-held-in-training"] == "<= 0.002"
    assert bounds["best-lr-stays-across-widths"] == "<= 1.5"
    assert bounds["radius-sets-the-rms"] == ">= 1"
    assert {claim.measure.seeds["small"] for claim in suite.claims.values()} == {3}
