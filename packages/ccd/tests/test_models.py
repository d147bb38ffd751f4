"""Models as the decoder calls them: alignment of logits, prompts of different lengths, caches, folders."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch
from icml_ccd import (
    MaskedDecoder,
    MDMConfig,
    TinyMDM,
    UnclearShift,
    decode,
    load_mdm,
    measure_shift,
    train_mdm,
)
from icml_lm import TinyConfig, TinyLM

VOCAB = 12
MASK = VOCAB - 1


def rotary(seed=0, **options):
    """Without learned positions: only distances count. Larger weights make it decided."""
    model = TinyMDM(MDMConfig(VOCAB, MASK, d=32, layers=2, heads=2, **options), seed=seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(6.0)
    return model


@pytest.fixture(scope="module", params=[False, True], ids=["unshifted", "shifted"])
def counting(request):
    """Trained on rows that count upwards modulo 8, from anywhere."""
    data = (torch.arange(12) + torch.arange(8)[:, None]) % 8
    model = train_mdm(
        data, 9, 8, 12, steps=150, d=32, layers=1, heads=2, batch=32, lr=1e-2, shift_logits=request.param
    )
    return model, request.param


def test_the_alignment_of_logits_is_measured(counting):
    model, shifted = counting
    text = (torch.arange(12) + torch.arange(4)[:, None]) % 8
    found = measure_shift(model, text, 8)
    assert found.shifted == shifted
    assert abs(found.gain) > 0.5

    def plain(ids):
        return model(ids)

    out = decode(plain, text[:, :10], 2, rule="ccd", mask_id=8)
    assert out.trace.settings["shift_logits"] == shifted
    assert out.trace.settings["shift_measured"]["tokens"] >= 6
    assert out.n_forward == 2, "the measurement is not one of the decoding's forwards"
    assert torch.equal(out.sequences, text)


def test_the_wrong_alignment_writes_something_else(counting):
    model, shifted = counting
    text = (torch.arange(10)[None] + 3) % 8
    wrong = decode(model, text, 2, rule="ccd", shift_logits=not shifted)
    assert wrong.sequences[0, 10:].tolist() != [5, 6]


def test_an_unclear_alignment_asks():
    text = torch.randint(8, (1, 40), generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnclearShift, match="cannot tell"):
        measure_shift(lambda ids: torch.zeros(*ids.shape, 9), text, 8)
    with pytest.raises(UnclearShift, match="needs 12 visible tokens"):
        decode(lambda ids: torch.zeros(*ids.shape, 9), text[:, :3], 2, rule="ccd", mask_id=8)


@pytest.mark.parametrize("rule", ["neg_entropy", "ccd", "ccd_ds", "ccd_plus"])
def test_unequal_prompts_together_equal_each_alone(rule):
    """Left padding with true positions and a mask, on a rotary model in float32."""
    model = rotary(1)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    together = decode(model, ids, 10, rule=rule, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = decode(model, torch.tensor([prompt]), 10, rule=rule)
        assert torch.equal(together.sequences[row, width:], alone.sequences[0, len(prompt) :])
        assert torch.equal(together.trace.step[row], alone.trace.step[0])


def test_masks_of_an_infilled_text_stay_where_padding_is():
    model = rotary(1)
    ids = torch.tensor([[MASK, MASK, 3, MASK, 5], [2, MASK, 3, MASK, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    out = decode(model, ids, rule="ccd", infill=True, attention_mask=mask)
    assert (out.sequences[0, :2] == MASK).all()
    assert not (out.sequences[0, 2:] == MASK).any()


def test_the_head_of_masked_rows_alone_gives_the_same():
    model = rotary(2)
    prompt = torch.tensor([[3, 1, 4]])
    slim = decode(model, prompt, 8, rule="ccd")
    whole = decode(lambda ids: model(ids), prompt, 8, rule="ccd", mask_id=MASK, shift_logits=False)
    assert torch.equal(slim.sequences, whole.sequences)
    assert torch.equal(slim.trace.step, whole.trace.step)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("rule", ["neg_entropy", "ccd", "ccd_ds"])
def test_an_exact_cache_decodes_in_the_same_order(rule, shifted):
    model = rotary(3, block_length=4, prompt_length=6, shift_logits=shifted)
    prompt = torch.randint(10, (3, 6), generator=torch.Generator().manual_seed(1))
    plain = decode(model, prompt, 12, rule=rule, block_length=4)
    cached = decode(model, prompt, 12, rule=rule, block_length=4, cache=True)
    assert torch.equal(plain.sequences, cached.sequences)
    assert torch.equal(plain.trace.step, cached.trace.step)
    assert plain.n_forward == cached.n_forward
    report = cached.report
    assert report["cached_tokens"] > 0
    assert report["computed_tokens"] + report["cached_tokens"] == plain.n_forward * 3 * 18
    assert "came from the cache" in report["cache"]


def test_an_approximate_cache_fills_everything_and_a_useless_one_is_called_so():
    model = rotary(4)
    out = decode(model, torch.tensor([[1, 2, 3, 4]]), 8, rule="ccd", block_length=4, cache=True)
    assert not (out.sequences == MASK).any()

    class Recomputes:
        mask_id, shift_logits = MASK, False

        def __call__(self, ids):
            return model(ids)

        def forward_cached(self, ids, start, stop, refresh):
            return model(ids)[:, start:stop]

    useless = decode(Recomputes(), torch.tensor([[1, 2, 3, 4]]), 8, rule="ccd", block_length=4, cache=True)
    plain = decode(model, torch.tensor([[1, 2, 3, 4]]), 8, rule="ccd", block_length=4)
    assert torch.equal(useless.trace.step, plain.trace.step)
    assert "it does not pay here" in useless.report["cache"]
    with pytest.raises(TypeError, match="needs a model with forward_cached"):
        decode(lambda ids: model(ids), torch.tensor([[1]]), 4, mask_id=MASK, cache=True, shift_logits=False)


def test_a_causal_model_becomes_a_masked_one_that_shares_its_weights(tmp_path):
    causal = TinyLM(TinyConfig(vocab=VOCAB, d=16, layers=2, heads=2), seed=5)
    model = TinyMDM.from_causal(causal, MASK)
    assert model.shift_logits
    ids = torch.tensor([[1, 2, MASK, 4]])
    before = model(ids)[0, 0]
    ids[0, 3] = 7
    assert not torch.equal(before, model(ids)[0, 0]), "the first position sees the last one"
    assert model.lm.lm_head.weight is causal.lm_head.weight
    model.save(tmp_path)
    torch.testing.assert_close(TinyMDM.load(tmp_path)(ids), model(ids))


def test_saved_and_loaded_with_learned_positions(tmp_path):
    model = TinyMDM(MDMConfig(VOCAB, MASK, d=16, layers=1, heads=2, positions=8, eos_id=3), seed=1)
    model.save(tmp_path)
    loaded = TinyMDM.load(tmp_path)
    assert loaded.config == model.config
    ids = torch.tensor([[1, MASK, 2]])
    torch.testing.assert_close(loaded(ids), model(ids))
    (tmp_path / "mdm.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no masked diffusion model"):
        TinyMDM.load(tmp_path)


def test_bad_sizes_and_too_long_sequences_are_refused():
    with pytest.raises(ValueError, match="mask_id=12 is none of the 12 tokens"):
        MDMConfig(12, 12)
    with pytest.raises(ValueError, match="block_length=0"):
        MDMConfig(12, 11, block_length=0)
    model = TinyMDM(MDMConfig(VOCAB, MASK, d=16, layers=1, heads=2, positions=4))
    with pytest.raises(ValueError, match="5 positions; this model has learned 4"):
        model(torch.zeros(1, 5, dtype=torch.int64))


def test_a_decoder_is_called_like_generate():
    made = MaskedDecoder(rotary(1), "ccd", budget=2)
    ids = torch.tensor([[3, 1, 4]])
    found = made.generate(ids, max_new_tokens=6)
    assert torch.equal(found, decode(rotary(1), ids, 6, rule="ccd", budget=2).sequences)
    assert made.last.n_forward == 3


MODELING = """
    import torch
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class CountingConfig(PretrainedConfig):
        model_type = {kind!r}

    class CountingModel(PreTrainedModel):
        config_class = CountingConfig

        def __init__(self, config):
            super().__init__(config)
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.post_init()

        def forward(self, input_ids, attention_mask=None, position_ids=None):
            places = torch.arange(input_ids.shape[1]) + config_shift(self)
            self.seen = None if attention_mask is None else tuple(attention_mask.shape)
            logits = 5.0 * torch.nn.functional.one_hot(places % 7, 10).float() * self.scale
            return CausalLMOutput(logits=logits.expand(len(input_ids), -1, -1))

    def config_shift(model):
        return 1 if model.config.model_type == "Dream" else 0
"""


@pytest.mark.parametrize("kind", ["llada", "Dream"])
def test_folders_of_llada_and_dream_load_by_path(tmp_path, kind, monkeypatch):
    """The folder's code runs only where the user says so; the family's conventions are known."""
    pytest.importorskip("transformers")
    from safetensors.torch import save_file

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / f"model_{kind}"
    folder.mkdir()
    (folder / "modeling_counting.py").write_text(textwrap.dedent(MODELING).format(kind=kind))
    config = {
        "model_type": kind,
        "mask_token_id": 9,
        "eos_token_id": 8,
        "architectures": ["CountingModel"],
        "auto_map": {
            "AutoConfig": "modeling_counting.CountingConfig",
            "AutoModel": "modeling_counting.CountingModel",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"scale": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"modeling_counting.CountingModel\); read it, and say trust_remote_code"
    ):
        load_mdm(folder)
    model = load_mdm(folder, trust_remote_code=True, dtype=torch.float32)
    assert (model.mask_id, model.eos_id, model.shift_logits) == (9, 8, kind == "Dream")
    ids = torch.tensor([[0, 0, 1], [0, 1, 2]])
    out = decode(model, ids, 4, rule="ccd", attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]]))
    assert out.sequences[:, 3:].tolist() == [[3, 4, 5, 6]] * 2
    assert model.model.seen == ((2, 1, 7, 7) if kind == "Dream" else (2, 7))


def test_folders_without_a_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no config.json names a model_type"):
        load_mdm(tmp_path)
