"""Figures of a run against the same computed by hand, on models of transformers."""

from __future__ import annotations

import math

import pytest
import torch
from icml_sso import (
    SSO,
    Health,
    HealthMonitor,
    build_param_groups,
    max_violation,
    spectral_mup_init_,
    suggest_lr,
)
from torch import nn


def llama(kind="Llama", **more):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="eager",
        **more,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.uniform_(0.5, 2.0, generator=generator)
            else:
                p.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def tokens(rows=2, length=20):
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_attention_logits_are_exact_and_below_their_bound(kind):
    """Against softmax weights of the eager attention: log ratios of weights are differences of logits."""
    model = llama(kind)
    ids = tokens(1, 12)
    with HealthMonitor(model) as monitor, torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
        report = monitor.report()
    for layer in range(2):
        for head in range(4):
            row = report[f"model.layers.{layer}.self_attn.head{head}"]
            assert row["logit max"] <= row["logit bound"]
            # Every difference of two logits is at most twice the maximum.
            w = weights[layer][0, head]
            spread = max(
                float(w[i, : i + 1].max().log() - w[i, : i + 1].clamp_min(1e-30).min().log())
                for i in range(12)
            )
            assert spread <= 2 * row["logit max"] + 1e-3
            assert row["logit max"] > 0.1


def test_exact_logits_equal_those_written_out():
    """Llama's queries and keys, rotated, by transformers' own function."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = llama()
    ids = tokens(1, 12)
    attention = model.model.layers[0].self_attn
    seen = {}
    handle = attention.register_forward_pre_hook(lambda m, a, k: seen.update(k), with_kwargs=True)
    with HealthMonitor(model) as monitor, torch.no_grad():
        model(ids)
        report = monitor.report()
    handle.remove()
    x = seen["hidden_states"]
    q = attention.q_proj(x).view(1, 12, 4, 8).transpose(1, 2)
    k = attention.k_proj(x).view(1, 12, 2, 8).transpose(1, 2)
    q, k = apply_rotary_pos_emb(q, k, *seen["position_embeddings"])
    logits = (q @ k.repeat_interleave(2, 1).mT / math.sqrt(8)).tril().abs().amax((0, 2, 3))
    for head in range(4):
        assert report[f"model.layers.0.self_attn.head{head}"]["logit max"] == pytest.approx(
            float(logits[head]), rel=1e-4
        )


def test_cached_norms_bound_the_heads_of_a_trained_model():
    model = llama()
    spectral_mup_init_(model)
    optimizer = SSO(model, lr=0.05)
    with HealthMonitor(model, optimizer) as monitor:
        for _ in range(3):
            monitor.reset()
            optimizer.zero_grad()
            model(tokens(), labels=tokens()).loss.backward()
            optimizer.step()
        monitor.reset()
        with torch.no_grad():
            model(tokens())
        report = monitor.report()
    w = model.model.layers[0].self_attn.q_proj.weight.detach().view(4, 8, 32)
    exact = torch.linalg.matrix_norm(w, ord=2)
    from icml_sso.health import norm_bounds

    bounds = dict(norm_bounds(optimizer))["model.layers.0.self_attn.q_proj.weight"]
    assert all(b >= float(e) for b, e in zip(bounds, exact, strict=True))
    heads = [r for n, r in report.items() if ".head" in n]
    assert len(heads) == 8
    assert all(r["logit bound"] >= r["logit max"] for r in heads)
    assert report["model.layers.0.mlp.up_proj.weight"]["sigma/R"] == pytest.approx(1.0, abs=0.1)


def test_activations_are_those_of_the_outputs():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    batches = [torch.randn(5, 6, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    with HealthMonitor(model) as monitor, torch.no_grad():
        outputs = torch.cat([model(x) for x in batches])
        report = monitor.report()
    assert report["2"]["activation rms"] == pytest.approx(float(outputs.square().mean().sqrt()), rel=1e-5)
    assert report["2"]["activation absmax"] == pytest.approx(float(outputs.abs().max()), rel=1e-6)
    assert report["model"]["largest activation absmax"] >= report["2"]["activation absmax"]
    handles = model[0]._forward_hooks
    assert not handles


def test_loads_of_experts_are_counted():
    model = llama("Mixtral", num_local_experts=4, num_experts_per_tok=2)
    with HealthMonitor(model) as monitor, torch.no_grad():
        routers = model(tokens(), output_router_logits=True).router_logits
        report = monitor.report()
    loads = []
    for layer, logits in enumerate(routers):
        chosen = logits.reshape(-1, 4).topk(2).indices
        load = torch.bincount(chosen.reshape(-1), minlength=4).float()
        expected = float(load.max() / load.mean()) - 1
        name = next(n for n in report if f"layers.{layer}." in n and "MaxVio" in report[n])
        assert report[name]["MaxVio"] == pytest.approx(expected, abs=1e-6)
        loads.append(expected)
    assert report["model"]["mean MaxVio"] == pytest.approx(sum(loads) / 2, abs=1e-6)


def test_max_violation():
    assert max_violation(torch.tensor([1.0, 1.0, 1.0, 5.0])) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no token or no expert"):
        max_violation(torch.zeros(3))


def test_an_embedding_on_a_sphere_is_warned_of():
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(9, 4), "fc": nn.Linear(4, 4, bias=False)})
    groups = [{"params": list(model.named_parameters()), "kind": "matrix"}]
    monitor = HealthMonitor(model, SSO(groups))
    assert len(monitor.warnings()) == 1
    assert "'embed_tokens.weight' looks like an input" in monitor.warnings()[0]
    assert HealthMonitor(model, SSO(model)).warnings() == []


def test_the_evaluator_names_what_is_missing():
    with pytest.raises(TypeError, match="batch is missing"):
        Health().evaluate(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="the subject is a int"):
        Health().evaluate(3, batch=torch.ones(1))
    figures = Health().evaluate(nn.Sequential(nn.Linear(2, 2)), batch=torch.ones(1, 2))
    assert figures["0: activation absmax"] > 0


def test_suggested_rates_give_updates_of_adamws_size(capsys):
    """Root mean square 0.2 adamw_lr, measured on a step of each group."""
    model = nn.ModuleDict({"a": nn.Linear(96, 24, bias=False), "b": nn.Linear(16, 64, bias=False)})
    groups = [{"params": [(f"{n}.weight", m.weight)], "kind": "matrix"} for n, m in model.items()]
    rates = suggest_lr(groups, 3e-3)
    assert capsys.readouterr().out.count("for AdamW's 0.003") == 2
    for group, lr in zip(groups, rates, strict=True):
        group["lr"] = lr
    optimizer = SSO(groups, retract="off", msign_dtype=torch.float32)
    for m in model.values():
        before = m.weight.detach().clone()
        m.weight.grad = torch.randn(m.weight.shape, generator=torch.Generator().manual_seed(2))
        optimizer.step()
        m.weight.grad = None
        rms = float((m.weight.detach() - before).square().mean().sqrt())
        assert rms == pytest.approx(0.2 * 3e-3, rel=0.05)
    aligned = SSO(model, scale_mode="align_adamw_rms")
    assert suggest_lr(aligned.param_groups, 1e-3, show=False) == [pytest.approx(1e-3)]
    with pytest.raises(ValueError, match="adamw_lr=0"):
        suggest_lr(groups, 0.0)
    with pytest.raises(ValueError, match="scale_mode='mup'"):
        suggest_lr(groups, 1e-3, scale_mode="mup")


def test_initial_weights_lie_on_their_spheres_by_svd():
    model = llama()
    embedding = model.model.embed_tokens.weight.detach().clone()
    spectral_mup_init_(model, 2.0, generator=torch.Generator().manual_seed(3))
    for group in build_param_groups(model):
        if group["kind"] == "matrix":
            for (name, p), rules in zip(group["params"], group["atomic"], strict=True):
                blocks = p.detach().split(rules["blocks"] or [p.shape[0]])
                for block in blocks:
                    radius = 2.0 * math.sqrt(block.shape[0] / block.shape[1])
                    assert float(torch.linalg.matrix_norm(block, ord=2)) == pytest.approx(radius, rel=1e-4), (
                        name
                    )
    assert torch.equal(model.model.embed_tokens.weight, embedding)
    again = llama()
    spectral_mup_init_(again, 2.0, generator=torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="radius_scale=0"):
        spectral_mup_init_(model, 0.0)
    with pytest.raises(ValueError, match="needs 'spectral_mup' or 'identity'"):
        spectral_mup_init_(model, radius_mode="initialize")
    zero = nn.Linear(3, 3)
    nn.init.zeros_(zero.weight)
    with pytest.raises(ValueError, match="is zero, and std=None"):
        spectral_mup_init_(zero, std=None)
