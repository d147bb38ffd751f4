"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from icml_core import Example


def tiny_mdm(seed: int) -> Example:
    """Two layers over ten tokens and a mask."""
    import torch

    from icml_ccd.tiny_mdm import MDMConfig, TinyMDM

    def ids() -> Any:
        found = torch.randint(10, (2, 6), generator=torch.Generator().manual_seed(seed))
        found[:, 3:] = 10
        return found

    def check(logits: Any) -> None:
        assert logits.shape == (2, 6, 11)

    config = MDMConfig(11, 10, d=16, layers=2, heads=2, positions=6)
    return Example(
        build=lambda: TinyMDM(config, seed=seed),
        inputs=ids,
        call=lambda model, given: model(given),
        check=check,
        bad=lambda: torch.zeros(2, 7, dtype=torch.int64),
    )


def exact_denoiser(seed: int) -> Example:
    """Three letters in any order."""
    from itertools import permutations

    import torch

    from icml_ccd.exact_denoiser import ExactDenoiser

    def check(logits: Any) -> None:
        assert torch.allclose(logits[0, 1].exp(), torch.tensor([0.0, 0.5, 0.5]))

    return Example(
        build=lambda: ExactDenoiser(list(permutations(range(3))), seed=seed),
        inputs=lambda: torch.tensor([[0, 3, 3]]),
        call=lambda denoiser, ids: denoiser(ids),
        check=check,
        bad=lambda: torch.tensor([[0, 3]]),
    )


def hidden_markov(seed: int) -> Example:
    """A masked token between two visible ones."""
    import torch

    from icml_ccd.hidden_markov import HiddenMarkovDenoiser

    def check(logits: Any) -> None:
        assert torch.allclose(logits.exp().sum(-1), torch.ones(1, 3))

    return Example(
        build=lambda: HiddenMarkovDenoiser.random(3, 4, seed=seed),
        inputs=lambda: torch.tensor([[0, 4, 2]]),
        call=lambda denoiser, ids: denoiser(ids),
        check=check,
    )


def decoder(seed: int) -> Example:
    """Eight tokens behind a prompt, by a model that counts."""
    import torch

    from icml_ccd.masked_decoder import MaskedDecoder

    def counting(ids: Any) -> Any:
        """A position's token is its place modulo 7, more surely so beside a token that is there."""
        place = torch.arange(ids.shape[1]) % 7
        beside = torch.nn.functional.pad((ids != 9).float(), (1, 0))[:, :-1]
        return (2.0 + beside)[..., None] * torch.nn.functional.one_hot(place, 8)

    def check(ids: Any) -> None:
        assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 0], [3, 4, 5, 3, 4, 5, 6, 0]]

    return Example(
        build=lambda: MaskedDecoder(counting, "ccd", mask_id=9, shift_logits=False),
        inputs=lambda: {"input_ids": torch.tensor([[0, 1, 2], [3, 4, 5]])},
        call=lambda made, given: made.generate(given["input_ids"], max_new_tokens=5),
        check=check,
        bad=lambda: {"input_ids": torch.tensor([[0, 9, 2]])},
    )


def _rule(name: str, seed: int) -> Example:
    """Two steps of one rule over four candidates."""
    import torch

    from icml_ccd.rules import make_rule
    from icml_ccd.step_state import StepState

    def inputs() -> Any:
        generator = torch.Generator().manual_seed(seed)
        return {"logits": 3 * torch.randn(2, 4, 6, generator=generator)}

    def state(logits: Any, step: int) -> Any:
        logp = torch.log_softmax(logits, 1)
        p = logp.exp()
        return StepState(
            masked=torch.ones(1, 4, dtype=torch.bool),
            neg_entropy=(p * logp).sum(1)[None],
            maxprob=p.max(1).values[None],
            argmax=p.argmax(1)[None],
            lse=logits.logsumexp(1)[None],
            logits=logits,
            row_of=torch.arange(4)[None],
            score_temperature=1.0,
            exclude=-1,
            budget=torch.ones(1, dtype=torch.int64),
            undecided=torch.full((1,), 4),
            length=4,
            step=step,
            order_keys=torch.tensor([[0.3, 0.9, 0.1, 0.5]]),
        )

    def call(rule: Any, given: Any) -> Any:
        if not torch.isfinite(given["logits"]).all():
            raise ValueError("logits that are not finite")
        rule.reset()
        return [rule.select(state(logits, step)).accept for step, logits in enumerate(given["logits"])]

    def check(accepted: Any) -> None:
        assert all(int(accept.sum()) >= 1 for accept in accepted)

    return Example(
        build=lambda: make_rule(name),
        inputs=inputs,
        call=call,
        check=check,
        bad=lambda: {"logits": torch.full((1, 4, 6), torch.nan)},
    )


def rule_confidence(seed: int) -> Example:
    """The most probable token first."""
    return _rule("confidence", seed)


def rule_neg_entropy(seed: int) -> Example:
    """The lowest entropy first."""
    return _rule("neg_entropy", seed)


def rule_margin(seed: int) -> Example:
    """The largest margin first."""
    return _rule("margin", seed)


def rule_left_to_right(seed: int) -> Example:
    """The leftmost first."""
    return _rule("left_to_right", seed)


def rule_random(seed: int) -> Example:
    """Any first."""
    return _rule("random", seed)


def rule_threshold(seed: int) -> Example:
    """Everything above a probability."""
    return _rule("threshold", seed)


def rule_klass(seed: int) -> Example:
    """Everything that is sure and has stopped changing."""
    return _rule("klass", seed)


def rule_ccd(seed: int) -> Example:
    """What recent contexts agree on."""
    return _rule("ccd", seed)


def rule_ccd_ds(seed: int) -> Example:
    """Everything that recent contexts agree on."""
    return _rule("ccd_ds", seed)


def rule_ccd_released(seed: int) -> Example:
    """What two steps name alike."""
    return _rule("ccd_released", seed)


def rule_ccd_plus(seed: int) -> Example:
    """Weighted contexts."""
    return _rule("ccd_plus", seed)


def training(seed: int) -> Example:
    """Six steps on rows that count; stopped after three and resumed it is the same training."""
    import torch

    from icml_ccd.tiny_mdm import MDMConfig
    from icml_ccd.training import MaskedDiffusionTraining

    data = (torch.arange(6) + torch.arange(8)[:, None]) % 8
    config = MDMConfig(9, 8, d=16, layers=1, heads=2, positions=6)

    def build() -> Any:
        return MaskedDiffusionTraining(data, config, steps=6, batch=8, lr=1e-2, seed=seed)

    def resumed(made: Any, given: None, folder: Path) -> list[float]:
        def stop(step: int, figures: Any, model: Any) -> None:
            if step == 2:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            made.fit(checkpoint=folder, callbacks=[stop])
        losses: list[float] = build().fit(checkpoint=folder).log_.loss
        return losses

    def check(losses: list[float]) -> None:
        assert len(losses) == 6

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda made, given: made.fit().log_.loss,
        check=check,
        resumed=resumed,
    )


def bench(seed: int) -> Example:
    """Two decoders on six exact sudokus."""
    from icml_ccd.bench import Bench
    from icml_ccd.exact_denoiser import ExactDenoiser
    from icml_ccd.small_languages import sudoku_grids
    from icml_ccd.tasks import Addition, Sudoku

    configs = {"entropy": {"rule": "neg_entropy"}, "ccd": {"rule": "ccd"}}

    def check(figures: Any) -> None:
        assert figures["sudoku/ccd: accuracy"] == figures["sudoku/entropy: accuracy"] == 1.0

    return Example(
        build=lambda: Bench(configs, n=6, seeds=(seed,)),
        inputs=lambda: Sudoku(),
        call=lambda made, task: made.evaluate(ExactDenoiser(sudoku_grids(), vocab=4), task=task),
        check=check,
        bad=lambda: Addition(),
    )


def likelihood(seed: int) -> Example:
    """Three letters of which each is there once: log 6, whatever is masked."""
    import math
    from itertools import permutations

    import torch

    from icml_ccd.exact_denoiser import ExactDenoiser
    from icml_ccd.likelihood import loglik

    def check(bound: Any) -> None:
        assert abs(bound.value + math.log(6)) < 1e-5

    return Example(
        build=lambda: ExactDenoiser(list(permutations(range(3))), seed=seed),
        inputs=lambda: torch.tensor([2, 0, 1]),
        call=lambda model, answer: loglik(
            model, torch.empty(0, dtype=torch.int64), answer, n_orders=2, generator=seed
        ),
        check=check,
        bad=lambda: torch.tensor([2, 3, 1]),
    )
