"""One set of cache functions for TinyLM's and transformers' caches."""

import pytest
import torch
from icml_lm.cache import KeyValueCache, cache_length, crop, new_cache, repeat_rows, run_cached, select_rows
from icml_lm.tiny import TinyConfig, TinyLM

CONFIG = TinyConfig(vocab=17, d=16, heads=2, layers=2, initializer_range=0.4)


@pytest.fixture(params=["tiny", "llama"])
def model(request):
    tiny = TinyLM(CONFIG, seed=1).eval()
    return tiny if request.param == "tiny" else tiny.to_llama()


def _ids(rows, columns, seed=0):
    return torch.randint(17, (rows, columns), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_rows_repeat_leave_and_are_cropped(model):
    ids = _ids(2, 5)
    more = _ids(4, 3, seed=1)
    cache = new_cache(model, 6)
    run_cached(model, ids, cache)
    repeat_rows(cache, 2)
    first = run_cached(model, more, cache).logits
    whole = torch.cat((ids.repeat_interleave(2, 0), more), 1)
    torch.testing.assert_close(first, model(input_ids=whole).logits[:, 5:], rtol=0, atol=1e-5)
    assert cache_length(cache) == 8
    rows = torch.tensor([3, 0])
    select_rows(cache, rows)
    crop(cache, 6)
    again = run_cached(model, more[rows, 1:], cache).logits
    torch.testing.assert_close(again, first[rows, 1:], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="cannot crop a cache of length 8 to 9"):
        crop(cache, 9)


@torch.no_grad()
def test_the_last_logits_alone(model):
    ids = _ids(3, 4)
    out = run_cached(model, ids, new_cache(model), last_only=True).logits
    assert out.shape == (3, 1, 17)
    torch.testing.assert_close(out[:, 0], model(input_ids=ids).logits[:, -1], rtol=0, atol=1e-5)


def test_buffers_grow_and_copies_are_apart():
    generator = torch.Generator().manual_seed(0)
    pieces = [torch.randn(2, 3, n, 4, generator=generator) for n in (2, 1, 5, 1, 1)]
    cache = KeyValueCache(1, capacity=3)
    for piece in pieces[:3]:
        keys, values = cache.update(0, piece, -piece)
    copied = cache.copy()
    for piece in pieces[3:]:
        keys, values = cache.update(0, piece, -piece)
    assert torch.equal(keys, torch.cat(pieces, 2))
    assert torch.equal(values, -torch.cat(pieces, 2))
    assert cache.length == cache.get_seq_length() == 10
    assert cache.batch_size == 2
    assert copied.length == 8
    kept, _ = copied.update(0, pieces[0], pieces[0])
    assert torch.equal(kept, torch.cat([*pieces[:3], pieces[0]], 2))
    assert torch.equal(cache.update(0, pieces[1], pieces[1])[0][:, :, :10], torch.cat(pieces, 2))


def test_wrong_rows_and_sizes_are_refused():
    cache = KeyValueCache(1)
    cache.update(0, torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2))
    with pytest.raises(ValueError, match="holds 2 rows and was given 3"):
        cache.update(0, torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))
    with pytest.raises(ValueError, match="at least one layer"):
        KeyValueCache(0)
    assert cache_length(None) == 0
