"""The decoder against transformers' Qwen3 and Qwen3-MoE, and against what can be said of it exactly."""

import dataclasses

import pytest
import torch
from icml_sso.configurations import RECIPES, MoEConfig, TransformerConfig, config_from_dict, recipe
from icml_sso.transformer import Transformer, rotary_table, rotate
from torch.nn import functional as F

SMALL = TransformerConfig(
    vocab_size=61,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=40,
    context=12,
    rope_theta=1e4,
)


def tokens(batch=3, time=12, seed=0, vocabulary=61):
    return torch.randint(0, vocabulary, (batch, time), generator=torch.Generator().manual_seed(seed))


def spread(model, seed=1):
    """Weights large enough that attention and experts do something, norms away from 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.3)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    return model


def qwen3(config, dtype, attention="eager"):
    transformers = pytest.importorskip("transformers")
    shared = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": False,
        "attn_implementation": attention,
        "experts_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }
    if config.moe is None:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shared)).to(dtype).eval()
    moe = transformers.Qwen3MoeConfig(
        **shared,
        num_experts=config.moe.num_experts,
        num_experts_per_tok=config.moe.num_experts_per_tok,
        moe_intermediate_size=config.moe.moe_intermediate_size,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=list(range(config.moe.first_dense_layers)),
    )
    return transformers.Qwen3MoeForCausalLM(moe).to(dtype).eval()


MODELS = {
    "dense": SMALL,
    "one key head": dataclasses.replace(SMALL, num_key_value_heads=1),
    "no grouping": dataclasses.replace(SMALL, num_key_value_heads=4),
    "base 1e6": dataclasses.replace(SMALL, rope_theta=1e6),
    "experts": dataclasses.replace(SMALL, moe=MoEConfig(5, 2, 16, first_dense_layers=1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_transformers(config, dtype):
    ours = spread(Transformer(config)).to(dtype)
    theirs = qwen3(config, dtype)
    left_out = {name for name in ours.state_dict() if name.endswith("selection_bias")}
    weights = {name: value for name, value in ours.state_dict().items() if name not in left_out}
    theirs.load_state_dict(weights)  # names and layouts agree: nothing missing, nothing left
    with torch.no_grad():
        expected, found = theirs(tokens()).logits, ours(tokens()).logits
    # In float64 too: transformers' norms and rotary tables compute in float32 whatever the model's precision.
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_double_precision_logits_are_those_of_transformers_with_exact_norms(monkeypatch):
    """With transformers' norms and rotary table in float64 as ours, logits agree to 1e-10."""
    modeling = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    ours = spread(Transformer(SMALL)).double()
    theirs = qwen3(SMALL, torch.float64, "sdpa")  # the eager one has a softmax in float32
    theirs.load_state_dict(ours.state_dict())
    monkeypatch.setattr(
        modeling.Qwen3RMSNorm,
        "forward",
        lambda self, x: self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt(),
    )
    table = rotary_table(12, SMALL.head_dim, SMALL.rope_theta, torch.device("cpu"))
    monkeypatch.setattr(
        modeling.Qwen3RotaryEmbedding, "forward", lambda self, x, position_ids: tuple(t[None] for t in table)
    )
    with torch.no_grad():
        expected, found = theirs(tokens()).logits, ours(tokens()).logits
    assert expected.dtype == torch.float64
    assert (found - expected).abs().max() < 1e-10 * expected.abs().max()


def test_the_future_has_no_part():
    model = spread(Transformer(MODELS["experts"])).double()
    changed = tokens()
    changed[:, 7:] = (changed[:, 7:] + 1) % 61
    with torch.no_grad():
        before, after = model(tokens()).logits, model(changed).logits
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-12)
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-3


def test_attention_scores_depend_on_distance_only():
    """(turn_m q)·(turn_n k) is the same for all m - n (RoFormer, equation 16)."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(8, generator=generator, dtype=torch.float64).expand(1, 1, 20, 8) for _ in range(2))
    cos, sin = rotary_table(20, 8, 1e4, torch.device("cpu"))
    scores = (rotate(q, cos, sin) @ rotate(k, cos, sin).mT)[0, 0]
    for offset in range(1, 19):
        diagonal = scores.diagonal(offset)
        assert (diagonal - diagonal[0]).abs().max() < 1e-12
    assert torch.allclose(scores.diagonal(), (q * k).sum(-1)[0, 0])


def test_loss_is_the_cross_entropy_of_the_logits_and_pieces_change_nothing(monkeypatch):
    model = spread(Transformer(SMALL)).double()
    targets = tokens(seed=5)
    targets[0, :4] = -100
    expected = F.cross_entropy(model(tokens()).logits.flatten(0, 1), targets.flatten())
    whole = model(tokens(), targets)
    assert abs(float((whole.loss - expected).detach())) < 1e-12
    whole.loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("icml_sso.transformer.LOSS_CHUNK", 61 * 5)  # five tokens a piece
    pieces = model(tokens(), targets)
    pieces.loss.backward()
    assert abs(float((pieces.loss - expected).detach())) < 1e-12
    assert all(
        torch.allclose(p.grad, g, atol=1e-12) for p, g in zip(model.parameters(), gradients, strict=True)
    )


def test_recomputing_activations_changes_no_gradient():
    config = MODELS["experts"]
    found = []
    for recompute in (False, True):
        model = spread(Transformer(config)).double()
        model.model.gradient_checkpointing = recompute
        model(tokens(), tokens(seed=5)).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(found[0], found[1], atol=1e-13)


def test_every_parameter_has_a_gradient_that_differences_confirm():
    model = spread(Transformer(MODELS["experts"])).double()
    loss = model(tokens(), tokens(seed=5)).loss
    loss.backward()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        direction /= direction.norm()
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                parameter.add_(step * direction)
                values.append(float(model(tokens(), tokens(seed=5)).loss))
            parameter.add_(1e-6 * direction)
        slope = (values[0] - values[1]) / 2e-6
        assert abs(slope - float((parameter.grad * direction).sum())) < 1e-6, name


def test_the_seed_decides_the_weights_and_no_global_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a, b, c = Transformer(SMALL, seed=4), Transformer(SMALL, seed=4), Transformer(SMALL, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert abs(a.model.embed_tokens.weight.std().item() - 0.02) < 0.002


def test_published_sizes_have_the_published_numbers_of_parameters():
    with torch.device("meta"):
        counts = {}
        for name in ("dense-1.7b", "moe-8b-a1b", "deepnet-200"):
            model = Transformer(RECIPES[name].model)
            counts[name] = sum(p.numel() for p in model.parameters())
    # Dense: 28 (4·2048² + ... ) counted by hand: q, o 2048·2048, k, v 2048·1024, three of 2048·6144, norms.
    layer = 2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 6144 + 2 * 2048 + 2 * 128
    assert counts["dense-1.7b"] == 28 * layer + 2048 + 2 * 100352 * 2048
    assert 1.6e9 < counts["dense-1.7b"] < 1.9e9
    assert 8e9 < counts["moe-8b-a1b"] < 9e9
    assert len(Transformer(dataclasses.replace(SMALL, num_hidden_layers=200)).model.layers) == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_attention_heads=4"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"hidden_size": 0}, "hidden_size=0 must be above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan must be above 0"),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden": 3}, "unknown field 'hidden'"),
        ({"hidden_size": 2.5}, "hidden_size=2.5: expected int"),
        ({"qk_norm": 1}, "qk_norm=1: expected true or false"),
        ({"moe": {"num_experts": True}}, "moe.num_experts=True: expected int"),
        ({"moe": 3}, "moe.: expected a mapping"),
        (
            {"moe": {"num_experts": 2, "num_experts_per_tok": 3}},
            "num_experts_per_tok=3 is more than num_experts=2",
        ),
    ],
)
def test_damaged_configurations_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(values)


def test_configurations_survive_a_round_trip():
    for chosen in RECIPES.values():
        assert config_from_dict(dataclasses.asdict(chosen.model)) == chosen.model


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'dense-1.7b'"):
        recipe("dense-1.8b")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.zeros(2, 3), TypeError, "int64 tokens, got torch.float32"),
        (torch.zeros(3, dtype=torch.int64), ValueError, r"shape \(batch, time\)"),
        (torch.zeros(2, 0, dtype=torch.int64), ValueError, "neither empty"),
        (torch.full((1, 2), 61), ValueError, "tokens from 61 to 61; the vocabulary is 0 to 60"),
        (torch.full((1, 2), -1), ValueError, "tokens from -1 to -1"),
    ],
)
def test_tokens_that_cannot_be_embedded_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Transformer(SMALL)(given)
    with pytest.raises(ValueError, match="targets of shape"):
        Transformer(SMALL)(tokens(), tokens()[:, :-1])
