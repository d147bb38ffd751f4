"""The mixture against a loop over experts, transformers' Qwen2-MoE, and loads counted by hand."""

import pytest
import torch
from icml_sso.configurations import MoEConfig
from icml_sso.moe import MixtureOfExperts, Router, max_violation
from torch.nn import functional as F


def mixture(experts=5, active=2, shared=12, seed=0, dtype=torch.float64):
    block = MixtureOfExperts(8, MoEConfig(experts, active, 6, shared)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return block


def inputs(count=23, seed=7):
    return torch.randn(1, count, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_a_loop(block, x, bias=None):
    """Token by token, expert by expert, as the definition says."""
    out = torch.zeros_like(x)
    load = [0] * block.gate.weight.shape[0]
    for place, token in enumerate(x[0]):
        p = torch.softmax(block.gate.weight @ token, dim=0)
        ranked = sorted(range(len(p)), key=lambda e: -(p[e] + (0 if bias is None else bias[e])))
        chosen = ranked[: block.gate.active]
        for e in chosen:
            load[e] += 1
            gate, up = (block.experts.gate_up_proj[e] @ token).split(6)
            out[0, place] += (
                p[e] / sum(p[c] for c in chosen) * (block.experts.down_proj[e] @ (F.silu(gate) * up))
            )
        if block.shared_expert is not None:
            s = block.shared_expert
            hidden = F.silu(s.gate_proj.weight @ token) * (s.up_proj.weight @ token)
            out[0, place] += torch.sigmoid(block.shared_expert_gate.weight[0] @ token) * (
                s.down_proj.weight @ hidden
            )
    return out, load


@pytest.mark.parametrize(
    ("experts", "active", "shared"), [(5, 2, 12), (5, 1, 0), (4, 4, 0), (1, 1, 3), (40, 2, 0)]
)
def test_output_and_load_are_those_of_a_loop(experts, active, shared):
    block = mixture(experts, active, shared)
    out, statistics = block(inputs())
    expected, load = by_a_loop(block, inputs())
    assert torch.allclose(out, expected, atol=1e-12)
    assert statistics.load.tolist() == load  # 40 experts for 46 assignments: some are empty
    assert sum(load) == 23 * active


def test_gradients_are_those_of_the_loop():
    block = mixture()
    block(inputs())[0].square().sum().backward()
    found = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    by_a_loop(block, inputs())[0].square().sum().backward()
    assert all(torch.allclose(p.grad, g, atol=1e-9) for p, g in zip(block.parameters(), found, strict=True))


def test_the_block_is_transformers_qwen2_moe():
    modeling = pytest.importorskip("transformers.models.qwen2_moe.modeling_qwen2_moe")
    from transformers import Qwen2MoeConfig

    config = Qwen2MoeConfig(
        hidden_size=8, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, norm_topk_prob=True,
        shared_expert_intermediate_size=12, experts_implementation="eager",
    )  # fmt: skip
    theirs, ours = modeling.Qwen2MoeSparseMoeBlock(config), mixture(dtype=torch.float32)
    theirs.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "gate.selection_bias"})
    x = inputs().float()
    with torch.no_grad():
        expected, found = theirs(x), ours(x)[0]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_auxiliary_loss_is_transformers_and_one_where_the_load_is_even():
    modeling = pytest.importorskip("transformers.models.qwen2_moe.modeling_qwen2_moe")
    block = mixture()
    logits = inputs()[0] @ block.gate.weight.mT
    theirs = modeling.load_balancing_loss_func((logits,), num_experts=5, top_k=2)
    statistics = block(inputs())[1]
    # transformers' shares of assignments sum to k, those of the Switch Transformer and Megatron to 1.
    assert abs(statistics.aux_loss.item() - theirs.item() / 2) < 1e-6
    assert abs(statistics.z_loss.item() - float(torch.logsumexp(logits, 1).square().mean())) < 1e-12
    with torch.no_grad():
        block.gate.weight.zero_()
    assert abs(block(inputs())[1].aux_loss.item() - 1) < 1e-12


def test_the_auxiliary_loss_evens_the_load():
    block = mixture()
    x = inputs(400) + 1.0  # a common direction makes some experts favourites
    before = float(max_violation(block(x)[1].load))
    optimizer = torch.optim.SGD([block.gate.weight], lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        block(x)[1].aux_loss.backward()
        optimizer.step()
    assert float(max_violation(block(x)[1].load)) < 0.3 * before


def test_the_selection_bias_chooses_but_does_not_weigh():
    block = mixture()
    bias = torch.tensor([0.0, 2.0, 0.0, 0.0, -2.0], dtype=torch.float64)
    block.gate.selection_bias.copy_(bias)
    out, statistics = block(inputs())
    expected, load = by_a_loop(block, inputs(), bias)
    assert torch.allclose(out, expected, atol=1e-12)
    assert statistics.load.tolist() == load
    assert load[1] == 23
    assert load[4] == 0


def test_bias_moves_against_the_load_and_evens_it():
    router = Router(8, 4, 2)
    router.update_bias(torch.tensor([10, 2, 6, 6]), 0.25)
    assert router.selection_bias.tolist() == [-0.25, 0.25, 0.0, 0.0]  # the mean load is 6
    block = mixture()
    x = inputs(400) + 1.0  # a common direction makes some experts favourites
    before = float(max_violation(block(x)[1].load))
    for rate in (1e-2, 1e-3, 1e-4, 1e-5):
        for _ in range(150):
            block.gate.update_bias(block(x)[1].load, rate)
    assert float(max_violation(block(x)[1].load)) < 0.3 * before


def test_max_violation_by_hand():
    assert float(max_violation(torch.tensor([4, 4, 4, 4]))) == 0.0
    assert float(max_violation(torch.tensor([16, 0, 0, 0]))) == 3.0  # E - 1 at worst
    assert max_violation(torch.tensor([[4, 4], [6, 2]])).tolist() == [0.0, 0.5]


def test_the_router_computes_in_float32_under_autocast():
    block = mixture(dtype=torch.float32)
    x = inputs().float()
    with torch.autocast("cpu", torch.bfloat16):
        out, statistics = block(x)
    assert statistics.z_loss.dtype == torch.float32
    assert torch.allclose(out.float(), block(x)[0], rtol=0.1, atol=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "num_experts=0 must be above 0"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 is more than num_experts=8"),
        ({"balance": "luck"}, "balance='luck' is none of"),
        ({"z_loss_coefficient": -1.0}, "z_loss_coefficient=-1.0 must not be negative"),
    ],
)
def test_impossible_mixtures_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        MoEConfig(**change)
