"""What models write, also when they write it badly."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_lm.parse import ParseError, boxed, choice, last_integers, last_json, tags


def test_tags_in_any_order_with_content_over_lines():
    text = "I think.\n<action>take\nthe key</action> and <level> 3 </level>"
    assert tags(text, ["level", "action"]) == {"level": "3", "action": "take\nthe key"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<a>1", "closed 0 times"),
        ("1</a>", "opened 0 times"),
        ("<a>1</a><a>2</a>", "opened 2 times"),
        ("</a>1<a>", "stands before"),
        ("<a>1<b>2</a>3</b>", "overlap"),
        ("<a>1<b>2</b></a>", "overlap"),
    ],
)
def test_tags_that_are_not_exactly_once(text, says):
    names = ["a", "b"] if "<b>" in text else ["a"]
    with pytest.raises(ParseError, match=says):
        tags(text, names)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ('```json\n{"a": [1, {"b": 2}]}\n```', None, {"a": [1, {"b": 2}]}),
        ('{"a": 1} then {"b": 2}', None, {"b": 2}),
        ("list [1, 2] then broken {", None, [1, 2]),
        ('{"a": [1]} [2]', dict, {"a": [1]}),
        ('[{"a": 1}]', dict, None),
        ('{"text": "a } in a string"}', None, {"text": "a } in a string"}),
        ("{bad} []", None, []),
    ],
)
def test_last_json(text, kind, value):
    if value is None:
        with pytest.raises(ParseError, match="no JSON object"):
            last_json(text, kind)
    else:
        assert last_json(text, kind) == value


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.text(alphabet=st.characters(exclude_characters='{}[]"')),
)
def test_json_is_found_in_any_surroundings(value, around):
    wrapped = {"value": value}
    assert last_json(f"{around}{json.dumps(wrapped)}{around}") == wrapped


def test_brackets_without_end_are_refused_at_once():
    began = time.process_time()
    with pytest.raises(ParseError, match="nested too deeply"):
        last_json("[" * 200_000)
    assert time.process_time() - began < 1.0  # trying every bracket took a minute


@pytest.mark.parametrize("text", ["[" * 500, '{"a": NaN}', "plain", ""])
def test_hostile_and_empty_replies(text):
    with pytest.raises(ParseError, match="no JSON object or array"):
        last_json(text)


def test_a_reply_beyond_all_measure_is_not_searched():
    with pytest.raises(ParseError, match="200001 characters"):
        last_json("x" * 200_001)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[3, 1, 2]", [3, 1, 2]),
        ("first [1, 2] then [2, 1]", [2, 1]),
        ("ranking: 3 > 1 > 2.", [3, 1, 2]),
        ("2, 1, 3", [2, 1, 3]),
        ("order:\n3\n1\n2\n", [3, 1, 2]),
        ("[7]", [7]),
        ("[-1, +2,]", [-1, 2]),
        ("In 1999 I chose 2, 1", [2, 1]),
    ],
)
def test_last_integers(text, values):
    assert last_integers(text) == values


def test_an_order_must_be_one():
    assert last_integers("1 > 2 > 0", permutation_of=range(3)) == [1, 2, 0]
    for bad in ("1, 1, 2", "1, 2", "[0, 1, 2, 3]"):
        with pytest.raises(ParseError, match="is no order of"):
            last_integers(bad, permutation_of=range(3))
    with pytest.raises(ParseError, match="no list of integers"):
        last_integers("none at all")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{42}", "42"),
        (r"\boxed{1} no, \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed{}", ""),
    ],
)
def test_boxed(text, value):
    assert boxed(text) == value


@pytest.mark.parametrize("text", ["42", r"\boxed{4{2}", r"\boxed 42"])
def test_boxed_that_is_none(text):
    with pytest.raises(ParseError, match="boxed"):
        boxed(text)


def test_choices_are_whole_words_and_the_last_counts():
    assert choice("Apples are red. (B)", "ABC") == "B"
    assert choice("yes ... no", ["yes", "no"]) == "no"
    assert choice("not sure", ["sure", "not sure"]) == "sure"
    with pytest.raises(ParseError, match="none of"):
        choice("Bananas", "ABC")
