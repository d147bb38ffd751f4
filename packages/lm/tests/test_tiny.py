"""TinyLM against transformers' Llama with the same weights, in float64."""

import copy
import itertools

import pytest
import torch
from icml_lm.tiny import IGNORE, TinyConfig, TinyLM, token_loss
from icml_lm.tiny_layers import RMSNorm

CONFIGS = [
    TinyConfig(vocab=37, d=32, layers=3, heads=4, initializer_range=0.3),
    TinyConfig(vocab=37, d=32, layers=2, heads=4, kv_heads=2, tied=True, initializer_range=0.3),
    TinyConfig(
        vocab=11, d=16, layers=1, heads=4, kv_heads=1, hidden=20, rope_theta=50.0, initializer_range=0.5
    ),
]


def _double_llama(model):
    """transformers' Llama in float64 throughout: its own norm rounds to float32 whatever the type."""
    llama = model.to_llama()

    class Norm(torch.nn.Module):
        def __init__(self, old):
            super().__init__()
            self.weight, self.eps = old.weight, old.variance_epsilon

        def forward(self, x):
            return self.weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps))

    for module in list(llama.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                setattr(module, name, Norm(child))
    return llama


def _pair(config, seed=0):
    model = TinyLM(config, seed=seed).double()
    return model, _double_llama(model)


def _ids(config, rows=3, columns=9, seed=1):
    return torch.randint(config.vocab, (rows, columns), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_logits_loss_and_gradients_are_those_of_llama(config):
    model, llama = _pair(config)
    ids = _ids(config)
    labels = ids.clone()
    labels[0, :4] = IGNORE
    ours, theirs = model(ids, labels=labels), llama(ids).logits
    torch.testing.assert_close(ours.logits, theirs, rtol=0, atol=1e-10)
    # Llama's own loss rounds to float32.
    loss = torch.nn.functional.cross_entropy(theirs[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(ours.loss, loss, rtol=0, atol=1e-10)
    assert abs(ours.loss.item() - llama(ids, labels=labels).loss.item()) < 1e-5
    ours.loss.backward()
    loss.backward()
    other = dict(llama.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, other[name].grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_padded_rows_equal_llama_and_themselves_alone(side, kind):
    config = CONFIGS[1]
    model, llama = _pair(config)
    model.set_attention(kind)
    ids = _ids(config)
    mask = torch.ones_like(ids)
    for row, missing in enumerate((0, 3, 5)):
        mask[row, :missing] = 0
    if side == "right":
        mask = mask.flip(1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ours = model(ids, attention_mask=mask, position_ids=positions).logits
    theirs = llama(ids, attention_mask=mask, position_ids=positions).logits
    real = mask.bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-10)
    for row in range(3):
        alone = model(ids[row, real[row]][None]).logits[0]
        torch.testing.assert_close(ours[row, real[row]], alone, rtol=0, atol=1e-10)
    assert torch.isfinite(ours).all()


def test_cached_steps_give_the_logits_of_the_whole():
    config = CONFIGS[1]
    model, llama = _pair(config)
    ids = _ids(config)
    whole = llama(ids).logits
    cache, parts = None, []
    for start, end in itertools.pairwise((0, 4, 5, 7, 9)):
        out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)


def test_gradients_flow_through_a_cache():
    config = CONFIGS[0]
    model, _ = _pair(config)
    ids = _ids(config)
    first = model(ids[:, :5], use_cache=True)
    rest = model(ids[:, 5:], past_key_values=first.past_key_values, use_cache=True).logits
    (ours,) = torch.autograd.grad(rest.square().sum(), model.model.embed_tokens.weight)
    whole = model(ids).logits[:, 5:]
    (expected,) = torch.autograd.grad(whole.square().sum(), model.model.embed_tokens.weight)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


def test_hidden_states_are_llamas():
    model, llama = _pair(CONFIGS[0])
    ids = _ids(CONFIGS[0])
    ours = model(ids, output_hidden_states=True).hidden_states
    theirs = llama(ids, output_hidden_states=True).hidden_states
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_sinks_are_the_attention_paid_to_the_first_token():
    model = TinyLM(CONFIGS[1], seed=3).double()
    llama = model.to_llama()
    llama.set_attn_implementation("eager")
    ids = _ids(CONFIGS[1])
    sinks = model(ids, output_sinks=True).sinks
    for ours, theirs in zip(sinks, llama(ids, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(ours, theirs[..., 0], rtol=0, atol=1e-5)  # their norm is in float32


def test_sink_mass_of_uniform_attention_is_one_over_t():
    model = TinyLM(TinyConfig(vocab=7, d=8, heads=2, layers=1)).double()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.zero_()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    (sinks,) = model(torch.arange(6)[None], attention_mask=mask, output_sinks=True).sinks
    expected = 1.0 / torch.arange(1, 5, dtype=torch.float64)
    torch.testing.assert_close(sinks[0, :, 2:], expected.expand(2, 4))


def test_bidirectional_model_sees_the_future_and_only_real_tokens():
    config = TinyConfig(vocab=13, d=16, heads=2, causal=False, initializer_range=0.5)
    model = TinyLM(config).double()
    ids = _ids(config, rows=1, columns=6)
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 13
    assert (model(ids).logits[0, 0] - model(changed).logits[0, 0]).abs().max() > 1e-6
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    same = model(ids, attention_mask=mask).logits[0, :5] - model(changed, attention_mask=mask).logits[0, :5]
    assert same.abs().max() == 0
    alone = model(ids[:, :5]).logits[0]
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[0, :5], alone)
    with pytest.raises(ValueError, match="no cache"):
        model(ids, use_cache=True)
    with pytest.raises(ValueError, match="causal"):
        model.to_llama()


def test_bidirectional_loss_scores_the_token_itself():
    config = TinyConfig(vocab=13, d=16, heads=2, causal=False)
    model = TinyLM(config)
    ids = _ids(config, rows=2, columns=5)
    out = model(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
    torch.testing.assert_close(out.loss, expected)


def test_loss_without_a_supervised_token_is_zero_with_a_graph():
    logits = torch.randn(2, 4, 5, requires_grad=True, generator=torch.Generator().manual_seed(0))
    loss = token_loss(logits, torch.full((2, 4), IGNORE))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad.abs().max() == 0


def test_embeddings_may_be_given_instead_of_tokens():
    model, _ = _pair(CONFIGS[0])
    ids = _ids(CONFIGS[0])
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(ids).logits)
    for both in ({}, {"input_ids": ids, "inputs_embeds": embedded}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            model(**both)


def test_output_is_read_as_transformers_outputs_are():
    model = TinyLM(CONFIGS[2])
    ids = _ids(CONFIGS[2])
    out = model(ids, labels=ids, logits_to_keep=0)
    assert out["logits"] is out.logits
    assert out[0] is out.loss
    assert "hidden_states" not in out
    with pytest.raises(KeyError, match="sinks"):
        out["sinks"]
    kept = model(ids, logits_to_keep=2).logits
    torch.testing.assert_close(kept, out.logits[:, -2:])


def test_norm_gradient():
    norm = RMSNorm(5, 1e-5).double()
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(norm, (x,))


def test_vmap_over_weights_gives_each_model_alone():
    config = TinyConfig(vocab=9, d=8, heads=2, layers=1)
    models = [TinyLM(config, seed=s).double() for s in range(3)]
    ids = torch.stack([_ids(config, rows=2, columns=4, seed=s) for s in range(3)])
    base = copy.deepcopy(models[0])
    base.set_attention("eager")
    stacked, _ = torch.func.stack_module_state(models)
    call = torch.func.vmap(lambda p, x: torch.func.functional_call(base, p, (x,)).logits)
    found = call(stacked, ids)
    for i, model in enumerate(models):
        torch.testing.assert_close(found[i], model(ids[i]).logits, rtol=0, atol=1e-12)


def test_copies_from_and_to_llama_and_the_disk(tmp_path):
    model = TinyLM(CONFIGS[1], seed=5)
    ids = _ids(CONFIGS[1])
    back = TinyLM.from_llama(model.to_llama())
    assert back.config == model.config
    torch.testing.assert_close(back(ids).logits, model(ids).logits, rtol=0, atol=0)
    model.save(tmp_path)
    loaded = TinyLM.load(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="'llama'"):
        TinyLM.load(tmp_path)


def test_llama_with_biases_is_refused():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=9,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_bias=True,
    )
    with pytest.raises(ValueError, match="attention_bias"):
        TinyLM.from_llama(LlamaForCausalLM(config))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"vocab": 0}, "vocab=0"),
        ({"d": 12, "heads": 4}, "even multiple"),
        ({"heads": 4, "kv_heads": 3}, "must divide"),
        ({"hidden": 0}, "hidden=0"),
    ],
)
def test_impossible_sizes_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        TinyConfig(**{"vocab": 5, "d": 16, **wrong})


def test_a_mask_of_another_length_is_refused():
    model = TinyLM(CONFIGS[2])
    with pytest.raises(ValueError, match="9 new"):
        model(_ids(CONFIGS[2]), attention_mask=torch.ones(3, 8))
    with pytest.raises(ValueError, match="'flash'"):
        model.set_attention("flash")


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state():
    before = torch.get_rng_state()
    a, b, c = (TinyLM(CONFIGS[0], seed=s) for s in (1, 1, 2))
    pairs = zip(a.parameters(), b.parameters(), c.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y, _ in pairs)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert torch.equal(before, torch.get_rng_state())


def test_sixteen_bits_are_as_near_as_llamas():
    model = TinyLM(CONFIGS[0], seed=1)
    ids = _ids(CONFIGS[0], rows=8)
    exact = model(ids).logits
    llama = model.to_llama().bfloat16()(ids).logits.float()
    ours = copy.deepcopy(model).bfloat16()(ids).logits.float()
    assert (exact - ours).square().mean() < 3.0 * (exact - llama).square().mean()
