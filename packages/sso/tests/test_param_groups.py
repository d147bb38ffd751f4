"""Which parameters become matrices, and how they are cut, on models of transformers and torch."""

from __future__ import annotations

import pytest
import torch
from icml_sso import SSO, Atomic, build_param_groups
from torch import nn

COMMON = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def cuts(model, **options):
    """Name -> Atomic of the matrices, and the names that AdamW takes."""
    matrices, others = {}, []
    for group in build_param_groups(model, **options):
        if group["kind"] == "matrix":
            names = [n for n, _ in group["params"]]
            matrices |= {n: Atomic.from_dict(a) for n, a in zip(names, group["atomic"], strict=True)}
        else:
            others += [n for n, _ in group["params"]]
    return matrices, others


def llama(kind="Llama", **more):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**COMMON, **more)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@pytest.mark.parametrize(
    ("qkv", "q", "k"),
    [
        ("head", (8,) * 4, (8,) * 2),
        ("group", (16,) * 2, (8,) * 2),
        ("component", None, None),
        ("none", None, None),
    ],
)
def test_llama_by_heads_groups_and_components(kind, qkv, q, k):
    matrices, others = cuts(llama(kind), qkv=qkv)
    layer = "model.layers.0"
    assert matrices[f"{layer}.self_attn.q_proj.weight"].blocks == q
    assert matrices[f"{layer}.self_attn.k_proj.weight"].blocks == k
    assert matrices[f"{layer}.self_attn.v_proj.weight"].blocks == k
    for whole in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        assert matrices[f"{layer}.{whole}.weight"].blocks is None
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= set(others)
    assert len(matrices) == 7


def test_gpt2_is_stored_transposed_and_its_head_tied():
    import transformers

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=16)
    )
    matrices, others = cuts(model)
    fused = matrices["transformer.h.0.attn.c_attn.weight"]
    assert fused.transpose
    assert fused.blocks == (8,) * 12
    assert matrices["transformer.h.0.mlp.c_fc.weight"] == Atomic(transpose=True, role="c_fc")
    assert len(matrices) == 4
    assert "transformer.wpe.weight" in others
    # The tied output layer is counted once, as AdamW's.
    assert sum("wte" in n or "lm_head" in n for n in others) == 1
    assert cuts(model, qkv="component")[0]["transformer.h.0.attn.c_attn.weight"].blocks == (32, 32, 32)
    assert cuts(model, qkv="none")[0]["transformer.h.0.attn.c_attn.weight"].blocks is None


def test_mixtral_experts_are_matrices_of_their_own_and_its_router_one():
    model = llama("Mixtral", num_local_experts=4, num_experts_per_tok=2)
    matrices, _ = cuts(model)
    experts = next(a for n, a in matrices.items() if n.endswith("gate_up_proj"))
    assert (experts.batch_axes, experts.blocks, experts.transpose) == (1, (48, 48), False)
    down = next(a for n, a in matrices.items() if n.endswith("down_proj"))
    assert (down.batch_axes, down.blocks) == (1, None)
    assert next(a for n, a in matrices.items() if n.endswith("gate.weight")).role == "router"
    together, _ = cuts(model, split_gate_up=False, split_experts=False)
    assert next(a for n, a in together.items() if n.endswith("gate_up_proj")).merge_batch
    optimizer = SSO(model)
    counts = {optimizer.name(p): optimizer.layout(p).count for p in optimizer.param_groups[0]["params"]}
    assert next(c for n, c in counts.items() if n.endswith("gate_up_proj")) == 8


def test_fused_projections_of_phi3_and_gpt_neox():
    import transformers

    phi = transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**{**COMMON, "pad_token_id": 0, "head_dim": 8})
    )
    matrices, _ = cuts(phi)
    assert matrices["model.layers.0.self_attn.qkv_proj.weight"].blocks == (8,) * 8
    assert matrices["model.layers.0.mlp.gate_up_proj.weight"].blocks == (48, 48)
    assert cuts(phi, qkv="component")[0]["model.layers.0.self_attn.qkv_proj.weight"].blocks == (32, 16, 16)
    assert cuts(phi, qkv="group")[0]["model.layers.0.self_attn.qkv_proj.weight"].blocks == (
        16,
        16,
        8,
        8,
        8,
        8,
    )
    assert cuts(phi, split_gate_up=False)[0]["model.layers.0.mlp.gate_up_proj.weight"].blocks is None
    neox = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
        )
    )
    fused = cuts(neox, qkv="component")[0]["gpt_neox.layers.0.attention.query_key_value.weight"]
    assert fused.blocks == (8, 8, 8) * 4
    assert fused.labels == (0, 1, 2) * 4


def test_torch_attention_convolutions_and_plain_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3)
            self.body = nn.Conv2d(8, 16, 3, groups=4)
            self.attn = nn.MultiheadAttention(16, 2)
            self.fc = nn.Linear(16, 16)
            self.norm = nn.LayerNorm(16)
            self.up = nn.ConvTranspose2d(16, 8, 2)
            self.head = nn.Linear(16, 5)

    with pytest.warns(UserWarning, match="up.weight"):
        matrices, others = cuts(Net())
    assert matrices["body.weight"] == Atomic(flatten=True, blocks=(4,) * 4, role="conv")
    assert matrices["attn.in_proj_weight"].blocks == (8,) * 6
    assert matrices["attn.out_proj.weight"].blocks is None
    assert set(matrices) == {"body.weight", "attn.in_proj_weight", "attn.out_proj.weight", "fc.weight"}
    assert {"head.weight", "stem.weight", "norm.weight", "fc.bias", "up.weight"} <= set(others)


def test_a_rule_decides_first_and_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(4, 4))
    model[2].requires_grad_(False)

    def rule(name, parameter, module):
        return {"0.weight": Atomic(blocks=(2, 4)), "1.weight": "adamw"}.get(name)

    matrices, others = cuts(model, rule=rule)
    assert matrices == {"0.weight": Atomic(blocks=(2, 4))}
    assert set(others) == {"0.bias", "1.weight", "1.bias"}


def test_adapters_have_no_radius():
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = nn.Linear(8, 8, bias=False)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 8, bias=False)})

    layer = Adapter()
    layer.base_layer.requires_grad_(False)
    matrices, others = cuts(nn.ModuleDict({"q_proj": layer}))
    assert set(matrices) == {"q_proj.lora_A.default.weight", "q_proj.lora_B.default.weight"}
    assert all(not a.tangent and a.retract == "off" for a in matrices.values())
    assert others == []


def test_bad_models_are_named():
    with pytest.raises(TypeError, match="model is a list"):
        build_param_groups([])
    with pytest.raises(ValueError, match="qkv='heads' is not one of head"):
        build_param_groups(nn.Linear(2, 2), qkv="heads")
    with pytest.raises(ValueError, match="no trainable parameter"):
        build_param_groups(nn.ReLU())
    with pytest.raises(ValueError, match=r"number of heads of 'q_proj.weight' is unknown"):
        build_param_groups(nn.ModuleDict({"q_proj": nn.Linear(4, 4)}))
    with pytest.raises(TypeError, match="the rule gave 3"):
        build_param_groups(nn.Linear(2, 2), rule=lambda *a: 3)
    assert torch.is_tensor(build_param_groups(nn.Linear(2, 2))[0]["params"][0][1])
