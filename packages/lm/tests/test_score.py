"""Shared-prefix scores against encoding each text whole."""

import pytest
import torch
from icml_lm.score import choose, shared_prefix_logprobs
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import SymbolTokenizer

CONFIG = TinyConfig(vocab=29, d=16, heads=2, kv_heads=1, layers=2, initializer_range=0.5)


@pytest.fixture(params=["tiny", "llama"])
def model(request):
    tiny = TinyLM(CONFIG, seed=2).eval()
    return tiny if request.param == "tiny" else tiny.to_llama()


def _rows(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 29, (n,), generator=generator).tolist() for n in lengths]


def _whole(model, prefix, suffix, temperature=1.0):
    text = torch.tensor([[*prefix, *suffix]])
    logp = (model(input_ids=text).logits[0].double() / temperature).log_softmax(-1)
    places = torch.arange(len(prefix) - 1, len(prefix) + len(suffix) - 1)
    return logp[places, torch.tensor(suffix)]


def test_scores_equal_full_encoding(model):
    (prefix,) = _rows([11])
    suffixes = _rows([4, 1, 6, 3], seed=1)
    begins = [1, 0, 4, 0]
    found = shared_prefix_logprobs(model, prefix, suffixes, score_from=begins, temperature=0.6)
    for suffix, begin, values in zip(suffixes, begins, found, strict=True):
        expected = _whole(model, prefix, suffix, 0.6)[begin:]
        torch.testing.assert_close(values.double(), expected, rtol=0, atol=1e-5)


def test_several_prefixes_of_unequal_length(model):
    prefixes = _rows([3, 8, 5])
    suffixes = [_rows([2, 4], seed=1), _rows([3], seed=2), _rows([1, 1, 5], seed=3)]
    found = shared_prefix_logprobs(model, prefixes, suffixes)
    assert [len(group) for group in found] == [2, 1, 3]
    for prefix, group, values in zip(prefixes, suffixes, found, strict=True):
        for suffix, value in zip(group, values, strict=True):
            torch.testing.assert_close(value.double(), _whole(model, prefix, suffix), rtol=0, atol=1e-5)


def test_the_prefix_is_read_once():
    model = TinyLM(CONFIG, seed=2).eval()
    seen = []
    model.model.embed_tokens.register_forward_hook(lambda m, args, out: seen.append(args[0].numel()))
    (prefix,) = _rows([50])
    shared_prefix_logprobs(model, prefix, _rows([4, 4, 4, 4]))
    assert sum(seen) == 50 + 4 * 3


def test_the_most_probable_option(model):
    tokenizer = SymbolTokenizer([f"s{i}" for i in range(26)])
    options = ["s1 s2", "s3", "s4 s5 s6"]
    found = choose(model, tokenizer, "s7 s8 s9", options)
    sums = [_whole(model, tokenizer.encode("s7 s8 s9"), tokenizer.encode(o)).sum() for o in options]
    assert found.index == int(torch.stack(sums).argmax())
    assert found.text == options[found.index]
    torch.testing.assert_close(found.logp.double(), torch.stack(sums), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="different tokens"):
        choose(model, tokenizer, "s7", ["s1", "s1"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], [[1]]), "prefix 0 is empty"),
        (([1], []), "no suffix"),
        (([1], [[1], []]), "suffix 1 of prefix 0 is empty"),
        (([[1], [2]], [[[1]]]), "2 prefixes and 1 lists"),
    ],
)
def test_empty_texts_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        shared_prefix_logprobs(TinyLM(CONFIG), *arguments)
    with pytest.raises(ValueError, match="score_from=2"):
        shared_prefix_logprobs(TinyLM(CONFIG), [1], [[1, 2]], score_from=2)


def test_numbers_that_are_none_are_refused():
    model = TinyLM(CONFIG)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="suffix 0"):
        shared_prefix_logprobs(model, [1], [[1, 2]])
