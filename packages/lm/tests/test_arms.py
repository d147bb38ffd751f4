"""Arms together equal arms one by one."""

import pytest
import torch
from icml_lm.arms import NonFiniteArm, train_many
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.training import train

CONFIG = TinyConfig(vocab=13, d=16, heads=2, kv_heads=1, layers=2, tied=True, initializer_range=0.1)
RATES = [1e-2, 3e-3, 1e-2]


def _batch(step, arm):
    ids = torch.randint(13, (3, 7), generator=torch.Generator().manual_seed(100 * step + arm))
    labels = ids.clone()
    labels[0, : 2 + arm] = -100
    return {"input_ids": ids, "labels": labels}


def _together(step):
    batches = [_batch(step, arm) for arm in range(3)]
    return {name: torch.stack([b[name] for b in batches]) for name in batches[0]}


@pytest.mark.parametrize("at_once", [None, 1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_arms_equal_one_by_one(optimizer, at_once):
    models = [TinyLM(CONFIG, seed=s).double() for s in range(3)]
    options = {"steps": 5, "optimizer": optimizer, "weight_decay": 0.1, "clip": 0.5, "warmup": 2}
    log = train_many(models, _together, lr=RATES, at_once=at_once, **options)
    assert log.models[0] is models[0]
    for arm in range(3):
        alone = TinyLM(CONFIG, seed=arm).double()
        expected = train(alone, lambda s, arm=arm: _batch(s, arm), lr=RATES[arm], **options)
        torch.testing.assert_close(
            log.loss[:, arm], torch.tensor(expected.loss, dtype=torch.float64), rtol=1e-9, atol=1e-9
        )
        for a, b in zip(models[arm].parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert all(block.self_attn.kind == "sdpa" for block in models[0].model.layers)
    assert models[0].lm_head.weight is models[0].model.embed_tokens.weight


def test_configurations_seeds_and_a_function_per_arm():
    feeds = [lambda s, arm=arm: _batch(s, arm) for arm in range(3)]
    seen = []
    log = train_many(
        CONFIG,
        feeds,
        steps=2,
        lr=1e-2,
        seeds=[4, 5, 6],
        callback=lambda step, loss: seen.append(loss.clone()),
    )
    for arm, seed in enumerate((4, 5, 6)):
        expected = TinyLM(CONFIG, seed=seed)(**_batch(0, arm)).loss
        torch.testing.assert_close(log.loss[0, arm], expected.detach(), rtol=0, atol=1e-5)
    assert torch.equal(torch.stack(seen), log.loss)


def test_frozen_weights_stay():
    models = [TinyLM(TinyConfig(vocab=13, d=16, heads=2), seed=s) for s in range(2)]
    for model in models:
        model.model.embed_tokens.weight.requires_grad_(False)
    for model in models[1:]:  # what is not trained is shared, so it must be alike
        model.model.embed_tokens.weight.data.copy_(models[0].model.embed_tokens.weight)
    before = models[1].model.embed_tokens.weight.clone()
    heads = models[1].lm_head.weight.clone()
    train_many(models, [lambda s: _batch(s, 0)] * 2, steps=2, lr=1e-2)
    assert torch.equal(before, models[1].model.embed_tokens.weight)
    assert not torch.equal(heads, models[1].lm_head.weight)


def test_frozen_weights_that_differ_are_refused():
    models = [TinyLM(TinyConfig(vocab=13, d=16, heads=2), seed=s) for s in range(2)]
    for model in models:
        model.model.embed_tokens.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        train_many(models, [lambda s: _batch(s, 0)] * 2, steps=1, lr=1e-2)


def test_the_arm_that_breaks_is_named():
    def data(step):
        return _together(step) | {"bad": torch.tensor([0.0, 1.0, 0.0])}

    def loss(model, batch):
        found = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
        return torch.where(batch["bad"] > 0, found * torch.inf, found)

    with pytest.raises(NonFiniteArm, match="arm 1") as caught:
        train_many([TinyLM(CONFIG, seed=s) for s in range(3)], data, steps=2, lr=1e-2, loss_fn=loss)
    assert (caught.value.step, caught.value.arm) == (0, 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arms": []}, "no arm"),
        ({"lr": [1e-2]}, "as many positive rates"),
        ({"optimizer": "muon"}, "'muon'"),
        ({"data": [lambda s: 0]}, "as many data functions"),
        ({"seeds": [1, 2, 3]}, "seeds belong to configurations"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"at_once": 0}, "at_once=0"),
        ({"arms": [TinyLM(CONFIG), TinyLM(TinyConfig(vocab=9))]}, "arm 1 has other parameters"),
    ],
)
def test_impossible_arguments_are_named(wrong, said):
    arms = [TinyLM(CONFIG, seed=s) for s in range(3)]
    with pytest.raises(ValueError, match=said):
        train_many(**{"arms": arms, "data": _together, "steps": 1, "lr": 1e-2, **wrong})
