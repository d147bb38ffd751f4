"""Activations at named sites: what each site is, and that additions land there."""

import pytest
import torch
from icml_lm.generation import generate
from icml_lm.hooks import SiteError, add, read, sites
from icml_lm.tiny import TinyConfig, TinyLM

CONFIG = TinyConfig(vocab=19, d=16, heads=2, layers=3, initializer_range=0.5)


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=19, n_embd=16, n_layer=3, n_head=2, n_positions=32)).eval()


MAKERS = {
    "tiny": lambda: TinyLM(CONFIG, seed=1).eval(),
    "llama": lambda: TinyLM(CONFIG, seed=1).eval().to_llama(),
    "gpt2": _gpt2,
}


@pytest.fixture(params=MAKERS)
def model(request):
    return MAKERS[request.param]()


IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])


def test_every_site_is_read_and_the_residual_stream_adds_up(model):
    names = sites(model)
    assert len(names) == 2 + 3 * 3
    with read(model, names) as found:
        out = model(input_ids=IDS, output_hidden_states=True)
    states = out.hidden_states
    for i in range(2):
        torch.testing.assert_close(found[f"residual.{i}"], states[i + 1])
    torch.testing.assert_close(found["norm"], states[-1])
    assert torch.equal(found["residual.2"], found["residual.2"])
    before = found["residual.1"]
    total = before + found["attention.2"] + found["mlp.2"]
    torch.testing.assert_close(found["residual.2"], total, rtol=1e-5, atol=1e-5)
    assert len(dict(found)) == len(names)
    assert not found["norm"].requires_grad


def test_an_addition_to_the_norm_moves_the_logits_by_the_head(model):
    vector = torch.linspace(-1, 1, 16)
    before = model(input_ids=IDS).logits
    with add(model, {"norm": vector}):
        after = model(input_ids=IDS).logits
    head = model.get_output_embeddings()
    torch.testing.assert_close(after - before, (head.weight @ vector).expand_as(before), rtol=0, atol=1e-4)
    assert torch.equal(model(input_ids=IDS).logits, before)


def test_changes_by_function_and_gradients(model):
    with read(model, "residual.-1") as reading:
        model(input_ids=IDS)
    vector = torch.zeros(16, requires_grad=True)
    with (
        add(model, {"residual.0": vector, "mlp.1": lambda x: 0.0 * x}),
        read(model, "mlp.1", gradient=True) as r,
    ):
        loss = model(input_ids=IDS).logits.square().sum()
    assert not r["mlp.1"].any()
    (slope,) = torch.autograd.grad(loss, vector)
    assert slope.abs().sum() > 0
    assert reading["residual.-1"].shape == (2, 4, 16)


def test_a_generation_is_read_pass_by_pass():
    model = TinyLM(CONFIG, seed=1).eval()
    with read(model, ["residual.1"], keep="all") as found:
        out = generate(model, IDS, max_new_tokens=4)
    assert [x.shape[1] for x in found.calls["residual.1"]] == [4, 1, 1, 1]
    with read(model, "residual.1") as whole:
        model(torch.cat((IDS, out.ids[:, :3]), 1))
    together = torch.cat(found.calls["residual.1"], 1)
    torch.testing.assert_close(together, whole["residual.1"], rtol=0, atol=2e-4)
    found.clear()
    with pytest.raises(ValueError, match="nothing has been read"):
        found["residual.1"]


def test_unknown_sites_and_wrong_shapes_are_named(model):
    for name in ("residual.3", "residual", "mlp.x", "head"):
        with pytest.raises(SiteError, match="no site") as caught, read(model, name):
            pass
        assert caught.value.name == name
        assert "residual.2" in caught.value.available
    with pytest.raises(ValueError, match="does not fit"), add(model, {"norm": torch.zeros(5)}):
        model(input_ids=IDS)
    with pytest.raises(ValueError, match="made"), add(model, {"norm": lambda x: x[:1]}):
        model(input_ids=IDS)
    with pytest.raises(ValueError, match="'first'"), read(model, "norm", keep="first"):
        pass
    with pytest.raises(TypeError, match="Linear has no decoder"):
        sites(torch.nn.Linear(2, 2))
