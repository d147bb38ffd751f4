"""Demonstrations: rows of prompts and answers, from files or lists, to token ids with supervised spans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icml_lm import chat_prompt, prompt_and_answer, supervised
from icml_lm.batching import IGNORE, Supervised, token_ids

ANSWERS = ("response", "answer", "completion", "output", "solution")
"""Names under which a row's answer is looked for, in this order."""
PROMPTS = ("prompt", "question", "instruction", "problem")
"""The same for its prompt."""
LONGEST_LINE = 16 << 20  # bytes of one line of a file; a longer one is refused before it is parsed

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Examples:
    """Token ids with labels, and what was cut.

    Attributes:
        rows: one an input row.
        cut: rows that were longer than allowed.
        empty: rows of which nothing supervised was left.
    """

    rows: list[Supervised]
    cut: int = 0
    empty: int = 0


def encode_rows(
    rows: Sequence[Row], tokenizer: Any = None, *, max_length: int | None = None, **template: Any
) -> Examples:
    """Token ids and labels of demonstrations; the answer and its end token are supervised.

    A row holds ``prompt`` and ``response`` (or another of ``PROMPTS`` and ``ANSWERS``), where the prompt is a
    text or a conversation; or ``messages``, whose last one is the assistant's; or ``input_ids`` and
    ``labels``. Where the tokenizer has a chat template, a text becomes a conversation of two messages. The
    span of an answer comes from the template's renderings with and without it, never from markers in it;
    parts are tokenised apart.

    Args:
        rows: the demonstrations.
        tokenizer: of the model; not needed for rows of ids.
        max_length: tokens that are kept of a row.
        template: further arguments of ``apply_chat_template``.

    Raises:
        ValueError: no row, a row of another form, an empty answer, no supervised token in all rows.
    """
    if not rows:
        raise ValueError("there are no demonstrations")
    if max_length is not None and max_length < 2:
        raise ValueError(f"max_length={max_length} leaves nothing to predict; it must be at least 2")
    found, cut, empty = [], 0, 0
    for number, row in enumerate(rows):
        ids, labels = _encoded(number, row, tokenizer, template)
        if max_length is not None and len(ids) > max_length:
            ids, labels, cut = ids[:max_length], labels[:max_length], cut + 1
        # The first token is predicted from nothing.
        if all(label == IGNORE for label in labels[1:]):
            empty += 1
        found.append(Supervised(ids, labels))
    if empty == len(found):
        raise ValueError(
            f"no row has a supervised token left ({cut} of {len(found)} were cut at max_length={max_length})"
        )
    return Examples(found, cut, empty)


def prompt_of(row: Row, number: int = 0) -> Any:
    """The prompt of a row: a text, or the conversation before the last answer.

    Raises:
        ValueError: the row has none.
    """
    if "messages" in row:
        return list(row["messages"])[:-1]
    return row[_named(number, row, PROMPTS, "prompt")]


def answer_of(row: Row, number: int = 0) -> str:
    """The answer of a row.

    Raises:
        ValueError: the row has none, or it is empty.
    """
    if "messages" in row:
        messages = list(row["messages"])
        if not messages or messages[-1].get("role") != "assistant":
            raise ValueError(f"row {number}: its messages do not end with the assistant's")
        answer = messages[-1].get("content")
    else:
        answer = row[_named(number, row, ANSWERS, "answer")]
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"row {number}: the answer is {answer!r}; expected a text")
    return answer


def prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Ids of a prompt: a text, a conversation, or ids; with the generation prompt of a chat template.

    Raises:
        ValueError: a prompt without tokens, or of another form.
    """
    if isinstance(prompt, str):
        if getattr(tokenizer, "chat_template", None):
            found = chat_prompt(tokenizer, [{"role": "user", "content": prompt}])
        else:
            found = token_ids(tokenizer, prompt)
    elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        found = chat_prompt(tokenizer, prompt)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(i, int) for i in prompt):
        found = list(prompt)
    else:
        raise ValueError(f"a prompt is a text, a conversation or token ids, not {prompt!r}")
    if not found:
        raise ValueError(f"the prompt {prompt!r} has no token")
    return found


def read_rows(path: str | Path, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Demonstrations of a JSONL file, one object a line; empty lines are passed over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line that is no JSON object, or longer than 16 MiB; a file without rows.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}; expected JSONL with a prompt and a response a line"
        )
    rows: list[dict[str, Any]] = []
    with path.open("rb") as stream:
        number = 0
        while limit is None or len(rows) < limit:
            line = stream.readline(LONGEST_LINE + 1)
            if not line:
                break
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: {type(row).__name__}, expected an object")
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return rows


def _encoded(number: int, row: Row, tokenizer: Any, template: dict[str, Any]) -> tuple[list[int], list[int]]:
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} is {type(row).__name__}; expected a mapping with prompt and response")
    if "input_ids" in row:
        ids = list(row["input_ids"])
        labels = list(row.get("labels", ids))
        if len(ids) != len(labels):
            raise ValueError(f"row {number} has {len(ids)} ids and {len(labels)} labels")
        return ids, labels
    if tokenizer is None:
        raise ValueError(f"row {number} holds text ({', '.join(row)}); pass the model's tokenizer")
    answer = answer_of(row, number)
    if "messages" in row:
        return supervised(tokenizer, row["messages"], **template)
    prompt = prompt_of(row, number)
    if isinstance(prompt, str):
        if not getattr(tokenizer, "chat_template", None):
            return prompt_and_answer(tokenizer, prompt, answer)
        prompt = [{"role": "user", "content": prompt}]
    return supervised(tokenizer, [*prompt, {"role": "assistant", "content": answer}], **template)


def _named(number: int, row: Row, names: Sequence[str], what: str) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(
        f"row {number} has no {what}; it has {', '.join(map(str, row)) or 'nothing'}, and one of "
        f"{', '.join(names)}, or messages, was expected"
    )
