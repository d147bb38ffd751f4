"""Trip scheduling with one solution: five cities by direct flights, each for its days, some of them on time.

After the trip task of Natural Plan (Zheng et al., arXiv 2406.04520): a day of travel counts for both cities,
and plans are written and read in its format ("**Day 1-3:** Visit Riga for 3 days."). Everything is also
tokens; the days that are wanted add up to 16, so that every trip takes twelve days:

    prompt   of each of the five cities: its days, the day on which it begins or "any", its neighbours
    answer   of each of the twelve days: the city in which it ends
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from random import Random

import torch
from jaxtyping import Int64
from torch import Tensor

CITIES = ("Riga", "Porto", "Vienna", "Naples", "Bergen")
STAYS = (2, 3, 4, 5)
"""Days that a city may take."""
WANTED = 16
"""Sum of the days of all cities."""
DAYS = WANTED - len(CITIES) + 1
"""Of a trip: days of travel count twice."""


@dataclass(frozen=True)
class Trip:
    """A problem.

    Attributes:
        stays: days of every city that is to be visited.
        flights: pairs of cities with a direct flight, both ways.
        events: cities whose visit begins on a given day.
    """

    stays: dict[str, int]
    flights: frozenset[frozenset[str]]
    events: dict[str, int]

    def text(self) -> str:
        """The problem in words, as Natural Plan puts it."""
        total = sum(self.stays.values()) - len(self.stays) + 1
        lines = [f"You plan to visit {len(self.stays)} European cities for {total} days in total."]
        lines += [f"You would like to visit {c} for {d} days." for c, d in self.stays.items()]
        lines += [f"Your visit of {c} begins on day {d}." for c, d in self.events.items()]
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
            if trip.events.get(city, first) != first:
                continue
            yield from extend([*plan, (city, first, first + days - 1)])

    yield from extend([])


def is_solution(trip: Trip, plan: Plan) -> bool:
    """Whether a plan visits every city once for its days, flies direct, and keeps the dates."""
    if sorted(city for city, _, _ in plan) != sorted(trip.stays):
        return False
    day = 1
    for i, (city, first, last) in enumerate(plan):
        if first != day or last != first + trip.stays[city] - 1:
            return False
        if i and frozenset((plan[i - 1][0], city)) not in trip.flights:
            return False
        if trip.events.get(city, first) != first:
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
        r"\*{0,2}Day (\d{1,4})\s*-\s*(\d{1,4}):?\*{0,2}:?[^\n]*?[Vv]isit(?:ing)? ([A-Z]\w*)",
        text,
    )
    return [(city, int(first), int(last)) for first, last, city in found]


def random_trip(random: Random, extra_flights: int = 2, events: int = 3) -> tuple[Trip, Plan]:
    """A trip through all cities with exactly one plan, and that plan.

    Args:
        random: where numbers come from.
        extra_flights: beside those of the plan.
        events: cities whose first day is given.
    """
    while True:
        days = [random.choice(STAYS) for _ in CITIES]
        if sum(days) != WANTED:
            continue
        order = random.sample(CITIES, len(CITIES))
        stays = dict(zip(CITIES, days, strict=True))
        path = [frozenset(pair) for pair in pairwise(order)]
        others = [p for pair in combinations(order, 2) if (p := frozenset(pair)) not in path]
        flights = frozenset([*path, *random.sample(others, extra_flights)])
        day, plan = 1, []
        for city in order:
            plan.append((city, day, day + stays[city] - 1))
            day += stays[city] - 1
        dated = {city: first for city, first, _ in random.sample(plan, events)}
        trip = Trip(stays, flights, dated)
        search = solutions(trip)
        if next(search) == plan and next(search, None) is None:
            return trip, plan


STAY, DAY = len(CITIES), len(CITIES) + len(STAYS)
ANY = DAY + DAYS
LINKS = ANY + 1
PROMPT = 3 * len(CITIES)


@dataclass(frozen=True)
class Trips:
    """The task in tokens.

    Cities are 0 to 4, stays of 2 to 5 days 5 to 8, the days 9 to 20, "any" 21, the 32 sets of neighbours 22
    to 53 (bit k for city k), the mask 54.

    Attributes:
        extra_flights: beside those of the plan.
        events: cities whose first day is given.
    """

    extra_flights: int = 2
    events: int = 3
    name = "trips"
    vocab = LINKS + 2 ** len(CITIES) + 1
    mask_id = vocab - 1
    length = PROMPT + DAYS
    wanted = DAYS

    def sample(self, n: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Random trips with their only plans."""
        random = Random(seed)
        rows = [_row(*random_trip(random, self.extra_flights, self.events)) for _ in range(n)]
        whole = torch.tensor(rows, dtype=torch.int64).view(n, self.length)
        answer = torch.zeros_like(whole, dtype=torch.bool)
        answer[:, PROMPT:] = True
        return whole, answer

    def renamed(self, whole: Int64[Tensor, "n length"], generator: torch.Generator) -> Tensor:
        """The same trips with cities that have changed their names, in every row otherwise."""
        n, cities = len(whole), len(CITIES)
        old = torch.rand(n, cities, generator=generator).argsort(1)  # of each new name
        prompt = whole[:, :PROMPT].view(n, cities, 3)
        prompt = prompt.gather(1, old[:, :, None].expand_as(prompt)).clone()
        linked = (prompt[:, :, 2, None] - LINKS) >> torch.arange(cities) & 1
        linked = linked.gather(2, old[:, None].expand_as(linked))
        prompt[:, :, 2] = LINKS + (linked << torch.arange(cities)).sum(2)
        return torch.cat((prompt.flatten(1), old.argsort(1).gather(1, whole[:, PROMPT:])), 1)

    def check(self, given: Tensor, filled: Tensor) -> Tensor:
        """Whether the plan solves the problem that the prompt states."""
        kept = ((given == self.mask_id) | (given == filled)).all(1).tolist()
        rows = zip(kept, filled.tolist(), strict=True)
        return torch.tensor([ok and self._solved(row) for ok, row in rows], dtype=torch.bool)

    def read(self, row: list[int]) -> tuple[Trip, Plan | None]:
        """The problem and the plan in a row of tokens; None where the answer names something else."""
        stays, events, flights = {}, {}, set()
        for k, city in enumerate(CITIES):
            stay, first, links = row[3 * k : 3 * k + 3]
            stays[city] = STAYS[stay - STAY]
            if first != ANY:
                events[city] = first - DAY + 1
            near = [other for j, other in enumerate(CITIES) if links - LINKS >> j & 1]
            flights |= {frozenset((city, other)) for other in near}
        trip, answer = Trip(stays, frozenset(flights), events), row[PROMPT:]
        if any(city >= len(CITIES) for city in answer):
            return trip, None
        # A day of travel ends in the next city, and is the last day in the one before.
        starts = [day for day in range(DAYS) if day == 0 or answer[day] != answer[day - 1]]
        last = [*starts[1:], DAYS - 1]
        return trip, [(CITIES[answer[a]], a + 1, b + 1) for a, b in zip(starts, last, strict=True)]

    def _solved(self, row: list[int]) -> bool:
        trip, plan = self.read(row)
        return plan is not None and is_solution(trip, plan)


def _row(trip: Trip, plan: Plan) -> list[int]:
    row = []
    for city in CITIES:
        near = (k for k, other in enumerate(CITIES) if frozenset((city, other)) in trip.flights)
        first = trip.events.get(city)
        begins = ANY if first is None else DAY + first - 1
        row += [
            STAY + STAYS.index(trip.stays[city]),
            begins,
            LINKS + sum(1 << k for k in near),
        ]
    nights = [k for city, a, b in plan for k in [CITIES.index(city)] * (b - a)]
    return [*row, *nights, nights[-1]]
