"""LoRA on Llama and TinyLM: merged models say what adapted ones said, tied heads included."""

import pytest
import torch
from icml_lm.adapters import ALL_LINEAR, lora, merge
from icml_lm.generation import generate
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.training import train

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's remarks on tied heads


def _model(kind, tied):
    tiny = TinyLM(TinyConfig(vocab=31, d=16, heads=2, tied=tied, initializer_range=0.3), seed=1).eval()
    return tiny if kind == "tiny" else tiny.to_llama()


IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])


def _stir(adapted):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapted.eval()


@pytest.mark.parametrize("kind", ["tiny", "llama"])
@pytest.mark.parametrize(
    ("tied", "targets"),
    [
        (False, ALL_LINEAR),
        (False, "all-linear"),
        (True, ALL_LINEAR),
        (True, (*ALL_LINEAR, "embed_tokens", "lm_head")),
    ],
)
def test_greedy_text_is_unchanged_by_merging_saving_and_loading(kind, tied, targets, tmp_path):
    base = _model(kind, tied)
    before = generate(base, IDS, max_new_tokens=8, eos_id=30).ids
    adapted = _stir(lora(base, 4, targets=targets))
    expected = generate(adapted, IDS, max_new_tokens=8, eos_id=30).ids
    logits = adapted(input_ids=IDS).logits
    assert not torch.equal(expected, before)
    merged = merge(adapted)
    torch.testing.assert_close(merged(input_ids=IDS).logits, logits, rtol=0, atol=1e-4)
    if kind == "tiny":
        merged.save(tmp_path)
        loaded = TinyLM.load(tmp_path)
    else:
        from transformers import AutoModelForCausalLM

        merged.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(generate(loaded, IDS, max_new_tokens=8, eos_id=30).ids, expected)


@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_one_end_of_tied_embeddings_is_refused(kind):
    for targets in (["lm_head"], ["q_proj", "embed_tokens"]):
        with pytest.raises(ValueError, match="adapt both"):
            lora(_model(kind, True), 4, targets=targets)
    adapted = lora(_model(kind, False), 4, targets=["lm_head"])
    assert any("lm_head.lora_A" in name for name, _ in adapted.named_parameters())


def test_only_the_adapters_train_and_the_seed_decides():
    adapted = lora(_model("tiny", False), 2, seed=3)
    frozen = {n: p.clone() for n, p in adapted.named_parameters() if not p.requires_grad}
    assert {n for n, p in adapted.named_parameters() if p.requires_grad} == {
        n for n, _ in adapted.named_parameters() if "lora_" in n
    }
    train(adapted, lambda step: {"input_ids": IDS, "labels": IDS}, steps=2, lr=1e-2)
    assert all(torch.equal(p, frozen[n]) for n, p in adapted.named_parameters() if n in frozen)
    first, second, third = (
        [p for n, p in lora(_model("tiny", False), 2, seed=s).named_parameters() if "lora_A" in n]
        for s in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], third[0])


def test_impossible_arguments_are_named():
    with pytest.raises(ValueError, match="r=0"):
        lora(_model("tiny", False), 0)
    with pytest.raises(ValueError, match="called 'w_q'; it has down_proj"):
        lora(_model("tiny", False), 2, targets=["w_q"])
