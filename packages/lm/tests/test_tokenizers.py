"""Symbols and bytes, there and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_lm.tokenizers import ByteTokenizer, SymbolTokenizer, load_tokenizer

WORDS = ("up", "down", "=", "1")


@settings(deadline=None)
@given(st.text())
def test_bytes_come_back(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace"))
    assert tokenizer.decode(ids).encode() == bytes(ids)
    marked = tokenizer.encode("x", add_special_tokens=True)
    assert tokenizer.decode(marked) == "<bos>x<eos>"
    assert tokenizer.decode(marked, skip_special_tokens=True) == "x"


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS)))
def test_symbols_come_back(symbols):
    tokenizer = SymbolTokenizer(WORDS)
    text = " ".join(symbols)
    assert tokenizer.encode(text) == tokenizer.encode(symbols) == [3 + WORDS.index(s) for s in symbols]
    assert tokenizer.decode(torch.tensor(tokenizer.encode(text), dtype=torch.long)) == text


def test_a_batch_is_padded_on_the_side_asked_for():
    tokenizer = SymbolTokenizer("abc", separator="")
    left = tokenizer(["ab", "c"], padding=True, padding_side="left", return_tensors="pt")
    assert left["input_ids"].tolist() == [[3, 4], [0, 5]]
    assert left["attention_mask"].tolist() == [[1, 1], [0, 1]]
    right = tokenizer(["ab", "c"], padding=True)
    assert right == {"input_ids": [[3, 4], [5, 0]], "attention_mask": [[1, 1], [1, 0]]}
    assert tokenizer("ab")["input_ids"] == [3, 4]
    assert tokenizer.batch_decode(right["input_ids"], skip_special_tokens=True) == ["ab", "c"]
    with pytest.raises(ValueError, match="padding=True"):
        tokenizer(["ab", "c"], return_tensors="pt")
    with pytest.raises(ValueError, match="'middle'"):
        tokenizer(["ab"], padding_side="middle")


def test_both_are_saved_and_loaded(tmp_path):
    for tokenizer, text in ((SymbolTokenizer(WORDS), "up ="), (ByteTokenizer(), "né")):
        tokenizer.save(tmp_path / "t.json")
        again = load_tokenizer(tmp_path / "t.json")
        assert type(again) is type(tokenizer)
        assert again.encode(text) == tokenizer.encode(text)
        assert len(again) == len(tokenizer)
    (tmp_path / "t.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "t.json")


def test_unknown_symbols_and_ids_are_named():
    tokenizer = SymbolTokenizer(WORDS)
    with pytest.raises(ValueError, match="'left' is not among"):
        tokenizer.encode("up left")
    with pytest.raises(ValueError, match="token id 7 is not in a vocabulary of 7"):
        tokenizer.decode([7])
    with pytest.raises(ValueError, match="more than once"):
        SymbolTokenizer(["a", "a"])
    with pytest.raises(ValueError, match="is no symbol"):
        SymbolTokenizer(["a b"])
    assert tokenizer.convert_tokens_to_ids(["=", "up"]) == [5, 3]
