"""SSO by its name in the trainings of other packages."""

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("optimizer", ["sso.sso", "sso.muonsphere"])
def test_it_trains_the_network_of_flashschnet(optimizer):
    """Forces of springs between three beads: the error halves, and every matrix lies on its sphere."""
    from icml_flashschnet import ForceMatcher, SchNetConfig
    from icml_flashschnet.force_matching import TrainingOptions

    rng = np.random.default_rng(0)
    rest = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.75, 1.3, 0.0]])
    moved = 0.2 * rng.standard_normal((60, 3, 3))
    moved -= moved.mean(1, keepdims=True)
    config = SchNetConfig(n_types=2, hidden=12, filters=12, n_rbf=12, layers=1, r_cut=5.0, out=(12,))
    options = TrainingOptions(
        epochs=20, batch_size=16, optimizer=optimizer, learning_rate=3e-2, schedule="cosine", ema=0.0
    )
    matcher = ForceMatcher(config, options=options, seed=1).fit(rest + moved, -moved, [0, 1, 0])
    errors = [line["train_rmse"] for line in matcher.history_]
    assert errors[-1] < 0.5 * errors[0]


def test_it_trains_a_language_model_and_resumes_bit_for_bit(tmp_path):
    """The loss falls below that of a guess, and a stopped run goes on as if it had not been."""
    from icml_lm import TinyConfig, TinyLM, train
    from icml_lm.tasks import MarkovWorld

    world = MarkovWorld.random(seed=0)
    config = TinyConfig(vocab=world.vocab, d=32, layers=2, heads=2)

    def batch(step):
        ids = world.sample(16, seed=step)
        return {"input_ids": ids, "labels": ids}

    options = {"lr": 2e-2, "optimizer": "sso.sso"}
    whole = TinyLM(config, seed=0)
    log = train(whole, batch, steps=40, **options)
    assert log.loss[-1] < np.log(world.vocab) - 0.2

    def stop(step, figures, model):
        if step == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TinyLM(config, seed=0), batch, steps=40, callbacks=[stop], checkpoint=tmp_path, **options)
    resumed = TinyLM(config, seed=5)
    again = train(resumed, batch, steps=40, checkpoint=tmp_path, **options)
    assert again.loss == log.loss
    for a, b in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
