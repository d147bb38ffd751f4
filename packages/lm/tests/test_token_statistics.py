"""Token statistics against float64 log-softmax, for plain, scaled, capped and biased heads."""

import pytest
import torch
from icml_lm.decoder import head_of, hidden_and_head
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.token_statistics import token_stats


def _exact(logits, targets, temperature=1.0):
    logp = (logits.double() / temperature).log_softmax(-1)
    p = logp.exp()
    entropy = -torch.where(p > 0, p * logp, 0.0).sum(-1)
    variance = torch.where(p > 0, p * (logp + entropy[..., None]).square(), 0.0).sum(-1)
    return logp.gather(-1, targets[..., None])[..., 0], entropy, variance


def _tiny(**fields):
    return TinyLM(TinyConfig(vocab=23, d=16, heads=2, initializer_range=0.5, **fields), seed=1).eval()


def _hf(kind):
    import transformers

    sizes = {
        "vocab_size": 23,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    extra = {
        "Cohere": {"logit_scale": 0.25},
        "Granite": {"logits_scaling": 4.0},
        "Gemma2": {"final_logit_softcapping": 0.5, "head_dim": 8},
    }
    config = getattr(transformers, f"{kind}Config")(**sizes, **extra[kind], initializer_range=0.5)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def _phi():
    import transformers

    config = transformers.PhiConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    torch.manual_seed(0)
    model = transformers.PhiForCausalLM(config).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    return model


MODELS = {
    "tiny": _tiny,
    "tied": lambda: _tiny(tied=True),
    "float64": lambda: _tiny().double(),
    "cohere": lambda: _hf("Cohere"),
    "granite": lambda: _hf("Granite"),
    "gemma2": lambda: _hf("Gemma2"),
    "phi": _phi,
}


@pytest.mark.parametrize("name", MODELS)
def test_statistics_of_every_kind_of_head(name):
    model = MODELS[name]()
    ids = torch.randint(3, 23, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :2], mask[2, 5:] = 0, 0
    found = token_stats(model, ids, mask, temperature=0.8)
    hidden, head, _ = hidden_and_head(model, ids)
    assert hidden is not None
    assert head is not None
    for row in range(3):
        alone = ids[row, mask[row].bool()][None]
        exact = _exact(model(input_ids=alone).logits[0, :-1], alone[0, 1:], 0.8)
        real = mask[row, 1:].bool() & mask[row, :-1].bool()
        for values, expected in zip(found, exact, strict=True):
            torch.testing.assert_close(values[row, real].double(), expected, rtol=0, atol=1e-5)
            assert not values[row, ~real].any()


def test_only_what_is_scored_is_computed():
    model = _tiny()
    ids = torch.arange(3, 9)[None]
    scored = torch.tensor([[0, 0, 0, 1, 1, 0]])
    part, whole = token_stats(model, ids, scored=scored), token_stats(model, ids)
    torch.testing.assert_close(part.logp[0, 2:4], whole.logp[0, 2:4])
    assert not part.logp[0, [0, 1, 4]].any()


def test_a_head_that_does_more_than_its_configuration_says_is_not_trusted():
    model = _tiny()

    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.config, self.model = model, model.config, model.model
            self.get_output_embeddings = model.get_output_embeddings

        def forward(self, input_ids, logits_to_keep=0, **rest):
            out = self.inner(input_ids, logits_to_keep=logits_to_keep, **rest)
            out.logits = 2.0 * out.logits
            return out

    wrapped = Doubled()
    ids = torch.arange(3, 9)[None]
    assert head_of(wrapped) is not None
    assert hidden_and_head(wrapped, ids)[0] is None
    exact = _exact(2.0 * model(ids).logits[:, :-1], ids[:, 1:])
    torch.testing.assert_close(token_stats(wrapped, ids).entropy.double(), exact[1], rtol=0, atol=1e-5)


def test_gradients_are_those_of_the_plain_formula():
    model = _tiny().double()
    ids = torch.arange(3, 9)[None]
    weights = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    found = token_stats(model, ids)
    loss = (found.logp * weights + found.entropy * weights.flip(0) - found.varentropy).sum()
    ours = torch.autograd.grad(loss, list(model.parameters()))
    logp, entropy, variance = _exact(model(ids).logits[:, :-1], ids[:, 1:])
    loss = (logp * weights + entropy * weights.flip(0) - variance).sum()
    for a, b in zip(ours, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"ids": torch.tensor([[1]])}, "no predicted token"),
        ({"mask": torch.ones(1, 2)}, "mask has the shape"),
    ],
)
def test_impossible_arguments_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        token_stats(_tiny(), **{"ids": torch.tensor([[1, 2, 3]]), **wrong})
