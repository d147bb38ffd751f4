"""Tokenizers of small worlds: named symbols, and bytes. They are called as transformers' tokenizers are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from icml_core.run import write_json

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


class _Tokenizer:
    """What both have in common: special tokens, and calls on one text or on many."""

    pad_token, bos_token, eos_token = PAD, BOS, EOS
    padding_side = "right"
    pad_token_id: int
    bos_token_id: int
    eos_token_id: int

    def encode(self, text: Any, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text; with ``add_special_tokens`` between the begin and the end token."""
        ids = self._encode(text)
        return [self.bos_token_id, *ids, self.eos_token_id] if add_special_tokens else ids

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        padding: bool = False,
        padding_side: str | None = None,
        add_special_tokens: bool = False,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """``input_ids`` and ``attention_mask`` of one text or of several.

        Args:
            text: a text, or a list of them.
            padding: whether to fill all up to the longest.
            padding_side: ``"left"`` or ``"right"``; the tokenizer's own by default.
            add_special_tokens: whether to add begin and end tokens.
            return_tensors: ``"pt"`` for torch tensors.

        Raises:
            ValueError: another side or kind of tensor; texts of unequal length as a tensor, without padding.
        """
        side = padding_side or self.padding_side
        if side not in ("left", "right"):
            raise ValueError(f"padding_side is 'left' or 'right', not {side!r}")
        if return_tensors not in (None, "pt"):
            raise ValueError(f"return_tensors is None or 'pt', not {return_tensors!r}")
        alone = isinstance(text, str)
        rows = [self.encode(t, add_special_tokens=add_special_tokens) for t in ([text] if alone else text)]
        longest = max(map(len, rows), default=0)
        masks = [[1] * len(row) for row in rows]
        if padding:
            for row, mask in zip(rows, masks, strict=True):
                missing = longest - len(row)
                if side == "left":
                    row[:0], mask[:0] = [self.pad_token_id] * missing, [0] * missing
                else:
                    row += [self.pad_token_id] * missing
                    mask += [0] * missing
        if return_tensors == "pt":
            import torch

            if any(len(row) != longest for row in rows):
                raise ValueError("texts of unequal length make no tensor; pass padding=True")
            ids, seen = (torch.tensor(x, dtype=torch.long).view(len(x), -1) for x in (rows, masks))
            return {"input_ids": ids, "attention_mask": seen}
        return {"input_ids": rows[0] if alone else rows, "attention_mask": masks[0] if alone else masks}

    def batch_decode(self, rows: Iterable[Any], *, skip_special_tokens: bool = False) -> list[str]:
        """The texts of several rows."""
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        found = ids.tolist() if hasattr(ids, "tolist") else ids
        found = [found] if isinstance(found, int) else list(found)
        for i in found:
            if not 0 <= i < len(self):
                raise ValueError(f"token id {i} is not in a vocabulary of {len(self)}")
        if skip_special_tokens:
            special = {self.pad_token_id, self.bos_token_id, self.eos_token_id}
            found = [i for i in found if i not in special]
        return self._decode(found)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON; ``load_tokenizer`` reads it."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(path), self._state())

    def __len__(self) -> int:
        raise TypeError("a tokenizer has a vocabulary of its own")

    def _encode(self, text: Any) -> list[int]:
        raise TypeError("a tokenizer has an encoding of its own")

    def _decode(self, ids: list[int]) -> str:
        raise TypeError("a tokenizer has a decoding of its own")

    def _state(self) -> dict[str, Any]:
        raise TypeError("a tokenizer has a state of its own")


class SymbolTokenizer(_Tokenizer):
    """One token a symbol; a text is symbols with ``separator`` between them.

    The ids 0, 1 and 2 are padding, begin and end; the symbols follow in the given order.

    Args:
        symbols: the vocabulary.
        separator: between symbols; ``""`` where every symbol is one character.

    Example:
        >>> SymbolTokenizer("0123456789=", separator="").encode("12=21")
        [4, 5, 13, 5, 4]
    """

    def __init__(self, symbols: Iterable[str], separator: str = " ") -> None:
        names = [PAD, BOS, EOS, *symbols]
        if len(set(names)) != len(names):
            twice = sorted({s for s in names if names.count(s) > 1})
            raise ValueError(f"the symbols {twice} occur more than once")
        for name in names[3:]:
            if not name or (separator and separator in name) or (not separator and len(name) != 1):
                raise ValueError(f"{name!r} is no symbol where {separator!r} stands between symbols")
        self.symbols, self.separator = tuple(names), separator
        self.ids = {name: i for i, name in enumerate(names)}
        self.pad_token_id, self.bos_token_id, self.eos_token_id = 0, 1, 2

    def __len__(self) -> int:
        return len(self.symbols)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a symbol, or those of several.

        Raises:
            ValueError: an unknown symbol.
        """
        if isinstance(tokens, str):
            return self._id(tokens)
        return [self._id(token) for token in tokens]

    def _id(self, symbol: str) -> int:
        try:
            return self.ids[symbol]
        except KeyError:
            raise ValueError(f"{symbol!r} is not among the symbols {' '.join(self.symbols[3:])}") from None

    def _encode(self, text: str | Sequence[str]) -> list[int]:
        if isinstance(text, str):
            text = text.split(self.separator) if self.separator else list(text)
            text = [part for part in text if part]
        return [self._id(symbol) for symbol in text]

    def _decode(self, ids: list[int]) -> str:
        return self.separator.join(self.symbols[i] for i in ids)

    def _state(self) -> dict[str, Any]:
        return {"kind": "symbols", "symbols": list(self.symbols[3:]), "separator": self.separator}


class ByteTokenizer(_Tokenizer):
    """One token a byte of UTF-8: ids 0 to 255; then padding, begin and end."""

    def __init__(self) -> None:
        self.pad_token_id, self.bos_token_id, self.eos_token_id = 256, 257, 258

    def __len__(self) -> int:
        return 259

    def _encode(self, text: str | bytes) -> list[int]:
        return list(text.encode("utf-8") if isinstance(text, str) else text)

    def _decode(self, ids: list[int]) -> str:
        out, names = [], {256: PAD, 257: BOS, 258: EOS}
        run = bytearray()
        for i in [*ids, None]:
            if i is not None and i < 256:
                run.append(i)
                continue
            out.append(run.decode("utf-8", errors="replace"))
            run.clear()
            out.append("" if i is None else names[i])
        return "".join(out)

    def _state(self) -> dict[str, Any]:
        return {"kind": "bytes"}


def load_tokenizer(path: str | Path) -> SymbolTokenizer | ByteTokenizer:
    """A tokenizer that ``save`` wrote.

    Raises:
        ValueError: the file holds none.
    """
    state = json.loads(Path(path).read_text(encoding="utf-8"))
    kind = state.get("kind") if isinstance(state, dict) else None
    if kind == "symbols":
        return SymbolTokenizer(state["symbols"], state["separator"])
    if kind == "bytes":
        return ByteTokenizer()
    raise ValueError(f"{path} holds no tokenizer of icml-lm: its kind is {kind!r}")
