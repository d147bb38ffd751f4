"""Text: SmolLM2 turned into a masked diffusion model, and windows of text to train and to test it on.

The causal mask is taken off and the logits stay shifted, as Dream was made from a left-to-right model
(arXiv 2508.15487). The mask token is one of SmolLM2's special tokens that plain text never holds.
"""

from __future__ import annotations

import io
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from icml_ccd.tiny_mdm import TinyMDM

MASK = "<empty_output>"
"""A special token of SmolLM2's vocabulary, made for notebooks without output."""


def smollm2_mdm(*, device: str = "cpu") -> tuple[TinyMDM, Any]:
    """SmolLM2-135M with bidirectional attention, not yet trained on masks, and its tokenizer.

    Raises:
        MissingSmolLM2: the distribution that carries its weights is not installed.
    """
    from icml_lm import load

    causal, tokenizer = load("smollm2")
    mask_id = tokenizer.convert_tokens_to_ids(MASK)
    if mask_id is None or mask_id == tokenizer.unk_token_id:
        raise ValueError(f"this tokenizer has no token {MASK!r} to serve as a mask")
    model = TinyMDM.from_causal(causal, mask_id, eos_id=tokenizer.eos_token_id)
    return model.to(device), tokenizer


def library_prose(limit: int = 400) -> Iterator[str]:
    """Docstrings and comments' prose of Python's standard library, which is always there."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.glob("*.py"))[:limit]:
        try:
            source = path.read_text(encoding="utf-8")
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (OSError, SyntaxError, UnicodeDecodeError, tokenize.TokenError):
            continue
        for token in tokens:
            if token.type == tokenize.STRING and token.string.startswith('"""') and len(token.string) > 200:
                yield token.string.strip('"')


def text_windows(
    texts: Iterable[str], tokenizer: Any, length: int, *, most: int = 4096
) -> Int64[Tensor, "n L"]:
    """Windows of so many tokens, texts one after the other.

    Raises:
        ValueError: not one window of text.
    """
    held: list[int] = []
    for text in texts:
        held += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(held) >= most * length:
            break
    count = min(most, len(held) // length)
    if count == 0:
        raise ValueError(f"{len(held)} tokens of text make no window of {length}")
    return torch.tensor(held[: count * length]).view(count, length)
