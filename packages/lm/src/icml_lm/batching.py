"""Examples to batches: padding, supervised spans of conversations, and block-diagonal packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

IGNORE = -100
"""Label of a token that is not supervised, as in torch's cross-entropy."""

_MARK = "\N{SYMBOL FOR GROUP SEPARATOR}answer\N{SYMBOL FOR GROUP SEPARATOR}"

Messages = Sequence[Mapping[str, str]]
"""A conversation: ``[{"role": "user", "content": "..."}, ...]``."""


class Supervised(NamedTuple):
    """Token ids of a text and its labels: the id where a token is supervised, else -100."""

    input_ids: list[int]
    labels: list[int]


def collate(
    examples: Sequence[Any], pad: int, ignore: int = IGNORE, side: str = "right", length: int | None = None
) -> dict[str, Tensor]:
    """Pad examples to one batch.

    Args:
        examples: token ids, pairs of ids and labels, or mappings with ``input_ids`` and maybe ``labels``.
            Without labels every token is supervised.
        pad: id that fills up.
        ignore: label that fills up.
        side: ``"right"`` or ``"left"``: where the filling goes.
        length: columns of the batch; as many as the longest example needs, by default.

    Returns:
        ``input_ids``, ``attention_mask`` and ``labels``, each [examples, length] of int64.

    Raises:
        ValueError: no example; labels of another length than the ids; an example longer than ``length``.
    """
    if not len(examples):
        raise ValueError("a batch needs at least one example")
    if side not in ("right", "left"):
        raise ValueError(f"side is 'right' or 'left', not {side!r}")
    pairs = [_ids_and_labels(example) for example in examples]
    longest = max(len(ids) for ids, _ in pairs)
    columns = longest if length is None else length
    if longest > columns:
        raise ValueError(f"an example of {longest} tokens does not fit into length={columns}")
    ids = torch.full((len(pairs), columns), pad, dtype=torch.long)
    labels = torch.full_like(ids, ignore)
    mask = torch.zeros_like(ids)
    for row, (tokens, targets) in enumerate(pairs):
        place = slice(0, len(tokens)) if side == "right" else slice(columns - len(tokens), columns)
        ids[row, place] = torch.as_tensor(tokens, dtype=torch.long)
        labels[row, place] = torch.as_tensor(targets, dtype=torch.long)
        mask[row, place] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def prompt_and_answer(
    tokenizer: Any, prompt: str, answer: str, *, end: bool = True, ignore: int = IGNORE
) -> Supervised:
    """Ids of a prompt and its answer, tokenised apart; the answer and the end token are supervised.

    Raises:
        ValueError: an empty answer.
    """
    if not answer:
        raise ValueError(f"the answer to {prompt!r} is empty: nothing to supervise")
    before, after = token_ids(tokenizer, prompt), token_ids(tokenizer, answer)
    if end:
        after = [*after, tokenizer.eos_token_id]
    return Supervised([*before, *after], [*[ignore] * len(before), *after])


def supervised(
    tokenizer: Any, messages: Messages, *, turns: str = "last", ignore: int = IGNORE, **template: Any
) -> Supervised:
    """Ids of a conversation, with the assistant's answers and their end tokens supervised.

    The span of an answer comes from the template's renderings with and without it, generation prompt
    included; what the template itself puts before the answer (a role header, an empty thinking block) and
    behind its end token is not supervised. Parts are tokenised apart, so that no token spans a border.

    Args:
        tokenizer: one with ``apply_chat_template``.
        messages: the conversation.
        turns: ``"last"`` supervises the last answer, ``"all"`` every one.
        ignore: label of what is not supervised.
        template: further arguments of ``apply_chat_template``.

    Raises:
        ValueError: the conversation does not end with an answer; the template leaves an answer out, or
            renders earlier turns differently once later ones follow (with ``turns="all"``).
    """
    if turns not in ("last", "all"):
        raise ValueError(f"turns is 'last' or 'all', not {turns!r}")
    if not messages or messages[-1].get("role") != "assistant":
        last = messages[-1].get("role") if messages else None
        raise ValueError(f"a supervised conversation ends with the assistant's answer, not with {last!r}")
    answers = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    ids: list[int] = []
    labels: list[int] = []
    done = ""
    for turn in answers if turns == "all" else answers[-1:]:
        lead, answer = _spans(tokenizer, messages[: turn + 1], template)
        if not lead.startswith(done):
            raise ValueError(
                "the chat template renders earlier turns differently once later ones follow; use turns='last'"
            )
        before, after = token_ids(tokenizer, lead[len(done) :]), token_ids(tokenizer, answer)
        ids += [*before, *after]
        labels += [*[ignore] * len(before), *after]
        done = lead + answer
    return Supervised(ids, labels)


def chat_prompt(tokenizer: Any, messages: Messages, **template: Any) -> list[int]:
    """Ids of a conversation that the assistant is to continue, generation prompt included."""
    text = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=False, **template
    )
    return token_ids(tokenizer, text)


def pack(examples: Sequence[Any], length: int, pad: int, ignore: int = IGNORE) -> dict[str, Tensor]:
    """Put several examples into each row, such that none sees another.

    Rows are filled first-fit, the longest examples first. Positions restart with every example, attention is
    causal and block-diagonal, and the first token of an example has no label (else it would be predicted from
    the example before it).

    Args:
        examples: as for ``collate``.
        length: columns of a row.
        pad: id that fills up.
        ignore: label of what is not supervised.

    Returns:
        ``input_ids``, ``labels``, ``position_ids`` [rows, length] and the boolean ``attention_mask``
        [rows, 1, length, length].

    Raises:
        ValueError: no example, or one longer than a row.
    """
    if not len(examples):
        raise ValueError("a batch needs at least one example")
    pairs = [_ids_and_labels(example) for example in examples]
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0])):
        size = len(pairs[i][0])
        if size > length:
            raise ValueError(f"an example of {size} tokens does not fit into rows of {length}")
        row = next((r for r, free in enumerate(room) if free >= size), None)
        if row is None:
            rows.append([])
            room.append(length)
            row = len(rows) - 1
        rows[row].append(i)
        room[row] -= size
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    labels = torch.full_like(ids, ignore)
    positions = torch.zeros_like(ids)
    owner = torch.full_like(ids, -1)
    for row, members in enumerate(rows):
        start = 0
        for member in members:
            tokens, targets = pairs[member]
            place = slice(start, start + len(tokens))
            ids[row, place] = torch.as_tensor(tokens, dtype=torch.long)
            labels[row, place] = torch.as_tensor(targets, dtype=torch.long)
            labels[row, start] = ignore
            positions[row, place] = torch.arange(len(tokens))
            owner[row, place] = member
            start += len(tokens)
    same = (owner[:, :, None] == owner[:, None, :]).tril()
    itself = torch.eye(length, dtype=torch.bool)
    mask = (same & (owner >= 0)[:, None, :] | itself)[:, None]
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "attention_mask": mask}


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text without special tokens around it."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _spans(tokenizer: Any, messages: Messages, template: dict[str, Any]) -> tuple[str, str]:
    """What stands before the last answer, and the answer with its end token."""
    render = tokenizer.apply_chat_template
    earlier, answer = list(messages[:-1]), messages[-1]
    prompt = render(earlier, add_generation_prompt=True, tokenize=False, **template)
    whole = render([*earlier, answer], tokenize=False, **template)
    # Where the template puts an answer is seen from one that occurs nowhere else.
    marked = render([*earlier, {**answer, "content": _MARK}], tokenize=False, **template)
    lead, _, tail = marked.partition(_MARK)
    content = answer["content"]
    form = next((f for f in (content, content.strip()) if f.strip() and lead + f + tail == whole), None)
    if form is None:
        raise ValueError(f"the chat template renders the answer {content!r} in another form, or it is empty")
    end = tokenizer.eos_token
    cut = tail.index(end) + len(end) if end and end in tail else len(tail.rstrip())
    # A generation prompt that the rendered answer lacks (such as an opened and closed thinking block) is what
    # the model will see, so it stands before the answer.
    return lead if lead.startswith(prompt) else prompt, form + tail[:cut]


def _ids_and_labels(example: Any) -> tuple[Any, Any]:
    if isinstance(example, Mapping):
        ids, labels = example["input_ids"], example.get("labels")
    elif isinstance(example, tuple) and len(example) == 2 and not isinstance(example[0], int):
        ids, labels = example
    else:
        ids, labels = example, None
    labels = ids if labels is None else labels
    if len(ids) != len(labels):
        raise ValueError(f"an example has {len(ids)} tokens and {len(labels)} labels")
    return ids, labels
