"""Tasks and their checkers, the bench, areas and frontiers, text windows, files of prompts."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
import torch
from icml_ccd import Addition, Bench, ExactDenoiser, Sudoku, Trips
from icml_ccd.bench import common_range, curve_area, dynamic_settings, frontier, run_config, standard_configs
from icml_ccd.prompt_files import load_checker, read_prompts
from icml_ccd.small_languages import sudoku_grids
from icml_ccd.tasks import masked_out
from icml_ccd.text_mdm import library_prose, text_windows
from icml_ccd.trips import CITIES, is_solution, parse_plan, plan_text, random_trip, solutions
from icml_lm import ByteTokenizer


@pytest.mark.parametrize(
    "task", [Addition(), Addition(2), Sudoku(), Sudoku(0), Trips()], ids=lambda t: t.name
)
def test_solved_sequences_pass_and_any_other_answer_fails(task):
    given, whole = masked_out(task, 40, seed=3)
    assert given.shape == (40, task.length)
    assert ((given == task.mask_id).sum(1) == task.wanted).all()
    assert task.check(given, whole).all()
    generator = torch.Generator().manual_seed(0)
    changed = whole.clone()
    for row in range(40):
        places = (given[row] == task.mask_id).nonzero()[:, 0]
        place = places[torch.randint(len(places), (), generator=generator)]
        changed[row, place] = (changed[row, place] + 1) % (task.vocab - 1)
    assert not task.check(given, changed).any()
    torch.testing.assert_close(masked_out(task, 40, seed=3)[0], given)


def test_changing_what_was_given_is_no_solution():
    given, _ = masked_out(Sudoku(), 20, seed=0)
    other = sudoku_grids()[torch.arange(20)]
    fits = ((given == 4) | (given == other)).all(1)
    assert torch.equal(Sudoku().check(given, other), fits)


def test_sums_are_sums():
    whole, answer = Addition(6).sample(50, seed=1)
    for row, a in zip(whole.tolist(), answer.tolist(), strict=True):
        text = "".join("0123456789+="[t] for t in row)
        left, total = text.split("=")
        assert sum(int(x) for x in left.split("+")) == int(total)
        assert a == [False] * 14 + [True] * 7


def test_trips_have_one_plan_and_the_checker_is_the_search():
    random = Random(5)
    for _ in range(20):
        trip, plan = random_trip(random)
        assert list(solutions(trip)) == [plan]
        assert is_solution(trip, plan)
        assert not is_solution(trip, plan[::-1])
        assert not is_solution(trip, plan[:-1])
        assert parse_plan(plan_text(plan)) == plan
        assert all(city in trip.text() for city in trip.stays)


def test_plans_in_the_words_of_models_are_read():
    text = "**Day 1-5:** Arriving in Riga and visit Riga for 5 days.\nDay 5: fly\n**Day 5-8:** Visit Porto."
    assert parse_plan(text) == [("Riga", 1, 5), ("Porto", 5, 8)]
    assert parse_plan("nothing") == []


def test_rows_of_tokens_are_read_back():
    task = Trips()
    whole, _ = task.sample(5, seed=2)
    for row in whole.tolist():
        trip, plan = task.read(row)
        assert is_solution(trip, plan)
        assert set(trip.stays) <= set(CITIES)
        assert len(trip.flights) == 6
    assert task.read([*whole[0].tolist()[:-1], task.mask_id - 1])[1] is None


def test_renamed_trips_are_the_same_trips():
    task = Trips()
    whole, answer = task.sample(30, seed=4)
    renamed = task.renamed(whole, torch.Generator().manual_seed(0))
    assert task.check(torch.where(answer, task.mask_id, renamed), renamed).all()
    for before, after in zip(whole.tolist(), renamed.tolist(), strict=True):
        (old, plan), (new, other) = task.read(before), task.read(after)
        name = {a[0]: b[0] for a, b in zip(plan, other, strict=True)}
        assert {name[city]: days for city, days in old.stays.items()} == new.stays
        assert {name[city]: day for city, day in old.events.items()} == new.events
        assert {frozenset(name[c] for c in pair) for pair in old.flights} == new.flights
    assert (whole != renamed).any(1).float().mean() > 0.5


def test_area_is_the_mean_over_the_logarithm():
    assert curve_area([(1.0, 0.8)], 0.25, 1.0) == pytest.approx(0.8)
    assert curve_area([(1.0, 1.0), (0.25, 0.0)], 0.25, 1.0) == pytest.approx(0.5)
    assert curve_area([(1.0, 1.0), (0.5, 1.0), (0.25, 0.0)], 0.25, 1.0) == pytest.approx(0.75)
    assert common_range([[(1.0, 1), (0.2, 0)], [(0.9, 1), (0.3, 0)]]) == (0.3, 0.9)
    with pytest.raises(ValueError, match="nothing to integrate"):
        curve_area([(1.0, 1.0)], 1.0, 1.0)


def test_the_frontier_holds_what_nothing_beats():
    points = {"slow": (1.0, 0.9), "fast": (0.3, 0.8), "beaten": (0.5, 0.7), "equal": (1.0, 0.9)}
    assert frontier(points) == ["slow", "fast", "equal"]


def test_the_bench_pairs_puzzles_and_counts_passes():
    model = ExactDenoiser(sudoku_grids(), 1.0, 0, vocab=4, floor=0.01)
    bench = Bench(
        {"a": {"rule": "neg_entropy"}, "b": {"rule": "neg_entropy", "budget": 4}}, n=30, seeds=(1, 2)
    )
    result = bench.run({"sudoku": (model, Sudoku())})
    outcome = result.outcomes["sudoku"]["a"]
    assert len(outcome.correct) == 60
    assert (outcome.nfe, outcome.share) == (12.0, 1.0)
    assert result.outcomes["sudoku"]["b"].nfe == 3.0
    alone = run_config(model, Sudoku(), {"rule": "neg_entropy"}, 30, seed=2, batch=7)
    assert np.array_equal(alone.correct, outcome.correct[30:])
    gap = result.difference("sudoku", "a", "b")
    assert (
        gap.low <= gap.estimate == pytest.approx(outcome.accuracy - result.outcomes["sudoku"]["b"].accuracy)
    )
    assert {row["decoder"] for row in result.rows()} == {"a", "b"}
    with pytest.raises(ValueError, match="nothing to evaluate"):
        Bench({}, n=0)


def test_every_rule_stands_in_the_bench():
    rules = {config["rule"] for config in standard_configs().values()}
    assert rules == {
        *("neg_entropy", "confidence", "margin", "left_to_right", "random", "threshold", "klass"),
        *("ccd", "ccd_ds", "ccd_released", "ccd_plus"),
    }
    assert {config["rule"] for config in standard_configs(quick=True).values()} == rules
    for configs in (standard_configs(), standard_configs(quick=True)):
        assert any(config.get("block_length") for config in configs.values()), "LLaDA's loop is missing"
    ways = dynamic_settings("ccd_ds", (0.3, 0.6))
    assert len({str(way) for way in ways}) == len(ways) == 8
    assert {way["rule_options"]["least"] for way in ways} == {2, None}


def test_windows_of_the_library_s_prose():
    texts = [text for text, _ in zip(library_prose(12), range(5), strict=False)]
    assert all(len(text) > 150 for text in texts)
    windows = text_windows(texts, ByteTokenizer(), 32, most=10)
    assert windows.shape == (10, 32)
    with pytest.raises(ValueError, match="make no window of 4000"):
        text_windows(["short"], ByteTokenizer(), 4000)


def test_prompts_and_checkers_are_read(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"question": "2+2?", "answer": "4"}) + "\n\n")
    (prompt,) = read_prompts(file, "question")
    assert prompt.text == "2+2?"
    checker = tmp_path / "check.py"
    checker.write_text("def right(line, answer):\n    return line['answer'] in answer\n")
    right = load_checker(f"{checker}:right")
    assert right(prompt.line, "It is 4.")
    assert not right(prompt.line, "It is 5.")
    with pytest.raises(ValueError, match="line 1 has no text under 'prompt'"):
        read_prompts(file)
    file.write_text("{]\n")
    with pytest.raises(ValueError, match="line 1"):
        read_prompts(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(file)
    with pytest.raises(ValueError, match="has no function 'wrong'"):
        load_checker(f"{checker}:wrong")
    with pytest.raises(ValueError, match=r"FILE.py:FUNCTION"):
        load_checker("nothing")
