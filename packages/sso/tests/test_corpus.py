"""Corpora: what windows hold, batches as functions of seed and step, files that are not what they seem."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from icml_sso.corpus import (
    StreamCorpus,
    TokenCorpus,
    dataset_tokens,
    packed_tokens,
    standard_library,
    text_files,
)
from icml_sso.token_files import MAGIC, open_tokens, write_tokens


def counting(n=1000, vocabulary=1000):
    return TokenCorpus([np.arange(n) % vocabulary], [np.arange(50)], vocab_size=vocabulary)


def test_windows_are_consecutive_tokens_and_all_places_occur():
    corpus = TokenCorpus([np.arange(10), np.arange(100, 106), np.arange(3)], [np.arange(9)], vocab_size=200)
    windows = torch.cat([corpus.batch(step, 64, 4, seed=1) for step in range(20)])
    assert ((windows[:, 1:] - windows[:, :-1]) == 1).all()
    # Six places in the first piece, two in the second, none in the third, which is too short; equally often.
    starts, counts = windows[:, 0].unique(return_counts=True)
    assert starts.tolist() == [0, 1, 2, 3, 4, 5, 100, 101]
    assert (counts - 160).abs().max() < 6 * 12  # six standard deviations


def test_a_batch_is_a_function_of_seed_split_and_step():
    corpus = counting()
    again = corpus.batch(7, 4, 16, seed=3)
    assert torch.equal(corpus.batch(7, 4, 16, seed=3), again)
    assert not torch.equal(corpus.batch(8, 4, 16, seed=3), again)
    assert not torch.equal(corpus.batch(7, 4, 16, seed=4), again)
    assert int(corpus.batch(0, 64, 16, seed=3, split="validation").max()) < 50
    assert again.shape == (4, 17)


def test_the_standard_library_is_split_by_file():
    corpus = standard_library()
    assert corpus.tokens() + corpus.tokens("validation") == 2_000_000
    assert 0.05 < corpus.tokens("validation") / 2_000_000 < 0.2
    # What is held out is not what is trained on: long windows of one split do not occur in the other.
    held = [bytes(row.tolist()) for row in corpus.batch(0, 8, 200, seed=0, split="validation")]
    trained = b"".join(piece.tobytes() for piece in corpus._pieces["train"])
    assert sum(text in trained for text in held) <= 1
    assert standard_library().identity == corpus.identity
    assert standard_library(limit=1000).identity != corpus.identity


def test_text_files_are_bytes(tmp_path):
    for index in range(20):
        (tmp_path / f"{index:02d}.txt").write_bytes(bytes([index]) * 30)
    corpus = text_files([tmp_path])
    assert set(corpus.batch(0, 64, 5, seed=0, split="validation").unique().tolist()) == {9, 19}
    assert corpus.tokens() == 18 * 30
    with pytest.raises(FileNotFoundError, match="nowhere"):
        text_files([tmp_path / "nowhere"])


@pytest.mark.parametrize(("vocabulary", "dtype"), [(50000, "uint16"), (100352, "uint32")])
def test_raw_files_of_nanogpt(tmp_path, vocabulary, dtype):
    tokens = np.random.default_rng(0).integers(vocabulary, size=500)
    tokens.astype(dtype).tofile(tmp_path / "train.bin")
    tokens[:99].astype(dtype).tofile(tmp_path / "val.bin")
    corpus = packed_tokens(tmp_path, vocab_size=vocabulary)
    assert (corpus.tokens(), corpus.tokens("validation")) == (500, 99)
    window = corpus.batch(3, 1, 20, seed=0)[0].numpy()
    assert any((tokens[s : s + 21] == window).all() for s in range(480))
    alone = packed_tokens(tmp_path / "train.bin", vocab_size=vocabulary)
    assert (alone.tokens(), alone.tokens("validation")) == (450, 50)  # the last tenth is held out


def test_megatron_files_as_written_by_the_format(tmp_path):
    """The index is written here field by field, apart from our own writer."""
    documents = [np.arange(5), np.arange(100, 107), np.arange(50, 53)]
    np.concatenate(documents).astype("<i4").tofile(tmp_path / "a.bin")
    head = MAGIC + struct.pack("<Q", 1) + struct.pack("<B", 4) + struct.pack("<Q", 3) + struct.pack("<Q", 4)
    lengths, offsets = np.array([5, 7, 3], "<i4"), np.array([0, 20, 48], "<i8")
    (tmp_path / "a.idx").write_bytes(
        head + lengths.tobytes() + offsets.tobytes() + np.arange(4, dtype="<i8").tobytes()
    )
    (run,) = open_tokens(tmp_path / "a.bin", vocab_size=200)
    assert run.tolist() == np.concatenate(documents).tolist()
    write_tokens(tmp_path / "b.bin", documents, dtype="int32", index=True)
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    assert open_tokens(tmp_path / "b")[0].tolist() == run.tolist()


def test_gaps_between_sequences_are_not_crossed(tmp_path):
    write_tokens(tmp_path / "a.bin", [np.arange(4), np.arange(90, 95), np.arange(20, 24)], index=True)
    raw = bytearray((tmp_path / "a.idx").read_bytes())
    at = len(MAGIC) + 25
    raw[at : at + 12] = np.array([4, 3, 4], "<i4").tobytes()  # the second sequence ends two tokens early
    (tmp_path / "a.idx").write_bytes(raw)
    pieces = open_tokens(tmp_path / "a.bin")
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3, 90, 91, 92], [20, 21, 22, 23]]


def damaged(head=None, lengths=(4,), offsets=(0,), cut=None, code=8, version=1, count=None):
    body = np.array(lengths, "<i4").tobytes() + np.array(offsets, "<i8").tobytes() + b"\0" * 8
    head = (
        MAGIC + struct.pack("<QBQQ", version, code, len(lengths) if count is None else count, 1)
        if head is None
        else head
    )
    return (head + body)[:cut]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            damaged(head=b"\x80\x04\x95pickle-like bytes here, not an index"),
            "does not begin as a Megatron index",
        ),
        (damaged(cut=20), "does not begin as a Megatron index"),
        (damaged(cut=36), "its header promises 1 sequences"),
        (damaged(count=1 << 60), "its header promises 1152921504606846976 sequences"),
        (damaged(version=2), "has version 2"),
        (damaged(code=6), "names type code 6"),
        (damaged(lengths=(5,)), "sequence 0 of 5 tokens at byte 0 does not lie within the 8 bytes"),
        (damaged(lengths=(-1,)), "sequence 0 of -1 tokens"),
        (damaged(offsets=(-2,)), "at byte -2"),
        (damaged(offsets=(1,)), "at byte 1"),
        (damaged(lengths=(1,), offsets=(1 << 62,)), "does not lie within"),
        (damaged(lengths=(), offsets=()), "has no sequences"),
    ],
)
def test_hostile_indices_are_refused(tmp_path, index, message):
    np.arange(4, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(index)
    with pytest.raises(ValueError, match=message):
        open_tokens(tmp_path / "a.bin")


def test_files_that_are_not_what_they_seem(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match="3 bytes, no multiple of 2"):
        open_tokens(tmp_path / "odd.bin")
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        open_tokens(tmp_path / "empty.bin")
    with pytest.raises(FileNotFoundError, match="no file of tokens"):
        open_tokens(tmp_path / "none.bin")
    np.array([5, 70000], "<u4").tofile(tmp_path / "wide.bin")
    with pytest.raises(ValueError, match="but the vocabulary has 300"):
        open_tokens(tmp_path / "wide.bin", vocab_size=300, dtype="uint32")
    with pytest.raises(ValueError, match="dtype='float32' is none of"):
        open_tokens(tmp_path / "wide.bin", dtype="float32")
    with pytest.raises(ValueError, match="document 0 has tokens from 0 to 70000, which uint16 cannot hold"):
        write_tokens(tmp_path / "new.bin", [np.array([0, 70000])])


def test_a_token_beyond_the_vocabulary_is_found_in_the_batch():
    tokens = np.zeros(100_000, dtype=np.uint16)
    tokens[3::4] = 999
    corpus = TokenCorpus([tokens], vocab_size=256)
    with pytest.raises(ValueError, match="tokens from 0 to 999, but the vocabulary is 0 to 255"):
        corpus.batch(0, 4, 16, seed=0)


def test_streams_give_consecutive_windows_and_resume():
    def source():
        yield from ([i, i + 1, i + 2] for i in range(0, 600, 3))

    corpus = StreamCorpus(source, vocab_size=1000, validation_batches=2)
    assert corpus.batch(0, 2, 4).tolist() == [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]
    assert corpus.batch(1, 2, 4)[0, 0] == 30
    assert corpus.batch(1, 2, 4, split="validation")[0, 0] == 10  # held out: the first two batches
    assert corpus.batch(2, 2, 4)[0, 0] == 40
    fresh = StreamCorpus(source, vocab_size=1000, validation_batches=2)
    assert torch.equal(fresh.batch(9, 2, 4), torch.arange(110, 120).view(2, 5))
    assert torch.equal(fresh.batch(3, 2, 4), torch.arange(50, 60).view(2, 5))  # back again: read anew
    with pytest.raises(ValueError, match="the stream ended 10 tokens short of batch 58"):
        fresh.batch(58, 2, 4)
    with pytest.raises(TypeError, match="the stream gave float64: 1.5"):
        StreamCorpus(lambda: [1, 1.5], vocab_size=3, validation_batches=0).batch(0, 1, 1)
    with pytest.raises(TypeError, match="a function that gives a fresh iterator"):
        StreamCorpus(iter([1, 2]), vocab_size=3)
    with pytest.raises(ValueError, match="nothing is held out"):
        StreamCorpus(source, vocab_size=1000, validation_batches=0).batch(0, 1, 1, split="validation")


def test_data_sets_of_tokens_and_of_text():
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": [4] * 40}]
    assert dataset_tokens(rows, vocab_size=9).tokens() == 39  # 43 tokens, a tenth held out
    texts = [{"text": "abc" * 20}, {"text": "de"}]
    corpus = dataset_tokens(texts, vocab_size=256, tokenizer=lambda text: {"input_ids": list(text.encode())})
    assert corpus.tokens() + corpus.tokens("validation") == 62
    assert dataset_tokens(rows, vocab_size=9, limit=2).tokens() == 2
    with pytest.raises(ValueError, match="holds text: give a tokenizer"):
        dataset_tokens(texts, vocab_size=256)
    with pytest.raises(ValueError, match="row 0 has no column 'tokens'; it has text"):
        dataset_tokens(texts, vocab_size=256, column="tokens")
    with pytest.raises(ValueError, match="row 0 is list"):
        dataset_tokens([[1, 2]], vocab_size=9)
    with pytest.raises(ValueError, match="no tokens"):
        dataset_tokens([], vocab_size=9)


@pytest.mark.parametrize(
    ("pieces", "error", "message"),
    [
        ([], ValueError, "no piece of two tokens"),
        ([np.zeros(5)], TypeError, "tokens are integers; got an array of float64"),
        ([np.zeros((2, 2), dtype=int)], ValueError, r"one dimension, got shape \(2, 2\)"),
    ],
)
def test_arrays_that_are_no_tokens_are_refused(pieces, error, message):
    with pytest.raises(error, match=message):
        TokenCorpus(pieces, vocab_size=4)


def test_windows_longer_than_the_text_are_refused():
    with pytest.raises(
        ValueError, match="no piece of the validation split holds a window of 61 tokens; the longest has 50"
    ):
        counting().batch(0, 2, 60, seed=0, split="validation")
    with pytest.raises(ValueError, match="size=0"):
        counting().batch(0, 0, 4, seed=0)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    """nanoGPT's folders hold a meta.pkl; it is never opened."""
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    (tmp_path / "meta.pkl").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "harm").encode() + b"'\ntR."
    )
    packed_tokens(tmp_path, vocab_size=100)
    assert not (tmp_path / "harm").exists()
    assert "pickle" not in Path(sys.modules["icml_sso.token_files"].__file__).read_text().split("import")[1:]
