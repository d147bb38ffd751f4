"""Which parameters are matrices of the network, and how they are cut: by the type of their module and their
name.

The rules of arXiv 2601.08393 (section 4 and official configuration): hidden matrices on spheres, attention by
head, gate and up apart, one sphere for each expert and router; embeddings, output layer, norms, biases and
positions with AdamW.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch import Tensor, nn

from icml_sso.atoms import Atomic

Rule = Callable[[str, Tensor, nn.Module], "Atomic | str | None"]
QkvSplit = Literal["head", "group", "component", "none"]
QKV_SPLITS = ("head", "group", "component", "none")

ADAMW = "adamw"
_Q = {"q_proj", "query", "wq", "q", "to_q", "q_proj_weight", "query_proj"}
_KV = {
    "k_proj",
    "v_proj",
    "key",
    "value",
    "wk",
    "wv",
    "k",
    "v",
    "to_k",
    "to_v",
    "k_proj_weight",
    "v_proj_weight",
}
_FUSED_QKV = {"qkv", "qkv_proj", "c_attn", "wqkv", "in_proj_weight", "query_key_value", "to_qkv", "attn_qkv"}
_INTERLEAVED = {"query_key_value"}  # heads of q, k and v alternate by group, as in GPT-NeoX and Megatron
_FUSED_GATE_UP = {"gate_up_proj", "gate_up", "w12", "w13", "wi_fused"}
_ROUTERS = {"router", "gate", "wg", "gate_proj_router"}
_OUTPUT = {"lm_head", "head", "output", "unembed", "classifier", "score", "embed_out", "output_projection"}
_POSITION = re.compile(
    r"(^|[._])(pos_embed|position|positional|wpe|relative|cls_token|rope|embed|embeddings)"
)
_INPUT = re.compile(r"(^|\.)(patch_embed|embed|embeddings|embedding|wte|wpe|tok_embeddings|stem)(\.|$)")
_LORA = re.compile(r"(^|\.)lora_[AB](\.|$)")
_LORA_EMBEDDING = re.compile(r"(^|\.)lora_embedding_[AB](\.|$)")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def build_param_groups(
    model: nn.Module,
    *,
    qkv: QkvSplit = "head",
    split_gate_up: bool = True,
    split_experts: bool = True,
    rule: Rule | None = None,
) -> list[dict[str, Any]]:
    """Two groups for `SSO`: the matrices, cut into atomic ones, and what AdamW takes.

    Frozen parameters are left out, and tied ones counted once, as AdamW's where one of their uses is an
    embedding or the output layer.

    Args:
        model: Any module; attention layers of transformers, timm and torch are known.
        qkv: Cut of q, k, v: by head; by group of query heads that share keys; q, k, v whole; or not at all.
        split_gate_up: Cut fused gate and up projections in two.
        split_experts: Give each stacked expert a sphere of its own; else the experts' rows are one matrix.
        rule: ``rule(name, parameter, module)`` gives an `Atomic`, ``"adamw"``, or None for the rules above.

    Raises:
        TypeError: Not a module; a rule that gives something else.
        ValueError: An unknown cut; a head size that cannot be found; nothing trainable.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    if qkv not in QKV_SPLITS:
        raise ValueError(f"qkv={qkv!r} is not one of {', '.join(QKV_SPLITS)}")
    classify = _Classifier(model, qkv, split_gate_up, split_experts)
    matrices: list[tuple[str, nn.Parameter, Atomic]] = []
    others: list[tuple[str, nn.Parameter]] = []
    excluded = classify.tied_ends()
    seen: set[int] = set()
    for name, parameter, module in _parameters(model):
        if not parameter.requires_grad or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        chosen: Atomic | str | None = None if rule is None else rule(name, parameter, module)
        if chosen is None:
            chosen = ADAMW if id(parameter) in excluded else classify(name, parameter, module)
        if isinstance(chosen, Atomic):
            matrices.append((name, parameter, chosen))
        elif chosen == ADAMW:
            others.append((name, parameter))
        else:
            raise TypeError(f"the rule gave {chosen!r} for {name}; expected an Atomic, 'adamw' or None")
    if not matrices and not others:
        raise ValueError("the model has no trainable parameter")
    groups: list[dict[str, Any]] = []
    if matrices:
        atomic = [a.to_dict() for _, _, a in matrices]
        groups.append({"params": [(n, p) for n, p, _ in matrices], "kind": "matrix", "atomic": atomic})
    if others:
        groups.append({"params": others, "kind": ADAMW})
    if classify.unknown:
        warnings.warn(
            "these parameters have more than two axes and no rule, so that AdamW takes them: "
            f"{', '.join(classify.unknown)}; give build_param_groups a rule that returns an Atomic",
            stacklevel=2,
        )
    return groups


def belongs_to_adamw(name: str) -> bool:
    """Whether a name alone says that a matrix is an embedding, a position or the output layer."""
    owner = name.rpartition(".")[0] or name
    last = owner.rpartition(".")[2]
    return bool(_INPUT.search(name) or _POSITION.search(last)) or last in _OUTPUT


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    for prefix, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            yield (f"{prefix}.{own}" if prefix else own), parameter, module


class _Classifier:
    """The rules, with what they need to know about the model."""

    def __init__(self, model: nn.Module, qkv: str, split_gate_up: bool, split_experts: bool) -> None:
        self.model, self.qkv = model, qkv
        self.split_gate_up, self.split_experts = split_gate_up, split_experts
        self.modules = dict(model.named_modules())
        self.unknown: list[str] = []

    def tied_ends(self) -> set[int]:
        """Parameters of embeddings and of the output layer, by identity."""
        ends = {id(p) for m in self.modules.values() if isinstance(m, nn.Embedding) for p in m.parameters()}
        output = getattr(self.model, "get_output_embeddings", None)
        if callable(output) and isinstance(found := output(), nn.Module):
            ends |= {id(p) for p in found.parameters(recurse=False)}
        return ends

    def __call__(self, name: str, parameter: nn.Parameter, module: nn.Module) -> Atomic | str:
        own = name.rpartition(".")[2]
        if _LORA_EMBEDDING.search(name):
            return ADAMW
        if _LORA.search(name):
            return Atomic(tangent=False, retract="off", role="adapter") if parameter.dim() == 2 else ADAMW
        if parameter.dim() < 2 or "norm" in type(module).__name__.lower() or own == "bias":
            return ADAMW
        if isinstance(module, nn.Embedding) or belongs_to_adamw(name):
            return ADAMW
        if isinstance(module, _CONVOLUTIONS):
            return self._convolution(parameter, module)
        if isinstance(module, _TRANSPOSED):
            self.unknown.append(name)
            return ADAMW
        word = self._word(name, own)
        transpose = type(module).__name__ == "Conv1D"  # of transformers: stored (in, out)
        if parameter.dim() == 3:
            return self._experts(name, word, parameter, module)
        if parameter.dim() > 3:
            self.unknown.append(name)
            return ADAMW
        rows = parameter.shape[1] if transpose else parameter.shape[0]
        return self._matrix(name, word, rows, transpose)

    def _matrix(self, name: str, word: str, rows: int, transpose: bool) -> Atomic:
        lowered = word.lower()
        if lowered in _FUSED_QKV:
            return self._fused_qkv(name, lowered, rows, transpose)
        if (lowered in _Q or lowered in _KV) and self.qkv in ("head", "group"):
            head, heads, key_heads = self._heads(name, rows)
            size = head
            if self.qkv == "group" and lowered in _Q:
                size = head * max(heads // key_heads, 1)
            return Atomic(transpose=transpose, blocks=_equal(rows, size, name), role=lowered)
        if lowered in _FUSED_GATE_UP and self.split_gate_up:
            return Atomic(transpose=transpose, blocks=_equal(rows, rows // 2, name), role="gate_up")
        return Atomic(transpose=transpose, role="router" if lowered in _ROUTERS else lowered)

    def _fused_qkv(self, name: str, word: str, rows: int, transpose: bool) -> Atomic:
        if self.qkv == "none":
            return Atomic(transpose=transpose, role="qkv")
        head, heads, key_heads = self._heads(name, rows, fused=True)
        if self.qkv == "head":
            return Atomic(transpose=transpose, blocks=_equal(rows, head, name), role="qkv")
        shared = heads // key_heads
        if word in _INTERLEAVED:
            blocks = (shared * head, head, head) * key_heads
            labels = (0, 1, 2) * key_heads if self.qkv == "component" else None
            return Atomic(transpose=transpose, blocks=blocks, labels=labels, role="qkv")
        if self.qkv == "group":
            blocks = (shared * head,) * key_heads + (head,) * (2 * key_heads)
        else:
            blocks = (heads * head, key_heads * head, key_heads * head)
        return Atomic(transpose=transpose, blocks=blocks, role="qkv")

    def _experts(self, name: str, word: str, parameter: nn.Parameter, module: nn.Module) -> Atomic | str:
        if "expert" not in name.lower() and "expert" not in type(module).__name__.lower():
            self.unknown.append(name)
            return ADAMW
        # transformers marks experts that are stored (experts, in, out).
        transpose = bool(getattr(module, "is_transposed", False))
        rows = parameter.shape[2] if transpose else parameter.shape[1]
        blocks = None
        if word.lower() in _FUSED_GATE_UP and self.split_gate_up:
            blocks = _equal(rows, rows // 2, name)
        if not self.split_experts:
            if transpose:
                raise ValueError(
                    f"{name!r} is stored (experts, in, out); its experts cannot be one matrix of rows"
                )
            return Atomic(batch_axes=1, merge_batch=True, role="experts")
        return Atomic(batch_axes=1, transpose=transpose, blocks=blocks, role="expert")

    def _convolution(self, parameter: nn.Parameter, module: nn.Module) -> Atomic:
        groups = int(getattr(module, "groups", 1))
        blocks = None if groups == 1 else (parameter.shape[0] // groups,) * groups
        return Atomic(flatten=True, blocks=blocks, role="conv")

    def _word(self, name: str, own: str) -> str:
        """The part of the name that says what the matrix is; its module's where its own is 'weight'."""
        pieces = [p for p in name.split(".") if p not in ("weight", "base_layer", "default", "linear")]
        return own if own not in ("weight",) else (pieces[-1] if pieces else own)

    def _attention(self, name: str) -> nn.Module | None:
        """The nearest module around the parameter that knows its number of heads."""
        path = name.rpartition(".")[0]
        while True:
            module = self.modules.get(path)
            if module is not None and _first(module, _HEADS) is not None:
                return module
            if not path:
                return None
            path = path.rpartition(".")[0]

    def _heads(self, name: str, rows: int, *, fused: bool = False) -> tuple[int, int, int]:
        """Head size, query heads, key heads."""
        module = self._attention(name)
        config = getattr(self.model, "config", None)
        heads = None if module is None else _first(module, _HEADS)
        heads = heads or _first(config, _HEADS)
        if heads is None:
            raise ValueError(
                f"the number of heads of {name!r} is unknown; give build_param_groups(rule=...) that returns "
                "Atomic(blocks=...) for it, or qkv='component'"
            )
        sources = [x for x in (module, getattr(module, "config", None), config) if x is not None]
        key_heads = next((k for s in sources if (k := _first(s, _KEY_HEADS))), None)
        groups = next((g for s in sources if (g := _first(s, ("num_key_value_groups",)))), None)
        if key_heads is None:
            key_heads = heads // groups if groups else heads
        head = next((h for s in sources if (h := _first(s, _HEAD_SIZE))), None)
        if head is None:
            own = key_heads if name.rpartition(".")[0].rpartition(".")[2].lower() in _KV else heads
            head = rows // (heads + 2 * key_heads if fused else own)
        return head, heads, key_heads


_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads")
_HEAD_SIZE = ("head_dim", "attention_head_size", "head_size", "d_head", "d_kv", "key_value_proj_dim")


def _first(source: Any, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(source, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    config = getattr(source, "config", None) if isinstance(source, nn.Module) else None
    return (
        None if config is None or (names is _HEADS and not _is_attention(source)) else _first(config, names)
    )


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()


def _equal(rows: int, size: int, name: str) -> tuple[int, ...]:
    if size < 1 or rows % size:
        raise ValueError(
            f"blocks of {size} rows do not tile the {rows} rows of {name!r}; give a rule that returns "
            "Atomic(blocks=...) with its sizes"
        )
    return (size,) * (rows // size)
