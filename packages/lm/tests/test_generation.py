"""Generation against transformers' generate, rows alone against batches, and stops."""

import pytest
import torch
from icml_lm.generation import generate, generate_text, left_padded
from icml_lm.sampling import Choice, draw
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import ByteTokenizer, SymbolTokenizer

CONFIG = TinyConfig(vocab=40, d=32, layers=2, heads=4, kv_heads=2, initializer_range=0.4)


@pytest.fixture(params=["tiny", "llama"])
def model(request):
    tiny = TinyLM(CONFIG, seed=4).eval()
    return tiny if request.param == "tiny" else tiny.to_llama()


def _prompts(rows=6, columns=9, seed=0):
    ids = torch.randint(3, 40, (rows, columns), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, :row] = 0
    return ids, mask


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_greedy_tokens_are_those_of_transformers(model):
    ids, mask = _prompts()
    llama = model.to_llama() if isinstance(model, TinyLM) else model
    ends = [7, 11]  # tokens that some rows meet early
    whole = llama.generate(
        ids, attention_mask=mask, max_new_tokens=30, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )[:, 9:]
    out = generate(model, ids, mask, max_new_tokens=30, eos_id=ends)
    assert torch.equal(out.ids, whole[:, : out.ids.shape[1]])
    assert {"eos", "length"} >= set(out.finish)
    assert "eos" in out.finish
    for row, (length, finish) in enumerate(zip(out.lengths.tolist(), out.finish, strict=True)):
        assert (int(out.ids[row, length - 1]) in ends) == (finish == "eos")
        assert not out.logp[row, length:].any()


def test_log_probabilities_are_those_of_a_forward_pass(model):
    ids, mask = _prompts(rows=3)
    out = generate(model, ids, mask, max_new_tokens=8, temperature=0.7, generator=_seeded(1), eos_id=39)
    for row in range(3):
        length = int(out.lengths[row])
        whole = torch.cat((ids[row, mask[row].bool()], out.ids[row, :length]))[None]
        logp = (model(input_ids=whole).logits[0].double() / 0.7).log_softmax(-1)
        start = int(mask[row].sum())
        expected = logp[start - 1 : -1].gather(1, whole[0, start:, None])[:, 0]
        torch.testing.assert_close(out.logp[row, :length].double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.9}])
def test_a_sampled_row_is_the_same_alone(model, options):
    ids, mask = _prompts()
    options = {"max_new_tokens": 12, "temperature": 1.0, "eos_id": [3, 4, 5], "share_prefix": 2, **options}
    batch = generate(model, ids, mask, generator=_seeded(2), **options)
    one = _seeded(2)
    for row in range(len(ids)):
        alone = generate(model, ids[row : row + 1], mask[row : row + 1], generator=one, **options)
        for sample in range(2):
            length = int(batch.lengths[2 * row + sample])
            assert length == int(alone.lengths[sample])
            assert torch.equal(batch.ids[2 * row + sample, :length], alone.ids[sample, :length])
    assert len({tuple(r) for r in batch.ids.tolist()}) > len(ids)


def test_either_side_may_be_padded(model):
    ids, mask = _prompts()
    expected = generate(model, ids, mask, max_new_tokens=6)
    right, right_mask = torch.zeros_like(ids), torch.zeros_like(mask)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        right[row, :length], right_mask[row, :length] = ids[row, 9 - length :], 1
    assert torch.equal(generate(model, right, right_mask, max_new_tokens=6).ids, expected.ids)
    moved, seen = left_padded(right, right_mask)
    assert torch.equal(moved[seen.bool()], ids[mask.bool()])


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -torch.inf]], dtype=torch.float64)
    n = 200_000
    uniform = torch.rand(n, generator=_seeded(0), dtype=torch.float64)
    for choice, kept in (
        (Choice(1.0), 4),
        (Choice(1.0, 1.0, 2), 2),
        (Choice(1.0, 0.6, 0), 1),
        (Choice(0.5), 4),
    ):
        tokens, _ = draw(logits.expand(n, -1), choice, uniform)
        p = (logits[0] / choice.temperature).softmax(-1)
        cut = torch.zeros_like(p)
        best = p.argsort(descending=True)[:kept]
        cut[best] = p[best] / p[best].sum()
        counts = torch.bincount(tokens, minlength=5).double()
        assert counts[cut == 0].sum() == 0
        inside = cut > 0
        chi = ((counts - n * cut).square()[inside] / (n * cut[inside])).sum()
        assert chi < 20.0  # three degrees of freedom: beyond 20 once in 6,000


def test_cuts_are_those_of_transformers():
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(50, 30, generator=_seeded(3))
    warped = TopPLogitsWarper(0.7)(None, TopKLogitsWarper(9)(None, logits))
    allowed = warped > -torch.inf
    seen = torch.zeros_like(allowed)
    rows = torch.arange(50)
    for u in torch.linspace(0, 1 - 1e-9, 400, dtype=torch.float64):
        tokens, _ = draw(logits, Choice(1.0, 0.7, 9), u.expand(50))
        seen[rows, tokens] = True
    assert not (seen & ~allowed).any()
    assert (seen == allowed).float().mean() > 0.995  # a grid of 400 misses the rarest


def test_stop_strings_reach_over_token_borders():
    tokenizer = ByteTokenizer()
    said = "one STOP two"

    class Recite(torch.nn.Module):
        """Says the same bytes whatever it is given."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def new_cache(self, capacity):
            from icml_lm.cache import KeyValueCache

            return KeyValueCache(1)

        def forward(self, input_ids, past_key_values=None, use_cache=False, **rest):
            step = past_key_values.length
            held = torch.zeros(input_ids.shape[0], 1, input_ids.shape[1], 2)
            past_key_values.update(0, held, held)
            logits = torch.zeros(*input_ids.shape, 259)
            logits[:, -1, said.encode()[(step + input_ids.shape[1] - 3) % len(said)]] = 9.0
            from types import SimpleNamespace

            return SimpleNamespace(logits=logits)

    model = Recite()
    out = generate(model, torch.full((2, 3), 65), max_new_tokens=12, stop="STOP", tokenizer=tokenizer)
    assert tokenizer.decode(out.ids[0]) == "one STOP"
    assert out.finish == ["stop", "stop"]
    (text,) = generate_text(model, tokenizer, "abc", max_new_tokens=12, stop=["xx", "E S", "TOP"])
    assert text.text == "one S"
    assert text.finish == "stop"
    (text,) = generate_text(model, tokenizer, "abc", max_new_tokens=12, stop=ord("S"))
    assert (text.text, text.finish) == ("one ", "eos")
    (text,) = generate_text(model, tokenizer, "abc", max_new_tokens=5)
    assert (text.text, text.finish, len(text.logp)) == ("one S", "length", 5)
    with pytest.raises(ValueError, match="need tokenizer="):
        generate(model, torch.full((2, 3), 65), max_new_tokens=2, stop="STOP")


def test_several_texts_a_prompt_in_the_order_of_the_prompts():
    symbols = SymbolTokenizer([f"s{i}" for i in range(37)])
    model = TinyLM(CONFIG, seed=4).eval()
    texts = generate_text(
        model,
        symbols,
        ["s1 s2", "s3"],
        max_new_tokens=5,
        temperature=1.0,
        generator=_seeded(0),
        share_prefix=3,
    )
    assert len(texts) == 6
    again = generate_text(
        model,
        symbols,
        ["s1 s2", "s3"],
        max_new_tokens=5,
        temperature=1.0,
        generator=_seeded(0),
        share_prefix=3,
    )
    assert texts == again


def test_a_logits_processor_sees_the_tokens_so_far(model):
    ids, mask = _prompts(rows=2)

    def never_twice(tokens, logits):
        assert tokens.shape[0] == logits.shape[0]
        return logits.scatter(1, tokens, -torch.inf)

    out = generate(model, ids, mask, max_new_tokens=10, logits_processor=never_twice)
    for row in range(2):
        written = out.ids[row].tolist()
        assert len(set(written)) == 10
        assert not set(written) & set(ids[row].tolist())


def test_the_device_is_looked_at_once_a_step():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looks(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += "_local_scalar_dense" in str(function) or "nonzero" in str(function)
            return function(*args, **(kwargs or {}))

    model = TinyLM(CONFIG, seed=4).eval()
    ids, mask = _prompts()
    counts = []
    for new in (10, 30):
        with Looks() as looks:
            out = generate(model, ids, mask, max_new_tokens=new, eos_id=10**6)
        assert out.lengths.tolist() == [new] * 6
        counts.append(looks.count)
    assert counts[1] - counts[0] == 20


def test_the_models_mode_is_put_back():
    model = TinyLM(CONFIG).train()
    generate(model, torch.tensor([[3, 4]]), max_new_tokens=1)
    assert model.training


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": 1.0}, "pass generator="),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_k": -1}, "top_k=-1"),
        ({"share_prefix": 0}, "share_prefix=0"),
        ({"mask": torch.tensor([[0, 0]])}, "row 0 has no token"),
        ({"mask": torch.tensor([[1]])}, "does not belong"),
        ({"ids": torch.zeros(2)}, "whole numbers"),
        ({"ids": torch.zeros(1, 3).long(), "mask": torch.tensor([[1, 0, 1]])}, "between the tokens"),
    ],
)
def test_impossible_arguments_are_named(wrong, said):
    arguments = {"ids": torch.tensor([[3, 4]]), "max_new_tokens": 1, **wrong}
    with pytest.raises(ValueError, match=said):
        generate(TinyLM(CONFIG), **arguments)
    with pytest.raises(ValueError, match="has no token"):
        generate_text(TinyLM(CONFIG), SymbolTokenizer(["a"]), "", max_new_tokens=1)
