"""The decoder: what it writes, in which order, at what cost, whatever is asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_ccd import CCD, ExactDenoiser, MDMConfig, Sudoku, TinyMDM, decode, make_rule
from icml_ccd.rules import RULES
from icml_ccd.small_languages import sudoku_grids, valid_sudoku
from icml_ccd.tasks import masked_out

EMPTY = torch.empty(1, 0, dtype=torch.int64)
DYNAMIC = ("threshold", "klass", "ccd_ds")


class Scripted:
    """Logits that only the position decides: how sure it is, and of which token."""

    mask_id, shift_logits = 9, False

    def __init__(self, sureness, tokens, vocab=6):
        logits = torch.zeros(len(tokens), vocab)
        logits[torch.arange(len(tokens)), torch.tensor(tokens)] = torch.tensor(sureness, dtype=torch.float32)
        self.logits, self.calls = logits, 0

    def __call__(self, ids):
        self.calls += 1
        return self.logits[: ids.shape[1]].expand(len(ids), -1, -1)


def grids(n=12, clues=4, seed=0):
    return masked_out(Sudoku(clues), n, seed=seed)[0]


def denoiser(noise=0.0, seed=0):
    return ExactDenoiser(sudoku_grids(), noise, seed, vocab=4, floor=0.01 if noise else 0.0)


@pytest.mark.parametrize("rule", ["confidence", "neg_entropy", "margin"])
def test_the_surest_position_comes_first(rule):
    sureness = [1.0, 4.0, 2.0, 3.0]
    out = decode(Scripted(sureness, [1, 2, 3, 4]), EMPTY, 4, rule=rule)
    assert out.sequences.tolist() == [[1, 2, 3, 4]]
    assert out.trace.step.tolist() == [[3, 0, 2, 1]]
    assert out.n_forward == 4


def test_left_to_right_is_left_to_right_and_random_is_not():
    model = Scripted([1.0] * 12, list(range(6)) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = decode(model, EMPTY, 12, rule="left_to_right")
        assert out.trace.step.tolist() == [list(range(12))]
        orders = {
            tuple(decode(model, EMPTY, 12, rule="random", generator=s).trace.step[0].tolist())
            for s in range(4)
        }
    assert len(orders) == 4
    assert out.trace.order_correlation() == [pytest.approx(1.0)]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_noise_one_token_a_step_always_gives_a_valid_grid(rule):
    """Every token of an exact posterior leaves a consistent grid."""
    given_ids = grids()
    options = {} if rule in DYNAMIC else {"budget": 1}
    if rule in DYNAMIC or rule in ("ccd_released", "ccd_plus"):
        options |= {"rule_options": {"threshold": 1.0}} if rule == "threshold" else {}
        options |= {"eps": 0.0} if rule == "ccd_ds" else {}
    if rule == "klass":
        options["rule_options"] = {"divergence": 0.0}
    if rule == "ccd_released":
        options["rule_options"] = {"seek": False}
    out = decode(denoiser(), given_ids, rule=rule, infill=True, **options)
    assert valid_sudoku(out.sequences).all()
    kept = given_ids != 4
    assert torch.equal(out.sequences[kept], given_ids[kept])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 12),
    rows=st.integers(1, 4),
    blocks=st.sampled_from([1, 2, 3]),
    rule=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 14),
    fraction=st.floats(0, 1),
    by_steps=st.booleans(),
)
def test_schedules_add_up(n, rows, blocks, rule, seed, budget, fraction, by_steps):
    """No mask is left, every position is decided once, a row takes part in at most N forwards."""
    length = n * blocks
    table = 3 * torch.randn(rows, length + 2, 5, generator=torch.Generator().manual_seed(seed))
    prompt = torch.randint(4, (rows, 2), generator=torch.Generator().manual_seed(seed))
    options = {"block_length": n}
    if rule not in DYNAMIC:
        options |= {"steps": blocks + round(fraction * (length - blocks))} if by_steps else {"budget": budget}
    seen = []

    def model(ids):
        return table[: len(ids)] + 0.3 * (ids == 4).sum(1)[:, None, None] * table.flip(2)[: len(ids)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = decode(
            model,
            prompt,
            length,
            rule=rule,
            mask_id=4,
            shift_logits=False,
            callback=lambda step, state, chosen: seen.append((state.masked & chosen.accept).sum().item()),
            **options,
        )
    assert sum(seen) == rows * length
    assert not (out.sequences == 4).any()
    assert torch.equal(out.sequences[:, :2], prompt)
    assert out.n_forward == len(seen) <= length
    assert bool((out.trace.forwards <= length).all())
    assert bool((out.trace.step >= 0).all())
    if "steps" in options and rule != "ccd_released":
        assert out.n_forward == options["steps"]
    order = out.trace.step.view(rows, blocks, n)
    assert bool((order[:, 1:].amin(2) > order[:, :-1].amax(2)).all())


def test_steps_are_spread_over_blocks_with_the_remainder_first():
    model = Scripted(list(range(1, 11)), [1] * 10)
    out = decode(model, EMPTY, 10, 5, "confidence", block_length=5)
    assert out.trace.step.tolist() == [[2, 1, 1, 0, 0, 4, 4, 3, 3, 3]]
    assert out.trace.settings["steps_of_blocks"] == (3, 2)


def test_a_budget_larger_than_what_is_masked_is_cut():
    assert decode(Scripted([1.0] * 3, [1, 2, 3]), EMPTY, 3, rule="ccd", budget=50).n_forward == 1


def test_the_buffer_is_wider_than_the_tokens_of_a_step():
    model = Scripted(list(range(1, 17)), [1, 2, 3, 4] * 4)
    widths = {
        decode(model, EMPTY, 16, rule="ccd", **asked).trace.settings["V"]
        for asked in ({"budget": 6}, {"steps": 3})
    }
    assert widths == {12}
    assert decode(model, EMPTY, 16, rule="ccd_ds").trace.settings["V"] == 4
    with pytest.warns(UserWarning, match="V=2 positions are kept and 2 unmasked a step"):
        narrow = decode(model, EMPTY, 16, rule="ccd", V=2, budget=2)
    assert "context" not in narrow.trace.reasons()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(model, EMPTY, 16, rule="ccd", V=3, budget=2)
        decode(model, EMPTY, 16, rule="ccd_ds", V=1)


def test_infilling_takes_blocks_of_which_the_last_may_be_shorter():
    puzzles = grids(5, seed=2)
    out = decode(denoiser(), puzzles, rule="confidence", budget=1, block_length=6, infill=True)
    assert valid_sudoku(out.sequences).all()
    assert torch.equal(out.sequences[puzzles != 4], puzzles[puzzles != 4])
    blocks = torch.arange(16) // 6
    for row in range(5):
        step = out.trace.step[row]
        wanted = puzzles[row] == 4
        for block in (1, 2):
            later, earlier = step[wanted & (blocks == block)], step[wanted & (blocks < block)]
            assert len(later) == 0 or later.min() > earlier.max()


def test_finished_rows_do_not_change_and_take_no_part():
    puzzles = grids(3)
    puzzles[1] = sudoku_grids()[7]
    puzzles[2, 4:] = sudoku_grids()[9][4:]
    out = decode(denoiser(), puzzles, rule="neg_entropy", infill=True)
    assert torch.equal(out.sequences[1], sudoku_grids()[7])
    assert out.trace.forwards.tolist()[1] == 0
    assert out.trace.forwards[2] < out.trace.forwards[0] == 12


@pytest.mark.parametrize("rule", ["neg_entropy", "ccd", "ccd_ds", "ccd_released", "ccd_plus", "klass"])
def test_a_batch_gives_what_each_row_gives_alone(rule):
    puzzles, model = grids(6, seed=3), denoiser(1.0, seed=5)
    together = decode(model, puzzles, rule=rule, infill=True)
    for row in range(len(puzzles)):
        alone = decode(model, puzzles[row : row + 1], rule=rule, infill=True)
        assert torch.equal(alone.sequences[0], together.sequences[row])
        assert torch.equal(alone.trace.step[0], together.trace.step[row])


def test_infilling_takes_masks_anywhere_also_none_and_one():
    model = denoiser()
    grid = sudoku_grids()[3:4].clone()
    none = decode(model, grid, rule="ccd", infill=True)
    assert torch.equal(none.sequences, grid)
    assert none.n_forward == 0
    one = grid.clone()
    one[0, 6] = 4
    out = decode(model, one, rule="ccd", infill=True)
    assert torch.equal(out.sequences, grid)
    assert out.n_forward == 1
    assert torch.equal(one[0, 6], torch.tensor(4)), "the input was changed"
    with pytest.raises(ValueError, match="takes no gen_length=4"):
        decode(model, one, 4, rule="ccd", infill=True)


def test_peaked_logits_give_one_order_at_any_temperature():
    """Scores come from unsharpened logits, which do not tie."""
    sureness = [20.0, 35.0, 25.0, 30.0, 15.0]
    model = Scripted(sureness, [1, 2, 3, 4, 5])
    orders = [
        decode(model, EMPTY, 5, rule="confidence", temperature=t).trace.step.tolist() for t in (0.0, 0.1, 1.0)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_scores_sharpened_as_published_tie_and_a_warning_says_so():
    model = Scripted([20.0, 35.0, 25.0, 30.0, 18.0, 40.0], [1, 2, 3, 4, 5, 1])
    with pytest.warns(UserWarning, match=r"equal scores left \d+% of the steps"):
        out = decode(model, EMPTY, 6, rule="confidence", temperature=0.1, score_temperature="same")
    assert out.trace.step.tolist() == [list(range(6))]
    assert out.trace.steps_by_tie.item() >= 4
    assert out.trace.settings["score_temperature"] == 0.1


def test_ties_go_to_the_larger_probability_then_to_the_left():
    class Tied(Scripted):
        def __call__(self, ids):
            logits = torch.full((1, 3, 6), -torch.inf)
            logits[0, :, :2] = 0.0  # entropy log 2 at every position
            return logits

    with pytest.warns(UserWarning, match="equal scores"):
        out = decode(Tied([1.0], [0]), EMPTY, 3, rule="neg_entropy")
    assert out.trace.step.tolist() == [[0, 1, 2]]
    assert out.trace.steps_by_tie.tolist() == [2]


def test_eight_samples_of_a_uniform_model_differ_and_one_is_computed_at_temperature_0():
    model = Scripted([0.0] * 16, [0] * 16)
    with pytest.warns(UserWarning, match="equal scores"):
        out = decode(model, EMPTY, 16, rule="confidence", temperature=1.0, num_return_sequences=8)
    assert len({tuple(row) for row in out.sequences.tolist()}) == 8
    sure = Scripted([1.0, 2.0, 3.0], [1, 2, 3])
    with pytest.warns(UserWarning, match="it is computed once"):
        out = decode(sure, EMPTY, 3, rule="confidence", num_return_sequences=3)
    assert out.sequences.tolist() == [[1, 2, 3]] * 3
    assert out.trace.step.shape == (3, 3)
    assert out.n_forward == 3


def test_the_same_seed_gives_the_same_sample_and_a_row_does_not_depend_on_the_batch():
    puzzles, model = grids(4), denoiser()
    options = {"rule": "ccd", "infill": True, "temperature": 1.0}
    first = decode(model, puzzles, generator=3, **options)
    again = decode(model, puzzles, generator=torch.Generator().manual_seed(3), **options)
    assert torch.equal(first.sequences, again.sequences)
    assert torch.equal(decode(model, puzzles[:2], generator=3, **options).sequences, first.sequences[:2])
    assert not torch.equal(decode(model, puzzles, generator=4, **options).sequences, first.sequences)


def test_temperature_0_is_the_argmax_without_noise():
    model = Scripted([1e-3] * 5, [1, 2, 3, 4, 5])
    for seed in range(3):
        assert decode(model, EMPTY, 5, rule="random", generator=seed).sequences.tolist() == [[1, 2, 3, 4, 5]]


def test_a_nucleus_leaves_out_unlikely_tokens():
    class Skewed(Scripted):
        def __call__(self, ids):
            return torch.tensor([0.5, 0.3, 0.2]).log().expand(*ids.shape, 3)

    def drawn(top_p):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = decode(
                Skewed([1.0], [0]),
                EMPTY,
                4000,
                rule="confidence",
                steps=1,
                temperature=1.0,
                top_p=top_p,
            )
        return torch.bincount(out.sequences[0], minlength=3) / 4000

    torch.testing.assert_close(drawn(None), torch.tensor([0.5, 0.3, 0.2]), atol=0.03, rtol=0)
    torch.testing.assert_close(drawn(0.7), torch.tensor([0.625, 0.375, 0.0]), atol=0.03, rtol=0)
    assert drawn(0.4).tolist() == [1.0, 0.0, 0.0]


class WithEnd(Scripted):
    """Says tokens 1 to 4 and then the end token, 5, most surely: all end tokens would come first."""

    eos_id = 5

    def __init__(self, words=4, length=12):
        super().__init__(
            [3.0, 2.5, 2.0, 1.5][:words] + [8.0] * (length - words),
            [1, 2, 3, 4][:words] + [5] * (length - words),
        )


@pytest.mark.parametrize("rule", sorted(RULES))
def test_stopping_at_the_end_token_gives_the_same_text_with_fewer_forwards(rule):
    options = {"rule": rule, "block_length": 4, "eos_guard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = decode(WithEnd(), EMPTY, 12, **options)
        stopped = decode(WithEnd(), EMPTY, 12, stop_at_eos=True, **options)
    assert torch.equal(whole.sequences, stopped.sequences)
    assert stopped.n_forward < whole.n_forward
    assert stopped.report["tokens_behind_the_end"] + stopped.report["tokens"] == 12
    assert stopped.trace.reasons()[-1] == "behind the end"


def test_rows_stop_separately_and_padding_fills_up():
    lengths = {0: 2, 1: 5}

    def model(ids):
        place = torch.arange(ids.shape[1]) - 1
        words = torch.tensor([lengths[int(row[0])] for row in ids])[:, None]
        token = torch.where(place < words, 1, 5)
        return 3.0 * torch.nn.functional.one_hot(token, 6)

    out = decode(
        model,
        torch.tensor([[0], [1]]),
        12,
        rule="left_to_right",
        mask_id=9,
        eos_id=5,
        pad_id=0,
        stop_at_eos=True,
        shift_logits=False,
    )
    assert out.sequences[:, 1:].tolist() == [[1] * 2 + [5] + [0] * 9, [1] * 5 + [5] + [0] * 6]
    assert out.trace.forwards.tolist() == [3, 6]
    assert out.n_forward == 6


def test_the_guard_keeps_end_tokens_behind_the_text_and_fills_the_tail_at_once():
    free = decode(WithEnd(), EMPTY, 12, rule="confidence")
    assert free.trace.step[0, :4].min() > free.trace.step[0, 4:].max(), "end tokens came first"
    guarded = decode(WithEnd(), EMPTY, 12, rule="confidence", eos_id=5, eos_guard=True)
    assert torch.equal(guarded.sequences, free.sequences)
    assert guarded.trace.step.tolist() == [[0, 1, 2, 3] + [4] * 8]
    assert guarded.trace.reasons()[5:] == ["tail"] * 7
    plus = decode(WithEnd(), EMPTY, 12, rule="ccd_plus", budget=1, eos_id=5)
    assert plus.trace.settings["eos_guard"] is True
    assert torch.equal(plus.sequences, free.sequences)
    assert plus.n_forward == 5


def test_the_mask_token_is_never_written():
    class Masks(Scripted):
        def __call__(self, ids):
            logits = torch.zeros(*ids.shape, 10)
            logits[..., 9] = 50.0
            logits[..., 3] = 1.0
            return logits

    with pytest.warns(UserWarning, match="equal scores"):
        out = decode(Masks([1.0], [0]), EMPTY, 4, rule="ccd")
    assert out.sequences.tolist() == [[3, 3, 3, 3]]
    with pytest.warns(UserWarning, match="equal scores"):
        hot = decode(Masks([1.0], [0]), EMPTY, 4, rule="ccd", temperature=1.0)
    assert not (hot.sequences == 9).any()


def test_results_with_logits_and_bare_tensors_both_work():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    bare = Scripted([1.0, 3.0, 2.0], [1, 2, 3])
    out = decode(lambda ids: Output(bare(ids)), EMPTY, 3, rule="ccd", mask_id=9, shift_logits=False)
    assert torch.equal(out.sequences, decode(bare, EMPTY, 3, rule="ccd").sequences)


def test_decode_needs_no_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch; from icml_ccd import decode\n"
        "model = lambda ids: torch.nn.functional.one_hot(torch.arange(ids.shape[1]), 5).float()[None]\n"
        "out = decode(model, torch.empty(1, 0).long(), 4, rule='ccd', mask_id=9, shift_logits=False)\n"
        "assert out.sequences.tolist() == [[0, 1, 2, 3]]\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_float64_and_16_bits_work():
    config = MDMConfig(12, 11, d=16, layers=1, heads=2)
    prompt = torch.tensor([[1, 2, 3]])
    results = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = TinyMDM(config, seed=4).to(dtype)
        results.append(decode(model, prompt, 6, rule="ccd").sequences)
    assert torch.equal(results[0], results[1])
    assert results[2].shape == results[0].shape


def test_the_user_rule_object_stays_as_it_was_and_a_lazy_one_is_refused():
    rule = CCD(d=2)
    model = Scripted([1.0, 3.0, 2.0, 4.0], [1, 2, 3, 4])
    first = decode(model, EMPTY, 4, rule=rule)
    assert rule.buffer.steps == 0
    assert torch.equal(first.trace.step, decode(model, EMPTY, 4, rule="ccd", d=2).trace.step)

    class Lazy:
        name, dynamic = "lazy", True

        def settings(self):
            return {}

        def reset(self):
            pass

        def select(self, state):
            chosen = make_rule("confidence").select(state)
            chosen.accept = torch.zeros_like(chosen.accept)
            return chosen

    with pytest.raises(ValueError, match="the rule 'lazy' accepted nothing in step 0"):
        decode(model, EMPTY, 4, rule=Lazy())


BLOCKS = {
    "steps": 2,
    "block_length": 2,
    "infill": True,
    "gen_length": None,
    "input_ids": torch.tensor([[9, 9, 9]]),
}
BAD = [
    ({"mask_id": None}, "no mask token id"),
    ({"gen_length": None}, "gen_length=None; say how many"),
    ({"block_length": 3}, "gen_length=4 is not a multiple of block_length=3"),
    ({"steps": 5}, "steps=5 for 4 tokens"),
    ({"steps": 1, "block_length": 2}, "steps=1 for 2 blocks"),
    ({"steps": 2, "rule": "ccd_ds"}, "steps=2 was given, but the rule 'ccd_ds' decides by itself"),
    ({"steps": 2, "rule": "threshold"}, "the rule 'threshold' decides by itself"),
    ({"steps": 2, "budget": 2}, "say the same thing"),
    ({"budget": 0}, "budget=0 tokens a step"),
    (BLOCKS, "cannot be shared out over blocks of 2"),
    ({"d": 0}, "d=0 and V=4 must be at least 1"),
    ({"V": 0}, "d=3 and V=0 must be at least 1"),
    ({"rule": "ccd_ds", "eps": -0.1}, "eps=-0.1"),
    ({"rule": "entropy"}, "there is no rule 'entropy'; there are confidence"),
    ({"rule_options": {"gamma": 1}}, "the rule 'ccd' takes"),
    ({"temperature": -1.0}, "temperature=-1.0"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"score_temperature": 0.0}, "score_temperature=0.0 must be positive"),
    ({"stop_at_eos": True}, "need eos_id"),
    ({"eos_id": -2}, "negative token id"),
    ({"num_return_sequences": 0}, "num_return_sequences=0"),
    ({"shift_logits": "maybe"}, "shift_logits='maybe'"),
    ({"input_ids": torch.tensor([[1, 9]])}, "the prompt in row 0 holds the mask id 9 at position 1"),
    ({"input_ids": torch.tensor([1, 2])}, "input_ids has shape"),
    ({"attention_mask": torch.tensor([[1, 0]])}, "pad shorter prompts on the left"),
    ({"attention_mask": torch.tensor([[0, 0]])}, "row 0 of attention_mask is all 0"),
    ({"attention_mask": torch.tensor([[1]])}, "attention_mask has shape"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_named(change, message):
    def model(ids, attention_mask=None):
        return torch.zeros(*ids.shape, 6)

    given = {"input_ids": torch.tensor([[1, 2]]), "gen_length": 4, "rule": "ccd", "mask_id": 9}
    given |= {"shift_logits": False, **change}
    with pytest.raises(ValueError, match=message):
        decode(model, **given)


def test_ids_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="input_ids is torch.float32"):
        decode(Scripted([1.0], [1]), torch.zeros(1, 2), 1, rule="ccd")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_refused_with_their_step(value):
    class Breaks(Scripted):
        def __call__(self, ids):
            found = super().__call__(ids).clone()
            if self.calls == 3:
                # A whole row of -inf, and a single NaN or +inf.
                found[0, 1, : 6 if value < 0 else 1] = value
            return found

    with pytest.raises(FloatingPointError, match=r"not finite \(NaN, .*at a masked position in step 2"):
        decode(Breaks([4.0, 1.0, 3.0, 2.0], [1, 2, 3, 4]), EMPTY, 4, rule="ccd")


def test_outputs_of_a_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="gave logits of shape"):
        decode(lambda ids: torch.zeros(1, 2, 5), EMPTY, 4, rule="ccd", mask_id=9, shift_logits=False)
    with pytest.raises(TypeError, match="expected a floating tensor of logits"):
        decode(lambda ids: ids, EMPTY, 4, rule="ccd", mask_id=9, shift_logits=False)
    with pytest.raises(TypeError, match="takes none; decode prompts of different lengths one by one"):
        decode(
            lambda ids: torch.zeros(*ids.shape, 5),
            torch.tensor([[0, 1]]),
            4,
            rule="ccd",
            mask_id=9,
            shift_logits=False,
            attention_mask=torch.tensor([[0, 1]]),
        )
