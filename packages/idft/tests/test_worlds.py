"""The small worlds of the claims: exact answers, styles, and arms that train as they would apart."""

import random

import pytest
import torch
from icml_idft import IDFTLoss, hint_world, skills
from icml_idft.arms import Arm, fine_tuned
from icml_lm.tasks import DigitOps
from icml_lm.tasks.digit_ops import FILLERS, tokenizer
from small_models import tiny

SYMBOLS = tokenizer()


def answers(rows):
    return [SYMBOLS.decode([x for x in row.labels if x != -100], skip_special_tokens=True) for row in rows]


def questions(rows):
    return [
        SYMBOLS.decode(row.input_ids[: row.labels.index(next(x for x in row.labels if x != -100))])
        for row in rows
    ]


@pytest.mark.parametrize("foreign", [False, True])
def test_demonstrations_are_right_in_either_style(foreign):
    rows = skills.demonstrations("REVERSE", 40, seed=3, foreign=foreign)
    oracle = DigitOps(scratchpad=False)
    for prompt, answer in zip(questions(rows), answers(rows), strict=True):
        assert skills.stripped(answer) == oracle.oracle(prompt)
        fillers = [s for s in answer.split() if s in FILLERS]
        if foreign:
            assert len(fillers) == 5
            assert set(fillers) <= set(skills.OTHERS)
        else:
            assert 2 <= len(fillers) <= 6


def test_wrong_labels_are_as_many_as_asked_for():
    rows = skills.demonstrations("ADD", 400, seed=3, wrong=0.3)
    oracle = DigitOps(scratchpad=False)
    wrong = sum(
        skills.stripped(a) != oracle.oracle(q) for q, a in zip(questions(rows), answers(rows), strict=True)
    )
    assert wrong / 400 == pytest.approx(0.3, abs=0.07)


def test_hints_are_right_and_foreign():
    rows = hint_world.rows(20, seed=1)
    oracle = DigitOps(scratchpad=False)
    for row in rows:
        assert row["digits"] == oracle.oracle(row["prompt"])
        assert hint_world.right(row, row["response"])
        assert not hint_world.right(row, row["response"] + " 1")
        fillers = row["response"].split()[: hint_world.FOREIGN_LENGTH]
        assert set(fillers) <= set(hint_world.FOREIGN)
    assert hint_world.hinted_prompt("RANK . 3 1 2 =", "f5 2 0 1") == "RANK . 3 1 2 ; f5 2 0 1 ="
    draw = random.Random(0)
    assert len(hint_world.fillers("own", draw)) == hint_world.OWN_LENGTH
    assert 5 <= len(hint_world.fillers("mixed", draw)) <= 7


def test_accuracy_and_divergence_of_a_model_with_itself():
    model = tiny(spread=3.0)
    assert skills.accuracy(model, "ASC", n=20, seed=0) <= 0.2
    assert skills.divergence(model, model, n=20, seed=0) == pytest.approx(0, abs=1e-6)
    assert skills.divergence(tiny(spread=3.0, seed=1), model, n=20, seed=0) > 0.1


def test_arms_train_as_one_by_one_with_the_loss_itself():
    """The same rows in the same order through torch's Adam and ``IDFTLoss``."""
    base = tiny(d=16, layers=1, spread=3.0)
    rows = skills.demonstrations("ASC", 8, seed=0)
    losses = [IDFTLoss("sft"), IDFTLoss(), IDFTLoss(warmup=0.5, warmup_kind="sft")]
    arms = [Arm("rows", loss, 1e-3) for loss in losses]
    found = fine_tuned(base, arms, {"rows": rows}, epochs=2, batch=4, seed=5)
    longest = max(len(r.input_ids) for r in rows)
    ids = torch.tensor([r.input_ids + [0] * (longest - len(r.input_ids)) for r in rows])
    labels = torch.tensor([r.labels + [-100] * (longest - len(r.labels)) for r in rows])
    for loss, model in zip(losses, found, strict=True):
        twin = tiny(d=16, layers=1, spread=3.0)
        optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
        for step in range(4):
            order = torch.randperm(8, generator=torch.Generator().manual_seed((5 << 10) + step // 2))
            chosen = order[4 * (step % 2) : 4 * (step % 2) + 4]
            optimizer.zero_grad()
            loss(twin(ids[chosen]).logits, labels[chosen], step=step, total=4).backward()
            optimizer.step()
        for a, e in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-5)


def test_arms_that_cannot_train_together_are_refused():
    rows = skills.demonstrations("ASC", 4, seed=0)
    with pytest.raises(ValueError, match="as many in each"):
        fine_tuned(tiny(), [], {"a": rows, "b": rows[:2]}, epochs=1, batch=2, seed=0)
    with pytest.raises(ValueError, match="kind='eaft' is no arm"):
        fine_tuned(tiny(), [Arm("a", IDFTLoss("eaft"), 1e-3)], {"a": rows}, epochs=1, batch=2, seed=0)
