"""What a user may ask for: k smallest, k nearest, an interval, the inside of a contour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

KINDS = (
    '("SA", k), ("range", a, b), ("below", b), ("nearest", sigma, k) or, for any pencil, ("contour", contour)'
)


@dataclass(frozen=True)
class Target:
    """A request.

    Attributes:
        kind: smallest, nearest, interval or contour.
        k: how many, for the first two.
        a: lower end; minus infinity for everything below b.
        b: upper end.
        sigma: the point.
        contours: for the last.
    """

    kind: str
    k: int = 0
    a: float = -math.inf
    b: float = math.inf
    sigma: float = 0.0
    contours: tuple[Any, ...] = ()

    @staticmethod
    def of(which: Any, n: int) -> Target:
        """Read ``which``.

        Raises:
            ValueError: another form, an empty interval, more eigenvalues than there are.
        """
        if not isinstance(which, tuple) or not which or not isinstance(which[0], str):
            raise ValueError(f"which={which!r}; expected {KINDS}")
        name, *rest = which
        if name == "SA" and len(rest) == 1:
            return Target("smallest", k=_count(rest[0], n, which))
        if name == "nearest" and len(rest) == 2:
            return Target("nearest", sigma=_finite(rest[0], which), k=_count(rest[1], n, which))
        if name == "below" and len(rest) == 1:
            return Target("interval", b=_finite(rest[0], which))
        if name == "range" and len(rest) == 2:
            a, b = (_finite(v, which) for v in rest)
            if a >= b:
                raise ValueError(f"which={which!r}: the interval [{a:g}, {b:g}) is empty; give a < b")
            return Target("interval", a=a, b=b)
        if name == "contour" and len(rest) == 1:
            contours = tuple(rest[0]) if isinstance(rest[0], list | tuple) else (rest[0],)
            if not contours or not all(hasattr(c, "radius") for c in contours):
                raise ValueError(f"which={which!r}: expected a Contour or a list of them")
            return Target("contour", contours=contours)
        raise ValueError(f"which={which!r}; expected {KINDS}")


def _finite(value: Any, which: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"which={which!r}: {value!r} is no number") from None
    if not math.isfinite(found):
        raise ValueError(f"which={which!r}: {value!r} is not finite; use a bound that is")
    return found


def _count(value: Any, n: int, which: Any) -> int:
    if isinstance(value, bool) or int(value) != value or not value >= 1:
        raise ValueError(f"which={which!r}: k must be a whole number from 1 on")
    if value > n:
        raise ValueError(f"which={which!r}: the pencil has {n} rows, so at most {n} eigenvalues")
    return int(value)
