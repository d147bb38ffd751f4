"""Reading what models write: tags, JSON, lists of integers, boxed answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

_JSON: dict[type | None, tuple[str, str]] = {
    None: ("{[", "object or array"),
    dict: ("{", "object"),
    list: ("[", "array"),
}
LONGEST = 200_000  # characters; a longer reply is not searched


class ParseError(ValueError):
    """The text does not hold what was looked for."""


def tags(text: str, names: Iterable[str]) -> dict[str, str]:
    """The content of ``<name>...</name>`` for each name; each stands exactly once, and none overlaps another.

    Raises:
        ParseError: where a tag is missing, doubled, not closed, or lies across another.

    Example:
        >>> tags("<level>2</level> <action>go</action>", ["level", "action"])
        {'level': '2', 'action': 'go'}
    """
    _bounded(text)
    found: dict[str, str] = {}
    spans: list[tuple[int, int, str]] = []
    for name in names:
        opened = [m.span() for m in re.finditer(rf"<{re.escape(name)}>", text)]
        closed = [m.span() for m in re.finditer(rf"</{re.escape(name)}>", text)]
        if len(opened) != 1 or len(closed) != 1:
            raise ParseError(
                f"<{name}> is opened {len(opened)} times and closed {len(closed)} times in {_shown(text)}; "
                "exactly once each is wanted"
            )
        (start, inner), (outer, end) = opened[0], closed[0]
        if outer < inner:
            raise ParseError(f"</{name}> stands before <{name}> in {_shown(text)}")
        found[name] = text[inner:outer].strip()
        spans.append((start, end, name))
    spans.sort()
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            raise ParseError(f"<{first}> and <{second}> overlap in {_shown(text)}")
    return found


def last_json(text: str, kind: type | None = None) -> Any:
    """The last complete JSON object or array in a text, inside a code fence or not.

    Args:
        text: what a model wrote.
        kind: ``dict`` or ``list``, where only that will do.

    Raises:
        ParseError: where there is none, or brackets are nested beyond what Python reads.

    Example:
        >>> last_json('First {"a": 1}. Better: {"a": [1, 2]} I think.')
        {'a': [1, 2]}
    """
    _bounded(text)
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    opening, wanted = _JSON[kind]
    found: Any = None
    seen = False
    at = 0
    while at < len(text):
        if text[at] not in "{[":
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError:
            raise ParseError(f"brackets are nested too deeply to be read in {_shown(text)}") from None
        except ValueError:
            at += 1
            continue
        if text[at] in opening:
            found, seen = value, True
        at = end  # what lies inside a complete value belongs to it
    if not seen:
        raise ParseError(f"no JSON {wanted} in {_shown(text)}")
    return found


def last_integers(text: str, *, permutation_of: Iterable[int] | None = None) -> list[int]:
    """The last list of integers in a text: ``[3, 1, 2]``, ``3, 1, 2``, ``3 > 1 > 2`` or one in each line.

    Args:
        text: what a model wrote.
        permutation_of: if given, the list must hold exactly these numbers, each once.

    Raises:
        ParseError: where there is no list of two or more (one inside brackets suffices), or it is no
            permutation.

    Example:
        >>> last_integers("I rank them 2 > 3 > 1.", permutation_of=[1, 2, 3])
        [2, 3, 1]
    """
    _bounded(text)
    number = r"[-+]?\d{1,18}"
    bracketed = [
        (m.end(), m[1]) for m in re.finditer(rf"\[\s*((?:{number}\s*,\s*)*{number})\s*,?\s*\]", text)
    ]
    separated = [
        (m.end(), m[0])
        for m in re.finditer(rf"(?<![\w.\[]){number}(?:\s*(?:,|>|;|\n)\s*{number})+(?!\.?\w)", text)
    ]
    candidates = sorted(bracketed + separated)
    if not candidates:
        raise ParseError(f"no list of integers in {_shown(text)}")
    values = [int(x) for x in re.findall(number, candidates[-1][1])]
    if permutation_of is not None and sorted(values) != sorted(wanted := list(permutation_of)):
        raise ParseError(f"{values} is no order of {sorted(wanted)}, each once, in {_shown(text)}")
    return values


def boxed(text: str) -> str:
    """The content of the last ``\\boxed{...}``, with balanced braces inside.

    Raises:
        ParseError: where there is none, or it is not closed.

    Example:
        >>> boxed(r"so x = \\boxed{\\frac{1}{2}}.")
        '\\\\frac{1}{2}'
    """
    _bounded(text)
    start = text.rfind("\\boxed{")
    if start < 0:
        raise ParseError(f"no \\boxed{{}} in {_shown(text)}")
    depth = 0
    for at in range(start + len("\\boxed"), len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start + len("\\boxed{") : at].strip()
    raise ParseError(f"\\boxed{{ is not closed in {_shown(text)}")


def choice(text: str, options: Mapping[str, str] | Iterable[str]) -> str:
    """The option that a reply settles on: the last one that it names as a word of its own.

    Raises:
        ParseError: where it names none.

    Example:
        >>> choice("Not B. The answer is (A).", "ABC")
        'A'
    """
    _bounded(text)
    last = {o: m.start() for o in options for m in re.finditer(rf"(?<!\w){re.escape(o)}(?!\w)", text)}
    if not last:
        raise ParseError(f"none of {', '.join(options)} in {_shown(text)}")
    return max(last, key=lambda option: (last[option], len(option)))


def _bounded(text: str) -> None:
    if len(text) > LONGEST:
        raise ParseError(f"the text has {len(text)} characters; more than {LONGEST} are not searched")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:90]} ... {text[-90:]}")
