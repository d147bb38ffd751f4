"""Trip scheduling with one solution: five cities by direct flights, each for its days, one of them on time.

After the trip task of Natural Plan (Zheng et al., arXiv 2406.04520): a day of travel counts for both cities,
and plans are written and read in its format ("**Day 1-3:** Visit Riga for 3 days."). Everything is also
tokens:

    prompt   city days (5 times, shuffled), city city (6 flights, shuffled), city day (that city begins on
    that day) answer   city first last (5 times, in the order of the visit)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from random import Random

import torch
from torch import Tensor

CITIES = ("Riga", "Porto", "Vienna", "Naples", "Bergen", "Krakow", "Lyon", "Seville")
DAYS = (2, 3, 4)
"""Days that a city may take."""
MOST_DAYS = 16


@dataclass(frozen=True)
class Trip:
    """A problem.

    Attributes:
        stays: days of every city that is to be visited.
        flights: pairs of cities with a direct flight, both ways.
        event: a city, and the day on which its visit begins.
    """

    stays: dict[str, int]
    flights: frozenset[frozenset[str]]
    event: tuple[str, int]

    def text(self) -> str:
        """The problem in words, as Natural Plan puts it."""
        total = sum(self.stays.values()) - len(self.stays) + 1
        lines = [f"You plan to visit {len(self.stays)} European cities for {total} days in total."]
        lines += [f"You would like to visit {c} for {d} days." for c, d in self.stays.items()]
        lines += [f"Your visit of {self.event[0]} begins on day {self.event[1]}."]
        pairs = ", ".join(" and ".join(sorted(p)) for p in sorted(self.flights, key=sorted))
        return "\n".join([*lines, f"Here are the cities that have direct flights: {pairs}."])


Plan = list[tuple[str, int, int]]
"""City, first day, last day, in the order of the visit."""


def solutions(trip: Trip) -> Iterator[Plan]:
    """All plans, by depth-first search."""

    def extend(plan: Plan) -> Iterator[Plan]:
        if len(plan) == len(trip.stays):
            yield plan
            return
        seen = {city for city, _, _ in plan}
        first = plan[-1][2] if plan else 1
        for city, days in trip.stays.items():
            if city in seen or (plan and frozenset((plan[-1][0], city)) not in trip.flights):
                continue
            if city == trip.event[0] and first != trip.event[1]:
                continue
            yield from extend([*plan, (city, first, first + days - 1)])

    yield from extend([])


def is_solution(trip: Trip, plan: Plan) -> bool:
    """Whether a plan visits every city once for its days, flies direct, and keeps the date."""
    if sorted(city for city, _, _ in plan) != sorted(trip.stays):
        return False
    day = 1
    for i, (city, first, last) in enumerate(plan):
        if first != day or last != first + trip.stays[city] - 1:
            return False
        if i and frozenset((plan[i - 1][0], city)) not in trip.flights:
            return False
        if city == trip.event[0] and first != trip.event[1]:
            return False
        day = last
    return True


def plan_text(plan: Plan) -> str:
    """A plan in Natural Plan's format."""
    lines = []
    for i, (city, first, last) in enumerate(plan):
        if i:
            lines.append(f"**Day {first}:** Fly from {plan[i - 1][0]} to {city}.")
        lines.append(f"**Day {first}-{last}:** Visit {city} for {last - first + 1} days.")
    return "\n".join(lines)


def parse_plan(text: str) -> Plan:
    """The visits that a text in Natural Plan's format names; flights and other lines are passed over."""
    found = re.findall(
        r"\*{0,2}Day (\d{1,4})\s*-\s*(\d{1,4}):?\*{0,2}:?[^\n]*?[Vv]isit(?:ing)? ([A-Z]\w*)", text
    )
    return [(city, int(first), int(last)) for first, last, city in found]


def random_trip(random: Random, cities: int = 5, extra_flights: int = 2) -> tuple[Trip, Plan]:
    """A trip with exactly one plan, and that plan."""
    while True:
        order = random.sample(CITIES, cities)
        stays = {city: random.choice(DAYS) for city in order}
        path = [frozenset(pair) for pair in pairwise(order)]
        others = [p for pair in combinations(order, 2) if (p := frozenset(pair)) not in path]
        flights = frozenset([*path, *random.sample(others, extra_flights)])
        day, plan = 1, []
        for city in order:
            plan.append((city, day, day + stays[city] - 1))
            day += stays[city] - 1
        event = random.choice(plan)
        shuffled = random.sample(order, cities)
        trip = Trip({c: stays[c] for c in shuffled}, flights, (event[0], event[1]))
        search = solutions(trip)
        if next(search) == plan and next(search, None) is None:
            return trip, plan


@dataclass(frozen=True)
class Trips:
    """The task in tokens: cities are 0 to 7, day k is 7 + k, the mask is the last.

    Attributes:
        cities: of a trip.
        extra_flights: beside those of the plan.
    """

    cities: int = 5
    extra_flights: int = 2
    name = "trips"
    vocab = len(CITIES) + MOST_DAYS + 1
    mask_id = vocab - 1
    _ids: dict[str, int] = field(default_factory=lambda: {c: i for i, c in enumerate(CITIES)}, repr=False)

    @property
    def length(self) -> int:
        """Of a sequence."""
        return self.prompt_length + self.wanted

    @property
    def prompt_length(self) -> int:
        """Of the problem."""
        return 2 * self.cities + 2 * (self.cities - 1 + self.extra_flights) + 2

    @property
    def wanted(self) -> int:
        """Of the plan."""
        return 3 * self.cities

    def sample(self, n: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Random trips with their only plans."""
        random = Random(seed)
        rows = [self._row(*random_trip(random, self.cities, self.extra_flights), random) for _ in range(n)]
        whole = torch.tensor(rows, dtype=torch.int64).view(n, self.length)
        answer = torch.zeros_like(whole, dtype=torch.bool)
        answer[:, self.prompt_length :] = True
        return whole, answer

    def check(self, given: Tensor, filled: Tensor) -> Tensor:
        """Whether the plan solves the problem that the prompt states."""
        kept = ((given == self.mask_id) | (given == filled)).all(1).tolist()
        rows = zip(kept, filled.tolist(), strict=True)
        return torch.tensor([ok and self._solved(row) for ok, row in rows], dtype=torch.bool)

    def read(self, row: list[int]) -> tuple[Trip, Plan | None]:
        """The problem and the plan in a row of tokens; None where the answer is no list of visits."""
        split, flights = 2 * self.cities, 2 * (self.cities - 1 + self.extra_flights)
        pairs = list(zip(row[:split:2], row[1:split:2], strict=True))
        stays = {CITIES[city]: self._day(day) for city, day in pairs}
        edges = row[split : split + flights]
        between = zip(edges[::2], edges[1::2], strict=True)
        event = row[split + flights : self.prompt_length]
        trip = Trip(
            stays,
            frozenset(frozenset((CITIES[a], CITIES[b])) for a, b in between),
            (CITIES[event[0]], self._day(event[1])),
        )
        answer = row[self.prompt_length :]
        plan: Plan = []
        for city, first, last in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
            days = range(len(CITIES), self.vocab - 1)
            if city >= len(CITIES) or first not in days or last not in days:
                return trip, None
            plan.append((CITIES[city], self._day(first), self._day(last)))
        return trip, plan

    def _solved(self, row: list[int]) -> bool:
        trip, plan = self.read(row)
        return plan is not None and is_solution(trip, plan)

    def _day(self, token: int) -> int:
        return token - len(CITIES) + 1

    def _row(self, trip: Trip, plan: Plan, random: Random) -> list[int]:
        day = len(CITIES) - 1
        row = [t for city, days in trip.stays.items() for t in (self._ids[city], day + days)]
        edges = [random.sample(sorted(pair), 2) for pair in sorted(trip.flights, key=sorted)]
        random.shuffle(edges)
        row += [self._ids[city] for edge in edges for city in edge]
        row += [self._ids[trip.event[0]], day + trip.event[1]]
        return row + [t for city, first, last in plan for t in (self._ids[city], day + first, day + last)]
