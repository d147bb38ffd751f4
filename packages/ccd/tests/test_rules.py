"""The rules against their formulas, written out plainly for one row."""

from __future__ import annotations

import pytest
import torch
from icml_ccd import CCD, CCDPlus, ExactDenoiser, Sudoku, decode
from icml_ccd.coherent_plus import context_weights
from icml_ccd.context_buffer import ContextBuffer
from icml_ccd.rules import RULES, make_rule
from icml_ccd.small_languages import sudoku_grids
from icml_ccd.tasks import masked_out


def noisy(seed=0, sigma=1.2):
    return ExactDenoiser(sudoku_grids(), sigma, seed, vocab=4, floor=0.01)


def puzzle(seed):
    return masked_out(Sudoku(), 1, seed=seed)[0]


def entropy(p):
    return -(p * p.log().nan_to_num(neginf=0.0)).sum(-1)


def plain_ccd(model, ids, d, V, budget=1, eps=None, warmup=None, least=2):
    """Algorithm of the paper in lists, one row: ids, and the step of every position."""
    ids, warmup = ids[0].clone(), d if warmup is None else warmup
    buffers, step_of, step = [], {}, 0
    while bool((ids == 4).any()):
        p = torch.softmax(model(ids[None])[0].float(), -1)
        masked = (ids == 4).nonzero()[:, 0].tolist()
        local = {i: -float(entropy(p[i])) for i in masked}
        surest = sorted(masked, key=lambda i: (-local[i], -float(p[i].max()), i))
        buffers = [*buffers, {i: p[i] for i in surest[:V]}][-d:]
        need = len(buffers) if least is None else min(least, len(buffers))
        common = [i for i in buffers[-1] if sum(i in held for held in buffers) >= need]
        if step < warmup:
            common = []
        mean = {i: torch.stack([held[i] for held in buffers if i in held]).mean(0) for i in common}
        ranked = sorted(common, key=lambda i: float(entropy(mean[i]))) + [
            i for i in surest if i not in common
        ]
        accepted = ranked[:budget]
        if eps is not None:
            accepted = [i for i in common if float(entropy(mean[i])) <= eps] or accepted
        for i in accepted:
            ids[i] = (mean[i] if i in mean else p[i]).argmax()
            step_of[i] = step
        step += 1
    return ids, step_of


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("least", [2, None, 1])
@pytest.mark.parametrize(
    ("d", "V", "budget", "warmup"),
    [(3, 4, 1, None), (2, 4, 1, 0), (3, 4, 3, None), (4, 3, 2, 1), (1, 8, 1, 0)],
)
def test_ccd_is_the_algorithm_of_the_paper(seed, d, V, budget, warmup, least):
    model, ids = noisy(seed), puzzle(seed)
    expected, step_of = plain_ccd(model, ids, d, V, budget, warmup=warmup, least=least)
    options = {"warmup": warmup, "least": least}
    out = decode(model, ids, rule="ccd", d=d, V=V, budget=budget, infill=True, rule_options=options)
    assert torch.equal(out.sequences[0], expected)
    assert {i: s for i, s in enumerate(out.trace.step[0].tolist()) if s >= 0} == step_of


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("least", [2, None])
@pytest.mark.parametrize("eps", [0.0, 0.3, 0.9])
def test_ccd_ds_is_the_algorithm_of_the_paper(seed, eps, least):
    model, ids = noisy(seed), puzzle(seed)
    expected, step_of = plain_ccd(model, ids, 3, 4, eps=eps, least=least)
    out = decode(model, ids, rule="ccd_ds", eps=eps, infill=True, rule_options={"least": least})
    assert torch.equal(out.sequences[0], expected)
    assert {i: s for i, s in enumerate(out.trace.step[0].tolist()) if s >= 0} == step_of


@pytest.mark.parametrize(("noise", "margin"), [(1.0, -0.03), (1.5, 0.0)])
def test_ccd_keeps_up_with_the_entropy_order_and_passes_it_with_much_noise(noise, margin):
    model = ExactDenoiser(sudoku_grids(), noise, 0, floor=0.08, vocab=4)
    ids = masked_out(Sudoku(), 400, seed=0)[0]

    def valid(rule):
        found = decode(model, ids, rule=rule, budget=1, infill=True).sequences
        return Sudoku().check(ids, found).double().mean().item()

    assert valid("ccd") >= valid("neg_entropy") + margin


def test_a_position_that_missed_a_step_is_averaged_over_those_in_which_it_stood():
    """The third position drops out of a buffer of two in the second step and comes back in the third."""
    sureness = {4: (1.0, 2.0, 5.0, 9.0), 3: (4.0, 5.0, 1.0, 0.0), 2: (2.0, 0.0, 3.0, 0.0)}

    def model(ids):
        hidden = int((ids == 9).sum())
        logits = torch.zeros(1, 4, 3)
        logits[0, :, 1] = torch.tensor(sureness.get(hidden, (1.0,) * 4))
        return logits

    def third_step(least):
        seen = []
        decode(
            model,
            torch.empty(1, 0).long(),
            4,
            rule=CCD(3, 2, warmup=2, least=least),
            mask_id=9,
            shift_logits=False,
            callback=lambda step, state, chosen: seen.append(chosen),
        )
        return seen[2]

    p = torch.softmax(torch.tensor([[0.0, x, 0.0] for x in (5.0, 3.0)]), 1)
    assert third_step(2).mixed_entropy[0, 2].item() == pytest.approx(float(entropy(p.mean(0))), rel=1e-5)
    assert torch.isnan(third_step(None).mixed_entropy[0, 2])


def test_with_one_context_ccd_is_the_entropy_order():
    model, ids = noisy(2), masked_out(Sudoku(), 20, seed=1)[0]
    ccd = decode(model, ids, rule="ccd", d=1, budget=1, infill=True, rule_options={"warmup": 0})
    entropy_order = decode(model, ids, rule="neg_entropy", infill=True)
    assert torch.equal(ccd.trace.step, entropy_order.trace.step)
    assert torch.equal(ccd.sequences, entropy_order.sequences)


def plain_released(model, ids, n, ratio=4, warmup=5, seek=True):
    """The released loop, as it reads: one row, greedy."""
    ids = ids[0].clone()
    length = len(ids)
    most, buffer, before, step = n + int(n * ratio), None, None, 0
    while bool((ids == 4).any()):
        p = torch.softmax(model(ids[None])[0].float(), -1)
        masked = (ids == 4).nonzero()[:, 0].tolist()
        surest = sorted(masked, key=lambda i: (float(entropy(p[i])), -float(p[i].max()), i))
        width = min(most, 1 + max(step - warmup, 0))
        if len(masked) <= 0.1 * length:
            width = 1
        accepted = surest[:n]
        if step >= warmup and buffer is not None and set(accepted) & set(buffer):
            agree = [i for i in surest[:width] if i in buffer and int(p[i].argmax()) == before[i]]
            if len(agree) >= min(n, len(masked)):
                accepted = agree if seek else agree[:n]
        buffer = [i for i in surest if i not in accepted][:width]
        before = {i: int(p[i].argmax()) for i in masked}
        for i in accepted:
            ids[i] = p[i].argmax()
        step += 1
    return ids, step


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "seek"), [(1, True), (2, True), (1, False), (3, False)])
def test_the_released_rule_is_the_released_loop(seed, n, seek):
    model, ids = noisy(seed), masked_out(Sudoku(0), 1, seed=seed)[0]
    expected, steps = plain_released(model, ids, n, seek=seek)
    out = decode(model, ids, rule="ccd_released", budget=n, infill=True, rule_options={"seek": seek})
    assert torch.equal(out.sequences[0], expected)
    assert out.n_forward == steps


def test_the_threshold_unmasks_all_above_it_and_else_the_surest():
    model, ids = noisy(1), puzzle(1)
    seen = []
    decode(
        model,
        ids,
        rule="threshold",
        infill=True,
        rule_options={"threshold": 0.8},
        callback=lambda step, state, chosen: seen.append(
            (state.maxprob[0].clone(), chosen.accept[0].clone())
        ),
    )
    for maxprob, accept in seen:
        above = maxprob >= 0.8
        assert torch.equal(accept, above) if above.any() else accept.nonzero().item() == maxprob.argmax()


def test_agreement_needs_calm_and_confidence():
    """A model whose second position changes its mind at every step is never accepted before it must be."""

    def model(ids):
        hidden = (ids == 9).sum(1)
        logits = torch.zeros(len(ids), 4, 3)
        logits[:, :, 1] = 6.0
        logits[:, 1] = 0.0
        logits[torch.arange(len(ids)), 1, hidden % 3] = 4.0
        return logits

    out = decode(model, torch.empty(1, 0).long(), 4, rule="klass", mask_id=9, shift_logits=False)
    assert out.trace.step[0, 1] == out.trace.step.max()
    assert out.trace.reasons()[1] == "fallback"


def test_the_buffer_holds_no_distribution_of_a_position_that_is_decided_and_none_of_another_block():
    held = []

    class Watched(CCD):
        def select(self, state):
            chosen = super().select(state)
            places = self.buffer.positions[self.buffer.positions >= 0]
            assert state.masked[0, places].all(), "a decided position is still stored"
            held.append((state.step, self.buffer.steps))
            return chosen

    def model(ids):
        return torch.randn(1, ids.shape[1], 5, generator=torch.Generator().manual_seed(int(ids.sum())))

    decode(model, torch.empty(1, 0).long(), 12, rule=Watched(), mask_id=9, shift_logits=False, block_length=6)
    assert held == [(step, step + 1) for step in [*range(6), *range(6)]]


def test_the_trace_explains_by_contexts():
    out = decode(noisy(3), puzzle(3), rule="ccd", infill=True)
    reasons = out.trace.reasons()
    assert reasons.count("warm-up") == 3
    assert set(reasons) <= {"given", "warm-up", "context", "fill"}
    by_context = torch.tensor([r == "context" for r in reasons])[None]
    assert torch.isfinite(out.trace.jsd[by_context]).all()
    assert torch.isnan(out.trace.jsd[~by_context]).all()
    assert (out.trace.mixed_entropy[by_context] + out.trace.score[by_context]).abs().max() < 1e-6


def test_weights_of_contexts_fall_with_age_and_with_what_changed_more_than_the_rest():
    buffer = ContextBuffer(2, 3)
    p = torch.tensor([[[0.7, 0.2, 0.1]] * 3, [[0.6, 0.3, 0.1]] * 3])
    p[1, 2] = torch.tensor([0.01, 0.01, 0.98])  # the third position has learned something

    class State:
        masked = torch.ones(1, 3, dtype=torch.bool)
        logits = torch.zeros(3, 3)
        lse = torch.zeros(1, 3)

        def __init__(self, table):
            self.table = table

        def logp(self, b, n, out):
            return out.copy_(self.table[n].log())

    order = torch.arange(3)[None]
    for table in p:
        buffer.push(State(table), order)
    weights = context_weights(buffer, buffer.candidates(), gamma=0.9)[0]
    assert weights[:, 0].tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(weights[:2, 1], torch.full((2,), 0.45))
    assert weights[2, 1] < 0.02


@pytest.mark.filterwarnings("ignore:V=2 positions are kept and 3 unmasked")
@pytest.mark.parametrize("token", [0, 1, 2])
def test_a_group_of_ccd_plus_is_filled_by_the_best_local_scores_whatever_the_token(token):
    # Two averages; the third position is surer than the last two, whose token must not count.
    best, peak = torch.tensor([1, 1, 2, token, token]), torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    logits = torch.zeros(1, 5, 4).scatter_(2, best[None, :, None], peak[None, :, None])
    options = {"rule": "ccd_plus", "V": 2, "budget": 3, "mask_id": 4, "shift_logits": False}
    out = decode(lambda _: logits, torch.zeros(1, 0, dtype=torch.int64), 5, **options)
    assert out.trace.step[0].tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(out.sequences[0], best)


def test_without_noise_ccd_plus_follows_the_posterior():
    """Where the model is exact, an average of stale contexts must not change the outcome."""
    ids = masked_out(Sudoku(), 50, seed=2)[0]
    model = ExactDenoiser(sudoku_grids(), vocab=4)
    plus = decode(model, ids, rule="ccd_plus", budget=1, infill=True)
    assert Sudoku().check(ids, plus.sequences).all()


def test_a_changed_token_keeps_a_position_out_of_a_group():
    """Two positions, sure of a token that flips with every step: a group never takes both."""

    def model(ids):
        logits = torch.zeros(1, 4, 3)
        logits[0, :2, 1] = 8.0
        logits[0, 2:, int((ids == 9).sum()) % 3] = 8.0
        return logits

    ids = torch.empty(1, 0).long()
    options = {"mask_id": 9, "shift_logits": False}
    plus = decode(model, ids, 4, rule=CCDPlus(eps=0.5), **options)
    first = plus.trace.step[0]
    assert first[2] != first[3]


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_says_its_settings(name):
    rule = make_rule(name)
    assert rule.name == name
    out = decode(noisy(), puzzle(0), rule=rule, infill=True)
    assert rule.settings().items() <= out.trace.settings.items()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("threshold", {"threshold": 1.5}, "threshold=1.5 is no probability"),
        ("klass", {"history": 0}, "history=0 is at least 1"),
        ("ccd", {"warmup": -1}, "warmup=-1 is negative"),
        ("ccd_ds", {"least": 0}, "least=0 contexts; at least 1 is needed"),
        ("ccd_released", {"expand_ratio": -1.0}, "expand_ratio=-1.0"),
        ("ccd_plus", {"gamma": 0.0}, "gamma=0.0 lies outside"),
        ("ccd_plus", {"eps": float("nan")}, "eps=nan"),
        ("random", {"d": 3}, "the rule 'random' takes no options, not d"),
        ("ccd", {"width": 3}, "takes V, d, least, warmup, not width"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_rule(name, **options)
