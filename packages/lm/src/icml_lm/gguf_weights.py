"""A GGUF file as a transformers model: read, unpacked and cast one tensor at a time.

transformers unpacks all tensors to float32 before it casts the first, which needs several times the memory of
the model wanted. Here the model is made in the wanted type, and each tensor is written into its place; the
largest (embedding and head) by blocks of rows. Names and permutations are transformers' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from icml_lm.gguf_file import Directory, read_directory
from icml_lm.memory import check_memory

_BLOCK = 1 << 18  # numbers unpacked at once
_BY_ROWS = ("token_embd.weight", "output.weight")  # no architecture permutes these
_DIGITS_APART = ("smollm",)  # pre-tokenizers that transformers' conversion lacks


def load_gguf(
    path: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", attn: str = "sdpa"
) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file.

    Args:
        path: the file.
        dtype: of the weights; the memory needed is theirs in this type, and about a tenth more.
        device: where they go.
        attn: implementation of attention, by transformers' name.

    Raises:
        ValueError: the file is no GGUF, or its architecture is not known to transformers.
        MemoryError: the weights do not fit; names the bytes needed, before anything is allocated.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.initialization import no_init_weights

    directory = read_directory(path)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    needed = sum(p.numel() for p in outline.parameters()) * dtype.itemsize
    check_memory(needed, device, f"{path.name} in {dtype}")
    del outline
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    model.tie_weights()
    missing = _fill(model, directory)
    if missing:
        raise ValueError(f"{path.name} lacks the weights {', '.join(sorted(missing)[:5])}")
    if directory.metadata.get("tokenizer.ggml.pre") in _DIGITS_APART:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return model.eval(), tokenizer


def _fill(model: Any, directory: Directory) -> set[str]:
    """Write the file's tensors into the model's parameters; names of those that the file lacks."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map as weights_map

    processor = TENSOR_PROCESSORS.get(model.config.model_type, TensorProcessor)(config=model.config.to_dict())
    names = weights_map(_Flat(model), processor)
    if not set(directory.tensors) <= set(names):
        names = weights_map(model, processor)
    targets = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    wanted = {id(p): name for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, stored in directory.tensors.items():
            if name in _BY_ROWS and name in names:
                target = targets[names[name]]
                if target.shape != stored.shape:
                    raise ValueError(f"{name} has the shape {stored.shape}, not {tuple(target.shape)}")
                for rows, values in stored.rows(_BLOCK):
                    target[rows] = torch.from_numpy(values).to(target.dtype)
                wanted.pop(id(target), None)
                continue
            collected: dict[str, Any] = {"tensors": {}}
            made = processor.process(
                weights=stored.whole(), name=name, tensor_key_mapping=names, parsed_parameters=collected
            )
            for whole_name, whole in collected["tensors"].items():  # experts: several tensors make one
                targets[whole_name].copy_(torch.as_tensor(np.asarray(whole)))
                wanted.pop(id(targets[whole_name]), None)
            if made.name in names:
                target = targets[names[made.name]]
                target.copy_(torch.from_numpy(np.array(made.weights)).view(target.shape))
                wanted.pop(id(target), None)
    return set(wanted.values())


class _Flat:
    """A model without children: transformers' map of names tries every submodule, and is slow at it."""

    def __init__(self, model: Any) -> None:
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> tuple[()]:
        """None."""
        return ()
