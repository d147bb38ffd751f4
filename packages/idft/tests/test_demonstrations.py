"""Rows to token ids: spans of three chat templates, cut rows, files of strangers."""

import json

import pytest
from icml_idft import encode_rows, read_rows
from icml_idft.demonstrations import prompt_ids
from icml_lm import ByteTokenizer
from small_models import HEADER, PLAIN, THINKING, ChatBytes

ROW = {"prompt": "2+2?", "response": "It is 4."}
MESSAGES = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is 4."}]


@pytest.mark.parametrize("template", [HEADER, PLAIN, THINKING])
@pytest.mark.parametrize(
    "row", [ROW, {"messages": MESSAGES}, {"question": MESSAGES[:1], "answer": "It is 4."}], ids=str
)
def test_supervised_ids_are_exactly_the_answer_and_its_end_token(template, row):
    tokenizer = ChatBytes(template)
    ((ids, labels),) = encode_rows([row], tokenizer).rows
    supervised = [x for x in labels if x != -100]
    assert tokenizer.decode(supervised) == "It is 4.<eos>"
    assert [i for i, x in zip(ids, labels, strict=True) if x != -100] == supervised
    before = tokenizer.decode(ids[: len(ids) - len(supervised)])
    assert before == tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True) or (
        template == THINKING and before.endswith("<think>\n\n</think>\n\n")
    )


def test_a_tokenizer_without_a_template_joins_prompt_and_answer():
    tokenizer = ByteTokenizer()
    ((ids, labels),) = encode_rows([ROW], tokenizer).rows
    assert tokenizer.decode(ids) == "2+2?It is 4.<eos>"
    assert labels[:4] == [-100] * 4
    assert tokenizer.decode(labels[4:]) == "It is 4.<eos>"


def test_rows_of_ids_need_no_tokenizer():
    found = encode_rows([{"input_ids": [3, 4, 5], "labels": [-100, 4, 5]}, {"input_ids": [1, 2]}])
    assert found.rows[0] == ([3, 4, 5], [-100, 4, 5])
    assert found.rows[1].labels == [1, 2]


def test_cut_rows_are_counted_and_a_set_without_answers_is_refused():
    rows = [
        {"input_ids": [1] * 9, "labels": [-100] * 6 + [1] * 3},
        {"input_ids": [1, 2], "labels": [-100, 2]},
    ]
    found = encode_rows(rows, max_length=5)
    assert (found.cut, found.empty) == (1, 1)
    assert [len(r.input_ids) for r in found.rows] == [5, 2]
    with pytest.raises(ValueError, match=r"no row has a supervised token left \(1 of 1 were cut"):
        encode_rows(rows[:1], max_length=5)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a"}, "row 0 has no answer; it has prompt"),
        ({"response": "a"}, "row 0 has no prompt"),
        ({"prompt": "a", "response": " "}, "row 0: the answer is ' '"),
        ({"prompt": "a", "response": 3}, "row 0: the answer is 3"),
        ({"messages": MESSAGES[:1]}, "do not end with the assistant's"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 ids and 1 labels"),
        ("text", "row 0 is str"),
    ],
    ids=str,
)
def test_rows_of_another_form_are_named(row, text):
    with pytest.raises(ValueError, match=text):
        encode_rows([row], ByteTokenizer())


def test_other_mistakes_are_named():
    with pytest.raises(ValueError, match="there are no demonstrations"):
        encode_rows([])
    with pytest.raises(ValueError, match="pass the model's tokenizer"):
        encode_rows([ROW])
    with pytest.raises(ValueError, match="max_length=1"):
        encode_rows([ROW], ByteTokenizer(), max_length=1)
    with pytest.raises(ValueError, match="the prompt '' has no token"):
        prompt_ids(ByteTokenizer(), "")
    with pytest.raises(ValueError, match="a prompt is a text"):
        prompt_ids(ByteTokenizer(), 7)


def test_prompts_may_be_texts_conversations_or_ids():
    tokenizer = ChatBytes()
    text = prompt_ids(tokenizer, "2+2?")
    assert tokenizer.decode(text) == "<|user|>2+2?<eos>\n<|assistant|>"
    assert prompt_ids(tokenizer, MESSAGES[:1]) == text
    assert prompt_ids(tokenizer, text) == text


def test_files_are_read_line_by_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps({"messages": MESSAGES}) + "\n")
    assert read_rows(path) == [ROW, {"messages": MESSAGES}]
    assert read_rows(path, limit=1) == [ROW]


@pytest.mark.parametrize(
    ("content", "text"),
    [("", "holds no rows"), ("{", "line 1: no JSON"), ("[1]\n", "line 1: list"), ("[" * 100_000, "no JSON")],
    ids=["empty", "broken", "list", "deep"],
)
def test_files_of_another_form_are_named(tmp_path, content, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=text):
        read_rows(path)
    with pytest.raises(FileNotFoundError, match="expected JSONL"):
        read_rows(tmp_path / "missing.jsonl")


def test_a_line_that_is_too_long_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr("icml_idft.demonstrations.LONGEST_LINE", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a" * 2000, "response": "b"}) + "\n")
    with pytest.raises(ValueError, match="line 1: longer than"):
        read_rows(path)
