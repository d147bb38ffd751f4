"""Loading by name, GGUF files against transformers' own reading, and what keeps weights fixed."""

import gc
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from icml_lm import memory
from icml_lm.gguf_file import read_directory
from icml_lm.models import freeze, frozen_copy, load, weight_hash
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import ByteTokenizer
from tokenizers.pre_tokenizers import ByteLevel

CONFIG = TinyConfig(vocab=260, d=64, layers=2, heads=4, kv_heads=2, hidden=96, initializer_range=0.2)


def _permuted(weight, heads):
    """llama.cpp's order of rotary pairs: halves of a head interleaved."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_gguf(path, model, kind):
    c = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("toy")
    writer.add_block_count(c.layers)
    writer.add_context_length(64)
    writer.add_embedding_length(c.d)
    writer.add_feed_forward_length(c.hidden)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_layer_norm_rms_eps(c.eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(c.d // c.heads)
    writer.add_vocab_size(c.vocab)
    tokens = ["<end>", *sorted(ByteLevel.alphabet()), "ab", "Ġa", "cd"]
    assert len(tokens) == c.vocab
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b", "Ġ a", "c d"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.layers)
    for name, weight in model.state_dict().items():
        if c.tied and name == "lm_head.weight":
            continue
        values = weight.float().numpy()
        if "q_proj" in name or "k_proj" in name:
            values = _permuted(values, c.heads if "q_proj" in name else c.kv_heads)
        target = names.get_name(name, try_suffixes=(".weight",))
        packed = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = np.ascontiguousarray(values)
        data = data if packed is gguf.GGMLQuantizationType.F32 else gguf.quantize(data, packed)
        writer.add_tensor(target, data, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("kind", "tied"), [("F32", False), ("Q8_0", True), ("F16", True)])
def test_a_gguf_file_is_read_as_transformers_reads_it(kind, tied, tmp_path):
    from transformers import AutoModelForCausalLM

    source = TinyLM(replace(CONFIG, tied=tied), seed=2)
    path = tmp_path / "toy.gguf"
    _write_gguf(path, source, gguf.GGMLQuantizationType[kind])
    model, tokenizer = load(path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="toy.gguf", dtype=torch.float32)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    ids = torch.arange(1, 9)[None]
    expected = source.to_llama()(ids).logits
    loose = {"F32": 0.0, "F16": 2e-2, "Q8_0": 0.3}[kind]
    assert (model(ids).logits - expected).abs().max() <= loose
    assert not model.training
    text = "ab 12 cd"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    half, _ = load(f"hf:{path}", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.lm_head.weight, model.lm_head.weight.bfloat16())


def test_loading_in_sixteen_bits_needs_little_more_than_the_weights(tmp_path):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of resident memory is read from /proc")
    path = tmp_path / "toy.gguf"
    large = replace(CONFIG, d=512, hidden=2048, layers=8)
    _write_gguf(path, TinyLM(CONFIG), gguf.GGMLQuantizationType.F32)
    load(path, dtype=torch.bfloat16)  # imports are no part of the figure
    _write_gguf(path, TinyLM(large), gguf.GGMLQuantizationType.F16)
    gc.collect()

    def resident(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    model, _ = load(path, dtype=torch.bfloat16)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert weights > 60e6
    assert resident("VmHWM") - before <= 1.2 * weights


def test_damaged_gguf_files_are_refused(tmp_path):
    path = tmp_path / "toy.gguf"
    _write_gguf(path, TinyLM(CONFIG), gguf.GGMLQuantizationType.F32)
    whole = path.read_bytes()
    assert read_directory(path).metadata["general.architecture"] == "llama"
    for cut, said in ((3, "does not begin"), (40, "cut off"), (len(whole) - 2000, "not lie inside")):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=said):
            load(path)
    path.write_bytes(whole[:4] + b"\x09" + whole[5:])
    with pytest.raises(ValueError, match="version 9"):
        load(path)
    # An array of a length that no file has, and an alignment of nothing.
    for key, kind, value, said in (
        (b"x", 9, (4).to_bytes(4, "little") + (2**63).to_bytes(8, "little"), "damaged"),
        (b"general.alignment", 4, bytes(4), "alignment of the data is 0"),
    ):
        field = len(key).to_bytes(8, "little") + key + kind.to_bytes(4, "little") + value
        counts = bytes(8) + (1).to_bytes(8, "little")
        path.write_bytes(whole[:8] + counts + field)
        with pytest.raises(ValueError, match=said):
            load(path)
    huge = whole[:8] + (2**62).to_bytes(8, "little") + whole[16:]
    path.write_bytes(huge)
    with pytest.raises(ValueError, match="GGUF|damaged|axes|bytes"):
        load(path)


def test_a_load_that_cannot_fit_names_the_bytes(tmp_path, monkeypatch):
    path = tmp_path / "toy.gguf"
    source = TinyLM(CONFIG)
    _write_gguf(path, source, gguf.GGMLQuantizationType.F32)
    source.save(tmp_path / "folder")
    count = sum(p.numel() for p in source.parameters())
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    for spec in (path, tmp_path / "folder"):
        with pytest.raises(MemoryError, match=f"needs {2 * count:,} bytes .* 1,000 are free"):
            load(spec, dtype=torch.bfloat16)


def test_folders_of_both_kinds(tmp_path):
    tiny = TinyLM(CONFIG, seed=1)
    tiny.save(tmp_path / "tiny")
    ByteTokenizer().save(tmp_path / "tiny" / "tokenizer.json")
    model, tokenizer = load(str(tmp_path / "tiny"), attn="eager")
    ids = torch.tensor([tokenizer.encode("hello")])
    torch.testing.assert_close(model(ids).logits, tiny(ids).logits, rtol=0, atol=1e-5)
    assert model.model.layers[0].self_attn.kind == "eager"
    (tmp_path / "empty").mkdir()
    for spec, error, said in (
        (tmp_path / "empty", ValueError, "holds no model"),
        (tmp_path / "tiny" / "config.json", ValueError, "neither a folder"),
        ("hf:/nowhere/at/all", FileNotFoundError, "no model at"),
        ("smolm2", ValueError, "names no model; say 'smollm2'"),
    ):
        with pytest.raises(error, match=said):
            load(spec)


def test_frozen_models_and_their_hash():
    model = TinyLM(CONFIG, seed=1)
    before = weight_hash(model)
    copied = frozen_copy(model)
    assert weight_hash(copied) == before
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-6
    assert weight_hash(model) != before
    assert weight_hash(copied) == before
    assert weight_hash(copied.bfloat16()) != before
    assert freeze(model) is model
    assert not model.training
    assert not model.lm_head.weight.requires_grad


def test_free_memory_is_known_here():
    free = memory.available_bytes()
    assert free is None or free > 2**20
    memory.check_memory(1, "cpu", "a byte")
