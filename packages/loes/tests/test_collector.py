"""States of real architectures with random weights: read by hooks, pooled right, whatever they are padded
with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_core.randomness import seeded
from icml_loes import collect_states, select_layers_from_model
from icml_loes.blocks import find_blocks
from icml_loes.pooling import first_tensor, pool_states
from torch import nn

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip


def bert(seed: int = 0):
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=32, **SMALL)
    with seeded(seed):
        return transformers.BertModel(config).eval()


def llama(seed: int = 0):
    config = transformers.LlamaConfig(vocab_size=40, num_key_value_heads=2, **SMALL)
    with seeded(seed):
        return transformers.LlamaModel(config).eval()


def vit(seed: int = 0):
    with seeded(seed):
        return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SMALL)).eval()


def texts(n: int = 20, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (n,), generator=g)
    return [torch.randint(1, 40, (int(k),), generator=g) for k in lengths]


def batches(tokens: list[torch.Tensor], size: int, side: str = "right") -> list[dict[str, torch.Tensor]]:
    found = []
    for start in range(0, len(tokens), size):
        group = tokens[start : start + size]
        longest = max(map(len, group))
        ids, mask = torch.zeros(len(group), longest, dtype=torch.long), torch.zeros(len(group), longest)
        for row, t in enumerate(group):
            place = slice(0, len(t)) if side == "right" else slice(longest - len(t), longest)
            ids[row, place], mask[row, place] = t, 1
        labels = torch.tensor([int(t[0]) % 2 for t in group])
        found.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
    return found


@pytest.mark.parametrize("make", [bert, llama], ids=["bert", "llama"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.filterwarnings("ignore:pooling='cls' of a decoder")
def test_batch_size_and_side_of_padding_do_not_matter(make, pooling):
    tokens, model = texts(), make()
    alone = collect_states(model, batches(tokens, 1), pooling=pooling).stacked()
    for size, side in ((7, "right"), (7, "left"), (32, "left")):
        found = collect_states(model, batches(tokens, size, side), pooling=pooling)
        torch.testing.assert_close(found.stacked(), alone, rtol=1e-5, atol=1e-5)
        chosen = select_layers_from_model(model, batches(tokens, size, side), 2, pooling=pooling)
        assert (
            chosen.selected
            == select_layers_from_model(model, batches(tokens, 1), 2, pooling=pooling).selected
        )


@pytest.mark.parametrize(("make", "names"), [(vit, None), (llama, "layers.{}")], ids=["vit", "llama"])
def test_the_last_layer_is_what_the_last_block_returned(make, names):
    model = make()
    g = torch.Generator().manual_seed(0)
    batch = (
        {"pixel_values": torch.randn(5, 3, 8, 8, generator=g)}
        if names is None
        else {"input_ids": torch.randint(1, 40, (5, 6), generator=g)}
    )
    kept = []
    found = find_blocks(model)
    block = dict(model.named_modules())[found.names[-1]]
    handle = block.register_forward_hook(lambda m, i, o: kept.append(first_tensor(o)))
    states = collect_states(model, [batch], pooling="last", final_norm=True)
    handle.remove()
    assert len(states.names) == 4
    assert torch.equal(states.layers[2], kept[0][:, -1])
    # The state after the final norm is a layer of its own, under the norm's name.
    with torch.no_grad():
        normed = model(**batch).last_hidden_state[:, -1]
    assert torch.equal(states.layers[3], normed)
    assert states.names[3] == found.norm
    assert not torch.allclose(states.layers[2], states.layers[3])


def test_pooling_follows_the_kind_of_model():
    tokens = batches(texts(), 20)
    assert collect_states(bert(), tokens).pooling == "cls"
    assert collect_states(llama(), tokens).pooling == "mean"
    images = [{"pixel_values": torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))}]
    assert collect_states(vit(), images).pooling == "cls"
    with pytest.warns(UserWarning, match="reads the first token"):
        collect_states(llama(), tokens, pooling="cls")


def test_states_equal_pooled_hidden_states():
    model, batch = bert(), batches(texts(), 20)[0]
    found = collect_states(model, [batch], pooling="mean")
    mask = batch["attention_mask"]
    with torch.no_grad():
        out = model(batch["input_ids"], mask, output_hidden_states=True)
    for layer, states in zip(found.layers, out.hidden_states[1:], strict=True):
        expected = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        torch.testing.assert_close(layer, expected, rtol=1e-6, atol=1e-6)
    assert found.targets.tolist() == batch["labels"].tolist()


class FailingBlock(nn.Linear):
    """States of the rows in ``fails`` are NaN."""

    def forward(self, x, fails):
        return torch.where(fails[:, None, None], torch.nan, super().forward(x.nan_to_num()))


class FailsOnPadding(nn.Module):
    """States of padded rows are NaN in a batch, and those of rows that begin with 39 always."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.embed = nn.Embedding(40, 8)
            self.layers = nn.ModuleList(FailingBlock(8, 8) for _ in range(2))

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        fails = (attention_mask == 0).any(1) | (input_ids[:, 0] == 39)
        for layer in self.layers:
            x = layer(x, fails)
        return x


def test_rows_that_fail_in_a_batch_are_read_alone_and_hopeless_ones_dropped():
    tokens = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([39, 1, 1]), torch.tensor([5, 6])]
    found = collect_states(FailsOnPadding(), batches(tokens, 4))
    assert found.dropped == [2]
    assert len(found.layers[0]) == 3
    assert all(bool(torch.isfinite(v).all()) for v in found.layers)
    alone = collect_states(FailsOnPadding(), batches([tokens[1]], 1))
    torch.testing.assert_close(found.layers[1][1], alone.layers[1][0])
    assert found.targets.tolist() == [1, 0, 1]
    many = [t for i in range(6) for t in (torch.tensor([i + 1, 2]), torch.tensor([i + 1]))]
    result = select_layers_from_model(FailsOnPadding(), batches([*many, tokens[2]], 13), 1)
    assert result.dropped == [12]


def test_speech_models_shorten_their_mask():
    config = transformers.Wav2Vec2Config(
        vocab_size=10, conv_dim=(8, 8), conv_stride=(3, 2), conv_kernel=(5, 3), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, feat_extract_norm="layer", **SMALL,
    )  # fmt: skip
    with seeded(0):
        model = transformers.Wav2Vec2Model(config).eval()
    g = torch.Generator().manual_seed(0)
    long, short = torch.randn(1, 120, generator=g), torch.randn(1, 60, generator=g)
    both = torch.cat([long, torch.nn.functional.pad(short, (0, 60))])
    mask = torch.ones(2, 120, dtype=torch.long)
    mask[1, 60:] = 0
    found = collect_states(model, [{"input_values": both, "attention_mask": mask}])
    alone = collect_states(model, [{"input_values": short, "attention_mask": mask[:1, :60]}])
    assert found.pooling == "mean"
    for layer, one in zip(found.layers, alone.layers, strict=True):
        torch.testing.assert_close(layer[1:], one, rtol=1e-4, atol=1e-4)


class Halves(nn.Module):
    """Shortens time by two and says nothing about it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.AvgPool1d(2), nn.AvgPool1d(1)])
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, attention_mask):
        states = x.mT
        for layer in self.layers:
            states = layer(states)
        return states.mT * self.scale


def test_a_length_that_does_not_fit_raises_instead_of_averaging_padding():
    batch = {"x": torch.randn(2, 8, 3), "attention_mask": torch.tensor([[1] * 8, [1] * 4 + [0] * 4])}

    class Turned(Halves):
        def forward(self, x, attention_mask):
            out = super().forward(x, attention_mask)
            return self.read(out)

    model = Turned()
    model.read = nn.Identity()
    with pytest.raises(ValueError, match="hidden states have 4 places but the mask 8.*mask_fn"):
        collect_states(model, [batch], layers=["read"])
    found = collect_states(model, [batch], layers=["read"], mask_fn=lambda length, mask: mask[:, ::2])
    torch.testing.assert_close(found.layers[0][1], batch["x"][1, :4].mean(0))
    with pytest.raises(ValueError, match=r"shape \[2, 3\]; expected \[2, 4\]"):
        collect_states(model, [batch], layers=["read"], mask_fn=lambda length, mask: mask[:, :3])


class Registers(nn.Module):
    """A vision network with a class token and four registers before six patches."""

    num_prefix_tokens = 5

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_patches_are_pooled_without_class_and_register_tokens():
    with seeded(0):
        model, x = Registers(), torch.randn(3, 11, 4)
    found = collect_states(model, [x], pooling="patch_mean")
    torch.testing.assert_close(found.layers[0], model.blocks[0](x)[:, 5:].mean(1))
    del Registers.num_prefix_tokens
    try:
        with pytest.raises(ValueError, match="prefix_tokens="):
            collect_states(model, [x], pooling="patch_mean")
        again = collect_states(model, [x], pooling="patch_mean", prefix_tokens=5)
        torch.testing.assert_close(again.layers[0], found.layers[0])
    finally:
        Registers.num_prefix_tokens = 5
    config = transformers.Dinov2WithRegistersConfig(
        image_size=8, patch_size=4, num_register_tokens=4, **SMALL
    )
    with seeded(0):
        dino = transformers.Dinov2WithRegistersModel(config).eval()
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    states = collect_states(dino, [{"pixel_values": pixels}], pooling="patch_mean")
    with torch.no_grad():
        hidden = dino(pixels, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(states.layers[-1], hidden[:, 5:].mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "object"])
def test_blocks_may_return_anything_that_begins_with_states(form):
    class Output:
        def __init__(self, x):
            self.last_hidden_state = x

    wrap = {
        "tensor": lambda x: x,
        "tuple": lambda x: (x, None),
        "dict": lambda x: {"hidden_states": x},
        "object": Output,
    }[form]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(4, 4)

        def forward(self, x):
            return wrap(self.map(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = first_tensor(layer(x))
            return x

    with seeded(0):
        model, x = Net(), torch.randn(3, 5, 4)
    found = collect_states(model, [x])
    torch.testing.assert_close(found.layers[1], model(x).mean(1))


def test_encoder_and_decoder_are_chosen_by_name():
    config = transformers.T5Config(
        vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    with seeded(0):
        model = transformers.T5Model(config).eval()
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "decoder_input_ids": torch.tensor([[4, 5]])}
    with pytest.raises(ValueError, match=r"encoder\.block, decoder\.block; choose one by layers="):
        collect_states(model, [batch])
    assert len(collect_states(model, [batch], layers="encoder").names) == 2
    decoder = collect_states(model, [batch], layers="decoder", pooling="last", final_norm=True)
    assert decoder.names == [*(f"decoder.block.{i}" for i in range(3)), "decoder.final_layer_norm"]
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    torch.testing.assert_close(decoder.layers[-1], hidden[:, -1])


def test_the_number_of_blocks_must_be_the_configurations():
    model = bert()
    model.config.num_hidden_layers = 5
    with pytest.raises(ValueError, match="holds 3 blocks but the configuration says"):
        collect_states(model, batches(texts(), 20))
    with pytest.raises(ValueError, match="has no module"):
        collect_states(bert(), batches(texts(), 20), layers=["encoder.layer.9"])
    with pytest.raises(ValueError, match="no list of blocks"):
        collect_states(nn.Linear(3, 3), [torch.randn(4, 3)])
    with pytest.raises(ValueError, match="names 0 of the lists"):
        collect_states(bert(), batches(texts(), 20), layers="decoder")


def test_a_block_that_does_not_run_is_named():
    class Skips(Registers):
        def forward(self, x):
            return self.blocks[0](x)

    with pytest.raises(ValueError, match=r"1 of 2 blocks ran; blocks\.1 did not"):
        collect_states(Skips(), [torch.randn(2, 3, 4)])


def test_shared_blocks_are_a_layer_each_time_they_run():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            return self.block(self.block(x))

    found = collect_states(Shared(), [torch.randn(3, 4)], layers=["block"])
    assert found.names == ["block[0]", "block[1]"]


def test_timm_models_of_any_kind():
    timm = pytest.importorskip("timm")
    with seeded(0):
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=24, num_heads=2)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = collect_states(model, [(x, torch.arange(4) % 2)], final_norm=True)
    assert found.pooling == "cls"
    assert found.names == ["blocks.0", "blocks.1", "blocks.2", "norm"]
    with torch.no_grad():
        torch.testing.assert_close(found.layers[-1], model.eval().forward_features(x)[:, 0])
    patches = collect_states(model, [x], pooling="patch_mean")
    assert not torch.allclose(patches.layers[0], found.layers[0])


def test_training_mode_and_gradients_are_as_before():
    model = bert().train()
    model.encoder.layer[1].eval()
    before = [m.training for m in model.modules()]
    first = collect_states(model, batches(texts(), 20))
    assert [m.training for m in model.modules()] == before
    assert torch.equal(first.stacked(), collect_states(model, batches(texts(), 20)).stacked())
    assert not first.layers[0].requires_grad
    assert not any(m._forward_hooks for m in model.modules())


def test_an_interrupted_collection_goes_on_from_its_chunks(tmp_path):
    model, given = bert(), batches(texts(), 4)
    whole = collect_states(model, given)

    def broken():
        yield from given[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_states(model, broken(), cache=tmp_path, batches_per_chunk=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chunk-00000.safetensors"]
    ran = []
    handle = model.register_forward_hook(lambda *a: ran.append(1))
    found = collect_states(model, given, cache=tmp_path, batches_per_chunk=2)
    assert len(ran) == 3
    handle.remove()
    torch.testing.assert_close(found.stacked(), whole.stacked(), rtol=0, atol=0)
    assert found.targets.tolist() == whole.targets.tolist()
    with pytest.raises(ValueError, match="batch 0 differs"):
        collect_states(model, given[::-1], cache=tmp_path)
    with pytest.raises(ValueError, match="belongs to another"):
        collect_states(model, given, cache=tmp_path, pooling="mean")


def test_only_pooled_states_are_kept():
    tracemalloc = pytest.importorskip("tracemalloc")
    model = bert()
    held = []

    def watch(_, __, output):
        held.append(first_tensor(output))

    block = model.encoder.layer[0]
    handle = block.register_forward_hook(watch)
    tracemalloc.start()
    found = collect_states(model, batches(texts(40), 4), dtype=torch.float16)
    tracemalloc.stop()
    handle.remove()
    assert found.layers[0].dtype == torch.float16
    # What is kept has storage of its own, of its own size, and is no view of token states.
    for layer in found.layers:
        assert layer.untyped_storage().nbytes() == layer.numel() * 2


def test_texts_need_a_tokenizer():
    with pytest.raises(ValueError, match="tokenizer="):
        collect_states(bert(), [["a text", "another"]])
    with pytest.raises(TypeError, match="a batch is int"):
        collect_states(bert(), [3])
    with pytest.raises(ValueError, match="no batch"):
        collect_states(bert(), [])
    with pytest.raises(TypeError, match="expected a torch module"):
        collect_states("model", [])


def test_targets_that_are_missing_or_of_another_length():
    tokens = batches(texts(), 20)
    with pytest.raises(ValueError, match="no targets under 'topic'"):
        select_layers_from_model(bert(), tokens, 1, target_key="topic")
    short = [{**tokens[0], "labels": torch.tensor([1, 0])}]
    with pytest.raises(ValueError, match="a batch of 20 examples has targets of shape"):
        collect_states(bert(), short)
    found = select_layers_from_model(bert(), tokens, 1, target_key="topic", task="label_free")
    assert found.task == "none"


def test_calibration_examples_are_stratified_and_bounded():
    model, given = bert(), batches(texts(60), 8)
    found = select_layers_from_model(model, given, 2, n_cal=20)
    assert found.options["k"] == 2
    assert found.names == [f"encoder.layer.{i}" for i in range(3)]
    assert found.pooling == "cls"


def test_masked_pooling_by_hand():
    states = torch.arange(24, dtype=torch.float64).reshape(2, 4, 3)
    states[0, 3] = float("nan")
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 0]])
    torch.testing.assert_close(pool_states(states, mask, "mean")[0], states[0, :3].mean(0))
    assert torch.equal(pool_states(states, mask, "cls"), torch.stack([states[0, 0], states[1, 1]]))
    assert torch.equal(pool_states(states, mask, "last"), torch.stack([states[0, 2], states[1, 2]]))
    with pytest.raises(ValueError, match="example 1 of the batch has no attended token"):
        pool_states(states, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]), "mean")
    with pytest.raises(ValueError, match="mask_fn"):
        pool_states(states, mask[:, :2], "mean")


def test_curvature_of_paths():
    from icml_loes import token_curvature

    straight = torch.arange(5.0)[None, :, None].expand(1, 5, 2)
    zigzag = torch.tensor([[[0.0, 0], [1, 0], [1, 1], [2, 1], [2, 2]]])
    mask = torch.ones(1, 5)
    assert float(token_curvature(straight, mask)) == pytest.approx(0.0, abs=1e-3)
    assert float(token_curvature(zigzag, mask)) == pytest.approx(np.pi / 2)
    found = collect_states(bert(), batches(texts(), 20), curvature=True)
    assert found.curvatures.shape == (20, 3)
    padded = collect_states(bert(), batches(texts(), 1), curvature=True)
    torch.testing.assert_close(found.curvatures, padded.curvatures, rtol=1e-4, atol=1e-4)
