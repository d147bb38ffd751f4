"""Training: the optimizer's own steps, resumed runs bit for bit, interrupts, and what is refused."""

import math

import pytest
import torch
from icml_core.errors import UnknownNameError
from icml_lm.schedules import factor
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.training import CHECKPOINT, NonFiniteLoss, make_optimizer, train

CONFIG = TinyConfig(vocab=11, d=16, heads=2, layers=1)


def _batch(step):
    ids = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
    return {"input_ids": ids, "labels": ids}


class Dropped(TinyLM):
    """A model that draws at random while it trains."""

    def forward(self, *args, **inputs):
        out = super().forward(*args, **inputs)
        if out.loss is not None and self.training:
            out.loss = out.loss * (0.5 + torch.rand(()))
        return out


def _same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_steps_are_those_of_a_plain_loop():
    model, other = TinyLM(CONFIG), TinyLM(CONFIG)
    log = train(model, _batch, steps=6, lr=1e-2, schedule="linear", warmup=2, clip=0.5, weight_decay=0.1)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
    losses = []
    for step in range(6):
        rate = 1e-2 * ((step + 1) / 2 if step < 2 else 1 - (step - 2) / 4)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = other(**_batch(step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    assert _same(model, other)
    assert log.loss == losses
    assert log.steps == 6


def test_a_resumed_training_is_the_whole_one_bit_for_bit(tmp_path):
    whole, parts = Dropped(CONFIG), Dropped(CONFIG)
    data = [_batch(i) for i in range(3)]
    options = {"lr": 1e-2, "seed": 5, "warmup": 2}
    state = torch.get_rng_state()
    expected = train(whole, data, steps=8, **options)
    assert torch.equal(state, torch.get_rng_state())
    stop = lambda step, figures, model: step == 4  # noqa: E731
    first = train(parts, data, steps=8, callbacks=[stop], checkpoint=tmp_path, **options)
    assert first.stopped
    assert first.steps == 5
    again = Dropped(CONFIG, seed=9)
    log = train(again, data, steps=8, checkpoint=tmp_path, **options)
    assert log.steps == 5  # stopped by a callback: it stays stopped
    (tmp_path / CHECKPOINT).unlink()

    def interrupt(step, figures, model):
        if step == 4:
            raise KeyboardInterrupt

    fresh = Dropped(CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train(fresh, data, steps=8, callbacks=[interrupt], checkpoint=tmp_path, **options)
    again = Dropped(CONFIG, seed=9)
    log = train(again, data, steps=8, checkpoint=tmp_path, **options)
    assert log.resumed_from == 5
    assert _same(again, whole)
    assert log.loss == expected.loss
    assert log.lr == expected.lr


def test_an_interrupt_within_a_step_keeps_the_last_whole_step(tmp_path):
    interrupted = []

    def loss(model, batch):
        found = model(**batch).loss  # draws
        if len(interrupted) == 3:
            raise KeyboardInterrupt
        interrupted.append(1)
        return found

    options = {"steps": 6, "lr": 1e-2, "schedule": "constant"}
    with pytest.raises(KeyboardInterrupt):
        train(Dropped(CONFIG), _batch, loss, checkpoint=tmp_path, **options)
    resumed = Dropped(CONFIG, seed=3)
    log = train(resumed, _batch, checkpoint=tmp_path, **options)
    assert log.resumed_from == 3
    whole = Dropped(CONFIG)
    expected = train(whole, _batch, **options)
    assert _same(resumed, whole)
    assert log.loss == expected.loss


def test_an_interrupt_within_an_update_keeps_no_half_updated_weights(tmp_path):
    class Cut(torch.optim.SGD):
        left = 3

        def step(self, closure=None):
            super().step(closure)
            Cut.left -= 1
            if Cut.left == 0:
                raise KeyboardInterrupt

    options = {"steps": 6, "lr": 1e-2, "optimizer": lambda p, lr, weight_decay: Cut(p, lr=lr)}
    with pytest.raises(KeyboardInterrupt):
        train(TinyLM(CONFIG), _batch, checkpoint=tmp_path, checkpoint_every=1, **options)
    resumed, whole = TinyLM(CONFIG, seed=3), TinyLM(CONFIG)
    log = train(resumed, _batch, checkpoint=tmp_path, **options)
    train(whole, _batch, steps=6, lr=1e-2, optimizer="sgd")
    assert log.resumed_from == 2
    assert _same(resumed, whole)


def test_a_loss_that_is_no_number_is_named_with_its_step(tmp_path):
    def loss(model, batch):
        found = model(**batch).loss
        return found * math.nan if batch["step"] == 3 else found

    def batches(step):
        return {**_batch(step), "step": step}

    def without_step(model, batch):
        return loss(lambda **b: model(**{k: v for k, v in b.items() if k != "step"}), batch)

    model = TinyLM(CONFIG)
    with pytest.raises(NonFiniteLoss, match="nan at step 3") as caught:
        train(model, batches, without_step, steps=6, lr=1e-2, checkpoint=tmp_path, checkpoint_every=2)
    assert caught.value.step == 3
    again = train(TinyLM(CONFIG), batches, without_step, steps=2, lr=1e-2, checkpoint=tmp_path)
    assert again.resumed_from == 2


def test_figures_progress_and_frozen_weights():
    model = TinyLM(CONFIG)
    model.model.embed_tokens.weight.requires_grad_(False)
    before = model.model.embed_tokens.weight.clone()
    seen = []

    class Progress:
        def advance(self, step, **figures):
            seen.append((step, figures["loss"]))

    log = train(
        model,
        _batch,
        lambda m, b: (m(**b).loss, {"tokens": b["input_ids"].numel()}),
        steps=3,
        lr=1e-2,
        progress=Progress(),
    )
    assert torch.equal(before, model.model.embed_tokens.weight)
    assert log.figures == {"tokens": [24.0] * 3}
    assert [s for s, _ in seen] == [1, 1, 1]


def test_optimizers_by_name_and_by_factory():
    weights = [torch.nn.Parameter(torch.ones(3))]
    assert type(make_optimizer(weights, "sgd", lr=0.1)) is torch.optim.SGD
    made = make_optimizer(weights, lambda p, lr, weight_decay: torch.optim.Adam(p, lr=2 * lr), lr=0.1)
    assert made.param_groups[0]["lr"] == 0.2
    with pytest.raises(UnknownNameError, match="no optimizer 'adan'"):
        make_optimizer(weights, "adan", lr=0.1)
    with pytest.raises(UnknownNameError, match="nobody"):
        make_optimizer(weights, "nobody.here", lr=0.1)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    train(TinyLM(CONFIG), _batch, steps=1, lr=1e-2, optimizer="sgd", checkpoint=tmp_path)
    with pytest.raises(ValueError, match="optimizer was 'SGD', now 'AdamW'"):
        train(TinyLM(CONFIG), _batch, steps=2, lr=1e-2, checkpoint=tmp_path)
    wider = TinyLM(TinyConfig(vocab=CONFIG.vocab, d=2 * CONFIG.d))
    with pytest.raises(ValueError, match="weights"):
        train(wider, _batch, steps=2, lr=1e-2, optimizer="sgd", checkpoint=tmp_path)


def test_an_optimizer_of_a_plug_in(monkeypatch):
    from types import SimpleNamespace

    from icml_core import Component
    from icml_core.registry import Registry

    component = Component("some.rms", "torch.optim:RMSprop", summary="one", implements=("TorchOptimizer",))
    registry = SimpleNamespace(entry=lambda name: SimpleNamespace(component=component))
    monkeypatch.setattr(Registry, "discover", classmethod(lambda cls: registry))
    weights = [("weight", torch.nn.Parameter(torch.ones(1)))]
    assert type(make_optimizer(weights, "some.rms", lr=0.1)) is torch.optim.RMSprop


def test_schedules():
    assert [factor("constant", s, 4, 2) for s in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert [factor("linear", s, 4) for s in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert factor("cosine", 2, 4) == pytest.approx(0.5)
    assert factor(lambda done: 3 * done, 3, 4) == pytest.approx(2.25)
    with pytest.raises(ValueError, match="no schedule 'step'"):
        factor("step", 0, 4)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "steps=0"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"batches": []}, "no batch"),
    ],
)
def test_impossible_arguments_are_named(wrong, said):
    model = TinyLM(CONFIG)
    with pytest.raises(ValueError, match=said):
        train(model, **{"batches": _batch, "steps": 1, "lr": 1e-3, **wrong})
    with pytest.raises(ValueError, match="requires a gradient"):
        train(model.requires_grad_(False), _batch, steps=1, lr=1e-3)
    with pytest.raises(TypeError, match="no loss"):
        train(TinyLM(CONFIG), lambda s: {"input_ids": _batch(s)["input_ids"]}, steps=1, lr=1e-3)
    with pytest.raises(TypeError, match="scalar"):
        train(TinyLM(CONFIG), _batch, lambda m, b: 3.0, steps=1, lr=1e-3)
