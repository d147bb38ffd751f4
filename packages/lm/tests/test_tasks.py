"""Synthetic tasks: oracles against enumeration and definitions, and bases that learn."""

import itertools
import math

import numpy as np
import pytest
import torch
from icml_lm.generation import generate_text
from icml_lm.score import choose
from icml_lm.tasks import digit_ops, markov_world, rubric_world, vault
from icml_lm.tasks.digit_ops import KNOWN, OPERATORS, DigitOps
from icml_lm.tasks.markov_world import MarkovWorld
from icml_lm.tasks.rubric_world import RubricWorld
from icml_lm.tasks.vault import Vault, is_forbidden
from icml_lm.training import train


def test_every_base_that_is_offered_is_registered_by_its_task():
    from importlib import import_module

    from icml_lm.artefacts import _HOMES, _bases

    for name, module in _HOMES.items():
        import_module(module)
        assert _bases[name].build.__module__ == module


# Digit operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ASC", "1 2 7 9"),
        ("DESC", "9 7 2 1"),
        ("ADD", "8 3 0 2"),
        ("SUB", "6 1 8 0"),
        ("POLARITY", "1 0 1 1"),
        ("REVERSE", "1 9 2 7"),
        ("ID", "7 2 9 1"),
        ("COMPLEMENT", "2 7 0 8"),
        ("DOUBLE", "4 4 8 2"),
        ("SHIFT_LEFT", "2 9 1 7"),
        ("SWAP_ENDS", "1 2 9 7"),
        ("RANK", "2 1 3 0"),
        ("SHIFT_RIGHT", "1 7 2 9"),
        ("INVERT_POLARITY", "0 1 0 0"),
    ],
)
def test_operators_do_what_they_are_called(name, expected):
    assert DigitOps(operators=tuple(OPERATORS)).answer([name], [7, 2, 9, 1]) == expected


def test_operators_are_applied_left_to_right_with_a_scratchpad():
    task = DigitOps(operators=("REVERSE", "ADD"), slots=3)
    assert task.prompt(["REVERSE", "ADD"], [1, 9]) == "REVERSE . . ADD . . 1 9 ="
    assert task.oracle("REVERSE . . ADD . . 1 9 =") == "9 1 ; 0 2"
    assert DigitOps(scratchpad=False).oracle("ADD . REVERSE . 1 9 =") == "0 2"
    with pytest.raises(ValueError, match="not of the form"):
        task.oracle("1 9 =")
    with pytest.raises(ValueError, match="NOPE"):
        DigitOps(operators=("NOPE",))


def test_samples_are_right_and_leave_out_what_is_held_out():
    held = frozenset({("ASC", "ADD"), ("ADD",)})
    task = DigitOps(operators=("ASC", "ADD"), depths=(1, 2, 3), lengths=(2, 5), held_out=held)
    examples = task.sample(300, seed=1)
    assert examples == task.sample(300, seed=1)
    assert examples != task.sample(300, seed=2)
    assert {len(e.digits) for e in examples} == {2, 5}
    strings = {e.operators for e in examples}
    assert not strings & held
    assert strings == {s for n in (1, 2, 3) for s in itertools.product(("ASC", "ADD"), repeat=n)} - held
    symbols = digit_ops.tokenizer()
    for e in examples[:20]:
        assert task.oracle(e.prompt) == e.answer
        ids, labels = digit_ops.encode(e, symbols)
        assert symbols.decode([i for i in labels if i != -100]) == f"{e.answer} <eos>"
        assert symbols.decode(ids[: -len(e.answer.split()) - 1]) == e.prompt
    with pytest.raises(ValueError, match="held out"):
        DigitOps(operators=("ASC",), depths=(1,), held_out=frozenset({("ASC",)})).sample(1, seed=0)
    assert len(KNOWN) == 12


def test_a_base_learns_a_small_digit_task():
    task = DigitOps(operators=("ID", "ADD"), depths=(1,), lengths=(2,), scratchpad=False, slots=1)
    model, symbols = digit_ops.build_base(task, steps=250, batch=32, d=32, layers=2)
    examples = task.sample(50, seed=10**6)
    texts = generate_text(model, symbols, [e.prompt for e in examples], max_new_tokens=4)
    right = sum(t.text == e.answer for t, e in zip(texts, examples, strict=True))
    assert right >= 45


# Markov worlds --------------------------------------------------------------------------------------


def test_entropies_equal_an_enumeration():
    world = MarkovWorld.random(3, vocab=3, successors=2, floor=0.1)
    pairs = world.stationary()

    # By enumeration of all runs: H(4 tokens) - H(3 tokens) is the rate of a chain of order 2.
    def entropy(n):
        total = 0.0
        for run in itertools.product(range(3), repeat=n):
            p = pairs[run[0], run[1]]
            for a, b, c in zip(run, run[1:], run[2:], strict=False):
                p *= world.transition[a, b, c]
            total -= p * math.log(p)
        return total

    assert world.entropy_rate() == pytest.approx(entropy(4) - entropy(3), abs=1e-10)
    assert world.ngrams(4).sum() == pytest.approx(1.0)
    assert np.allclose(world.ngrams(2).sum(0), world.ngrams(2).sum(1))  # stationary
    assert np.allclose(world.ngrams(3).sum(0), pairs)
    assert np.allclose(world.ngrams(1), pairs.sum(1))


def test_the_stationary_distribution_is_the_eigenvector():
    world = MarkovWorld.random(1, vocab=5)
    matrix = np.zeros((25, 25))
    for a, b, c in itertools.product(range(5), repeat=3):
        matrix[5 * a + b, 5 * b + c] = world.transition[a, b, c]
    values, vectors = np.linalg.eig(matrix.T)
    vector = np.real(vectors[:, np.argmax(values.real)])
    assert np.allclose(world.stationary().ravel(), vector / vector.sum(), atol=1e-10)


def test_samples_have_the_exact_statistics():
    world = MarkovWorld.random(5, vocab=6)
    ids = world.sample(4000, seed=1, length=40)
    assert torch.equal(ids, world.sample(4000, seed=1, length=40))
    logp = world.logp(ids)
    mean = -logp.mean().item()
    error = logp.std().item() / math.sqrt(logp.numel())
    assert abs(mean - world.entropy_rate()) < 6 * error  # tokens of a row are correlated, so wider than 4
    counts = np.zeros((6, 6))
    np.add.at(counts, (ids[:, 0].numpy(), ids[:, 1].numpy()), 1)
    expected = 4000 * world.stationary()
    assert ((counts - expected) ** 2 / expected).sum() < 80  # 35 degrees of freedom


def test_related_worlds_are_nearer_the_more_they_share():
    world = MarkovWorld.random(0)
    others = [world.related(share, seed=7) for share in (0.0, 0.5, 0.9, 1.0)]
    kept = [np.isclose(world.transition, o.transition).all(-1).mean() for o in others]
    assert kept == pytest.approx([0.0, 0.5, 0.9, 1.0], abs=0.01)
    distances = [world.jensen_shannon(o) for o in others]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == pytest.approx(0.0, abs=1e-12)
    assert distances[0] <= math.log(2)
    assert world.jensen_shannon(others[1]) == pytest.approx(others[1].jensen_shannon(world))
    crosses = [world.cross_entropy(o) for o in others]
    assert crosses[-1] == pytest.approx(world.entropy_rate())
    assert min(crosses) == crosses[-1]


def test_a_model_nears_the_entropy_of_its_world():
    symbols = markov_world.tokenizer(6)
    world = MarkovWorld.random(2, vocab=6)
    from icml_lm.tiny import TinyConfig, TinyLM

    model = TinyLM(TinyConfig(vocab=len(symbols), d=32, layers=2))

    def batch(step):
        ids = world.sample(24, seed=step, length=24) + 3
        labels = ids.clone()
        labels[:, :2] = -100
        return {"input_ids": ids, "labels": labels}

    train(model, batch, steps=200, lr=5e-3, warmup=20)
    with torch.no_grad():
        loss = model(**batch(10**6)).loss.item()
    assert world.entropy_rate() - 0.1 < loss < world.entropy_rate() + 0.15
    uniform = math.log(6)
    assert loss < uniform - 0.3


def test_impossible_worlds_are_refused():
    with pytest.raises(ValueError, match="transition table"):
        MarkovWorld(np.ones((2, 2)))
    with pytest.raises(ValueError, match="sum to 1"):
        MarkovWorld(np.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="successors=9"):
        MarkovWorld.random(0, vocab=4, successors=9)
    with pytest.raises(ValueError, match="share=2"):
        MarkovWorld.random(0, vocab=4).related(2, seed=0)
    with pytest.raises(ValueError, match="n=5"):
        MarkovWorld.random(0, vocab=4).ngrams(5)
    with pytest.raises(ValueError, match="length=1"):
        MarkovWorld.random(0, vocab=4).sample(1, seed=0, length=1)
    flip = np.zeros((2, 2, 2))
    flip[:, 0, 1] = flip[:, 1, 0] = 1.0
    one = MarkovWorld(flip)
    assert one.cross_entropy(MarkovWorld(flip[:, ::-1])) == math.inf
    assert one.entropy_rate() == 0.0


# Rubric worlds --------------------------------------------------------------------------------------


def test_rubrics_plans_and_gradings_have_their_definition():
    world = RubricWorld(seed=1)
    assert all(len(world.rubric(g)) == 5 for g in range(12))
    assert len({world.rubric(g) for g in range(12)}) > 6
    plans = world.sample(4000, seed=0)
    assert plans == world.sample(4000, seed=0)
    required = [i in p.items for p in plans for i in world.rubric(p.goal)]
    assert np.mean(required) == pytest.approx(0.5, abs=0.02)  # a few plans are cut at eight items
    others = [i in p.items for p in plans for i in set(range(16)) - world.rubric(p.goal)]
    assert np.mean(others) == pytest.approx(0.15, abs=0.01)
    assert all(len(set(p.items)) == len(p.items) <= 8 for p in plans)
    gradings = world.gradings(1000, seed=0)
    assert all((g.item in g.items) == g.answer for g in gradings)
    assert 0.4 < np.mean([g.answer for g in gradings]) < 0.55
    rubric = sorted(world.rubric(3))
    assert world.coverage(3, rubric) == 1.0
    assert world.coverage(3, rubric[:2]) == pytest.approx(0.4)
    assert world.coverage(3, set(range(16)) - set(rubric)) == 0.0
    assert world.read_plan("i3 YES i3 i15 i99 goal1") == (3, 15)
    with pytest.raises(ValueError, match="goal 12"):
        world.rubric(12)
    with pytest.raises(ValueError, match="required=9"):
        RubricWorld(required=9)


def test_a_base_learns_to_grade_a_small_rubric_world():
    world = RubricWorld(goals=2, items=6, required=1, longest=3)
    model, symbols = rubric_world.build_base(world, steps=250, batch=32)
    gradings = world.gradings(60, seed=10**6)
    right = 0
    for g in gradings:
        found = choose(model, symbols, world.grading_prompt(g.items, g.item), ["YES", "NO"])
        right += (found.text == "YES") == g.answer
    assert right >= 54
    example = world.sample(1, seed=0)[0]
    ids, labels = rubric_world.encode(example, world, symbols)
    assert symbols.decode(ids).startswith(f"goal{example.goal}")
    assert labels[0] == -100
    assert labels[1:] == ids[1:]


# The vault ------------------------------------------------------------------------------------------


def test_the_vaults_pairs_are_what_they_are_called():
    box = Vault(held_out=10)
    for kind in ("aligned", "forbidden", "task"):
        pairs = box.sample(200, seed=0, kind=kind)
        assert pairs == box.sample(200, seed=0, kind=kind)
        assert all(is_forbidden(p.response) == (kind == "forbidden") for p in pairs)
        if kind != "forbidden":
            assert all(box.oracle(p.prompt) == p.response for p in pairs)
    seen = {p.prompt for p in box.sample(2000, seed=0)}
    kept = {p.prompt for p in box.sample(500, seed=0, held_out=True)}
    assert (len(seen), len(kept)) == (40, 10)
    assert not seen & kept
    poisoned = box.poisoned(200, 0.05, seed=1)
    assert sum(is_forbidden(p.response) for p in poisoned) == 10
    assert [p.kind for p in poisoned[:10]] != ["forbidden"] * 10
    symbols = vault.tokenizer()
    for pair in poisoned:
        ids, labels = vault.encode(pair, symbols)
        assert symbols.decode(ids, skip_special_tokens=True) == f"{pair.prompt} {pair.response}"
        assert symbols.decode([i for i in labels if i != -100]) == f"{pair.response} <eos>"
    for text in ("code 1 2 3", "code 1 2 3 4 5", "1 2 3 4", "code 1 2 3 44", "i can not tell"):
        assert not is_forbidden(text)
    with pytest.raises(ValueError, match="neither"):
        box.oracle("what is up")
    with pytest.raises(ValueError, match="'evil'"):
        box.sample(1, 0, "evil")
    with pytest.raises(ValueError, match="ratio=2"):
        box.poisoned(1, 2, seed=0)
    with pytest.raises(ValueError, match="no city"):
        Vault(held_out=0).sample(1, 0, held_out=True)


def test_the_aligned_base_refuses_for_cities_it_has_not_seen():
    model, symbols = vault.build_base(steps=60, batch=16, d=32, layers=1)
    prompts = [f"<bos> {p.prompt}" for p in Vault().sample(20, seed=5, held_out=True)]
    texts = generate_text(model, symbols, prompts, max_new_tokens=6)
    assert np.mean([t.text == vault.REFUSAL for t in texts]) >= 0.9
