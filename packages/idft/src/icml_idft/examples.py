"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from icml_core import Example


def cll(seed: int) -> Example:
    """Texts of a model that can be enumerated: it takes them for its own."""
    from icml_idft.centred import CentredLogLikelihood
    from icml_idft.tabular import TabularLM

    def inputs() -> Any:
        model = TabularLM.random(12, seed=seed)
        return model, model.sample(300, 9, seed=seed)

    def call(evaluator: Any, given: Any) -> Any:
        return evaluator.evaluate(*given)

    def check(figures: Any) -> None:
        assert abs(figures["phi"]) < 0.1
        assert figures["tokens"] == 2400

    return Example(
        build=CentredLogLikelihood,
        inputs=inputs,
        call=call,
        check=check,
        bad=lambda: (inputs()[0], inputs()[1][:, :1]),
    )


def loss(seed: int) -> Example:
    """Random logits: the loss lies below the cross-entropy."""
    import torch

    from icml_idft.loss import IDFTLoss

    def inputs() -> Any:
        generator = torch.Generator().manual_seed(seed)
        return (
            torch.randn(2, 5, 7, generator=generator),
            torch.randint(7, (2, 5), generator=generator),
        )

    def check(value: Any) -> None:
        logits, labels = inputs()
        plain = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        assert 0 < float(value) < float(plain)

    return Example(
        build=IDFTLoss,
        inputs=inputs,
        call=lambda rule, given: rule(*given),
        check=check,
        bad=lambda: (inputs()[0], inputs()[1] + 7),
        expected_failures={"Loss-gradient": "the weights are held fixed by the derivative"},
    )


def _model(seed: int) -> Any:
    from icml_lm import TinyConfig, TinyLM
    from icml_lm.tasks.digit_ops import tokenizer

    return TinyLM(TinyConfig(vocab=len(tokenizer()), d=16, layers=1, heads=2), seed=seed).eval()


def finetune(seed: int) -> Example:
    """Eight demonstrations, twice; in two halves the weights are the same."""
    from icml_idft.finetuning import FineTuning
    from icml_idft.skills import KNOWN, demonstrations

    def inputs() -> Any:
        rows = [row._asdict() for row in demonstrations(KNOWN[0], 8, seed=seed)]
        return _model(seed), rows

    def call(trainer: Any, given: Any) -> Any:
        import copy

        model, log = trainer.fit(copy.deepcopy(given[0]), given[1])
        return dict(model.state_dict()), log.loss

    def resumed(trainer: Any, given: Any, directory: Any) -> Any:
        import copy

        def stop(step: int, figures: Any, model: Any) -> None:
            if step == 2:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            trainer.fit(copy.deepcopy(given[0]), given[1], checkpoint=directory, callbacks=[stop])
        model, log = trainer.fit(_model(seed + 1), given[1], checkpoint=directory)
        return dict(model.state_dict()), log.loss

    def check(result: Any) -> None:
        assert len(result[1]) == 6

    return Example(
        build=lambda: FineTuning("idft", lr=1e-3, epochs=3, batch=4, advice=False),
        inputs=inputs,
        call=call,
        check=check,
        bad=lambda: (inputs()[0], [{"input_ids": [1, 2, 999], "labels": [1, 2, 999]}]),
        resumed=resumed,
    )


def _decoder(seed: int) -> Any:
    from icml_lm.tasks.digit_ops import tokenizer

    from icml_idft.hint_world import hinted_prompt
    from icml_idft.hinted import HintedDecoder

    return HintedDecoder(
        _model(seed), tokenizer(), split=None, hinted_prompt=hinted_prompt, beta=0.5, temperature=1.0
    )


def hinted(seed: int) -> Example:
    """Rewrites by an untrained model."""

    def call(sampler: Any, n: int) -> Any:
        return sampler.sample(n, seed=seed)

    def check(found: Any) -> None:
        assert len(found) == 3
        assert all(len(f.ids) <= 6 and 0 < f.lam_mean <= 1 for f in found if len(f.ids) > 1)

    return Example(
        build=lambda: _decoder(seed).of("ADD . 1 2 3 =", "2 3 4", max_new_tokens=6),
        inputs=lambda: 3,
        call=call,
        check=check,
        bad=lambda: -1,
    )


def realign(seed: int) -> Example:
    """Rows that an untrained model cannot rewrite: all of them stay as they were."""
    from icml_idft.hint_world import right, rows
    from icml_idft.realignment import Realignment

    data = rows(3, seed=seed)

    def check(found: Any) -> None:
        assert [f["response"] for f in found] == [row["response"] for row in data]
        assert not any(f["realigned"] for f in found)

    return Example(
        build=lambda: Realignment(data, _decoder(seed), right, max_new_tokens=12, retries=1, phi_min=-100.0),
        inputs=lambda: 3,
        call=lambda sampler, n: sampler.sample(n, seed=seed),
        check=check,
        bad=lambda: -1,
    )
