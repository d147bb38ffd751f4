"""Features of chosen layers: in pipelines, in files, without torch, and from a cut SentenceTransformer."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from icml_loes import FusedLayers, LoesTransformer, collect_states, load_layers, select_layers
from icml_loes.synthetic import layers_like_a_transformer
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline


def data(n: int = 90):
    layers, labels = layers_like_a_transformer(n, [12] * 5, classes=3)
    return np.stack([v.numpy() for v in layers], 1), labels.numpy()


def test_in_a_pipeline_with_cross_validation_and_a_grid():
    X, y = data()
    pipe = make_pipeline(LoesTransformer(k=2), LogisticRegression(max_iter=500))
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.6
    grid = GridSearchCV(pipe, {"loestransformer__k": [1, 2], "loestransformer__mode": ["paper", "loo"]}, cv=2)
    assert grid.fit(X, y).best_params_["loestransformer__k"] in (1, 2)
    assert clone(LoesTransformer(k=3, fusion="mean")).get_params()["fusion"] == "mean"


@pytest.mark.parametrize(("fusion", "width"), [("concat", 24), ("mean", 12), ("sum", 12)])
def test_features_are_scaled_layers(fusion, width):
    X, y = data()
    t = LoesTransformer(k=2, fusion=fusion).fit(X, y)
    found = t.transform(X)
    assert found.shape == (90, width)
    parts = [X[:, i] / np.linalg.norm(X[:, i], axis=1).mean() for i in t.selected_]
    expected = {"concat": np.concatenate(parts, 1), "mean": sum(parts) / 2, "sum": sum(parts)}[fusion]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert len(t.get_feature_names_out()) == width
    np.testing.assert_allclose(t.result_.transform(X, fusion), expected, rtol=1e-12)


def test_flat_input_torch_input_and_calibration():
    X, y = data()
    flat = LoesTransformer(k=2, n_layers=5).fit(X.reshape(90, -1), y)
    assert flat.selected_ == LoesTransformer(k=2).fit(X, y).selected_
    assert LoesTransformer(k=2).fit(torch.tensor(X), y).selected_ == flat.selected_
    few = LoesTransformer(k=2, n_cal=30, random_state=1).fit(X, y)
    assert few.transform(X).shape == (90, 24)
    assert LoesTransformer(k=2, options={"task": "label_free"}).fit(X).selected_


def test_bad_input_of_the_transformer():
    from sklearn.exceptions import NotFittedError

    X, y = data()
    with pytest.raises(NotFittedError):
        LoesTransformer().transform(X)
    with pytest.raises(ValueError, match="fusion='max'"):
        LoesTransformer(fusion="max").fit(X, y)
    with pytest.raises(ValueError, match="4 layers; it was fitted on 5"):
        LoesTransformer(k=2).fit(X, y).transform(X[:, :4])
    with pytest.raises(ValueError, match="no 7 layers"):
        LoesTransformer(n_layers=7).fit(X.reshape(90, -1), y)
    with pytest.raises(ValueError, match="int64"):
        LoesTransformer().fit(X.astype(int), y)


def test_saved_layers_are_read_without_torch(tmp_path):
    X, y = data()
    result = select_layers(X, y, 2)
    result.save(tmp_path / "layers.json", fusion="mean")
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, numpy as np; from icml_loes.fused_layers import load_layers; "
        f"f = load_layers(r'{tmp_path / 'layers.json'}').transform(np.load(r'{tmp_path / 'X.npy'}')); "
        "assert 'torch' not in sys.modules; print(f.sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(result.transform(X, "mean").sum())
    assert load_layers(tmp_path / "layers.json") == result.fused("mean")


def test_damaged_files_are_refused(tmp_path):
    X, y = data()
    file = tmp_path / "layers.json"
    select_layers(X, y, 2).save(file)
    good = json.loads(file.read_text())
    bad = {
        "no JSON": "{",
        "another kind": json.dumps([1]),
        "a later format": json.dumps({**good, "format": 99}),
        "a layer that is not there": json.dumps({**good, "selected": [1, 77]}),
        "twice the same": json.dumps({**good, "selected": [1, 1]}),
        "no norm": json.dumps({**good, "norms": [0.0, 1.0]}),
        "a missing entry": json.dumps({k: v for k, v in good.items() if k != "fusion"}),
    }
    for text in bad.values():
        file.write_text(text)
        with pytest.raises(ValueError, match=r"layers\.json"):
            load_layers(file)
    with pytest.raises(FileNotFoundError):
        load_layers(tmp_path / "none.json")


def test_widths_that_differ_can_be_concatenated_only():
    layers, labels = layers_like_a_transformer(40, [6, 9, 4])
    result = select_layers(layers, labels, 2)
    arrays = [v.numpy() for v in layers]
    assert result.transform(arrays).shape[1] == sum(arrays[i].shape[1] for i in result.selected)
    with pytest.raises(ValueError, match="can be concatenated only"):
        result.transform(arrays, "sum")
    with pytest.raises(ValueError, match="scale='row'"):
        FusedLayers((0,), 2, (1.0,), ("a",), scale="row")


def test_whole_result_is_json():
    X, y = data()
    found = select_layers(X, y, 2)
    assert json.loads(json.dumps(found.as_dict()))["selected"] == found.selected
    rows = found.table()
    assert [r["place"] for r in rows if r["place"]]
    assert len(rows) == 5


class TestSentenceTransformer:
    """A model of the family with random weights."""

    @pytest.fixture
    def model(self, tmp_path):
        st = pytest.importorskip("sentence_transformers")
        transformers = pytest.importorskip("transformers")
        from icml_core.randomness import seeded

        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        config = transformers.BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=40,
        )  # fmt: skip
        with seeded(0):
            transformers.BertModel(config).save_pretrained(tmp_path)
        transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
        first = st.sentence_transformer.modules.Transformer(str(tmp_path))
        pool = st.sentence_transformer.modules.Pooling(16, "mean")
        return st.SentenceTransformer(modules=[first, pool], device="cpu")

    TEXTS = ["a b c", "d e", "f g h i j", "a", "b b b b b b b", "c d"] * 4

    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    def test_encode_gives_the_fused_vector_of_a_cut_backbone(self, model, pooling):
        labels = np.array([0, 1, 0, 1, 0, 1] * 4)
        states = collect_states(model, [(self.TEXTS, labels)], pooling=pooling)
        assert len(states.names) == 4
        transformer = LoesTransformer(k=2, options={"alpha": 0.0}).fit(states.stacked(), labels)
        from dataclasses import replace

        result = replace(transformer.result_, pooling=pooling)
        encoder = result.to_sentence_transformer(model)
        deepest = max(result.selected) + 1
        assert len(encoder[0].first.auto_model.encoder.layer) == deepest
        assert len(model[0].auto_model.encoder.layer) == 4
        expected = transformer.transform(states.stacked())
        np.testing.assert_allclose(encoder.encode(self.TEXTS), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(encoder.encode(self.TEXTS, batch_size=1), expected, rtol=1e-5, atol=1e-5)

    def test_blocks_above_the_cut_do_not_run(self, model):
        ran = []
        for i, block in enumerate(model[0].auto_model.encoder.layer):
            block.register_forward_hook(lambda *a, i=i: ran.append(i))
        fused = FusedLayers((1,), 4, (1.0,), ("encoder.layer.1",), pooling="mean")
        from icml_loes.sentence_encoder import fused_sentence_transformer

        fused_sentence_transformer(model, fused).encode(["a b"])
        assert ran == [0, 1]

    def test_what_does_not_fit_is_refused(self, model):
        from icml_loes.sentence_encoder import fused_sentence_transformer

        with pytest.raises(TypeError, match="expected a SentenceTransformer"):
            fused_sentence_transformer(torch.nn.Linear(2, 2), FusedLayers((0,), 4, (1.0,), ("a",)))
        with pytest.raises(ValueError, match="layers are 5 but the backbone has 4"):
            fused_sentence_transformer(model, FusedLayers((0,), 5, (1.0,), ("a",)))
