"""Shortest plans for the six household tasks of ALFWorld, from any state of the game.

The expert knows the whole state, as a planner does. The tasks leave few choices (which object, which place of
the wanted kind, which appliance), so that all are tried and the shortest is taken: fast at any size, where
the time of a general planner explodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

APPLIANCES = {
    "ishot": ("heat", "microwavetype", "heatable"),
    "iscool": ("cool", "fridgetype", "coolable"),
    "isclean": ("clean", "sinkbasintype", "cleanable"),
}
"""Verb, kind of receptacle, and what an object has to be, to be given a property."""


@dataclass(frozen=True)
class Goal:
    """What a game wants.

    Attributes:
        kind: type of the object to be taken.
        place: type of the receptacle in which it has to end, or of the lamp under which it is looked at.
        made: ``"ishot"``, ``"iscool"``, ``"isclean"``, or empty.
        count: how many objects.
        look: whether it is to be held beside the lit lamp instead of being put down.
    """

    kind: str
    place: str
    made: str = ""
    count: int = 1
    look: bool = False

    @classmethod
    def of(cls, problem: str) -> Goal:
        """The goal of a PDDL problem of ALFWorld.

        Raises:
            ValueError: where it is none of the six.
        """
        text = problem.lower().partition("(:goal")[2]
        kinds = re.findall(r"\(objecttype \?(\w+) (\w+)\)", text)
        places = re.findall(r"\(receptacletype \?\w+ (\w+)\)", text)
        made = [name for name in APPLIANCES if f"({name} " in text]
        if "(istoggled ?ot)" in text and len(kinds) == 2:
            by_variable = dict(kinds)
            return cls(by_variable["o"], by_variable["ot"], look=True)
        odd = "issliced" in text or "inreceptacleobject" in text
        if odd or len(made) > 1 or len(set(places)) != 1 or len({kind for _, kind in kinds}) != 1:
            raise ValueError(f"the goal is none of ALFWorld's six tasks: {text[:300]!r}")
        return cls(kinds[0][1], places[0], made[0] if made else "", len(kinds))


@dataclass
class House:
    """The state of a game that plans depend on, and the commands that have led to it."""

    names: Mapping[str, str]
    types: dict[str, str] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)
    openable: frozenset[str] = frozenset()
    toggled: frozenset[str] = frozenset()
    made: frozenset[tuple[str, str]] = frozenset()
    able: frozenset[tuple[str, str]] = frozenset()
    fits: frozenset[tuple[str, str]] = frozenset()
    opened: set[str] = field(default_factory=set)
    here: str = ""
    held: str | None = None
    commands: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Iterable[Any], names: Mapping[str, str]) -> House:
        """The state from TextWorld's facts, and the names by which its commands call things."""
        house = cls(names)
        sets: dict[str, set[Any]] = {key: set() for key in ("openable", "istoggled", "made", "able", "fits")}
        for fact in facts:
            things = [argument.name for argument in fact.arguments]
            match fact.name:
                case "objecttype" | "receptacletype":
                    house.types[things[0]] = things[1]
                case "receptacleatlocation":
                    house.at[things[0]] = things[1]
                case "inreceptacle":
                    house.inside[things[0]] = things[1]
                case "atlocation":
                    house.here = things[1]
                case "holds":
                    house.held = things[1]
                case "opened":
                    house.opened.add(things[0])
                case "openable" | "istoggled":
                    sets[fact.name].add(things[0])
                case "cancontain":
                    sets["fits"].add((things[0], things[1]))
                case "ishot" | "iscool" | "isclean":
                    sets["made"].add((fact.name, things[0]))
                case "heatable" | "coolable" | "cleanable":
                    sets["able"].add((fact.name, things[0]))
        house.openable, house.toggled = frozenset(sets["openable"]), frozenset(sets["istoggled"])
        house.made, house.able = frozenset(sets["made"]), frozenset(sets["able"])
        house.fits = frozenset(sets["fits"])
        return house

    def copy(self) -> House:
        """The same state, to be changed apart."""
        return replace(self, inside=dict(self.inside), opened=set(self.opened), commands=list(self.commands))

    def of_type(self, kind: str) -> list[str]:
        """All things of a type."""
        return sorted(thing for thing, own in self.types.items() if own == kind)

    def can_hold(self, place: str, thing: str) -> bool:
        """Whether a receptacle takes things of this type."""
        return (self.types[place], self.types[thing]) in self.fits

    def go(self, place: str, *, reach: bool = True) -> None:
        """Stand before a receptacle, and open it where it has to be reached into."""
        if self.here != self.at[place]:
            self.commands.append(f"go to {self.names[place]}")
            self.here = self.at[place]
        if reach and place in self.openable and place not in self.opened:
            self.commands.append(f"open {self.names[place]}")
            self.opened.add(place)

    def take(self, thing: str) -> None:
        """Fetch a thing, with free hands."""
        place = self.inside.pop(thing)
        self.go(place)
        self.commands.append(f"take {self.names[thing]} from {self.names[place]}")
        self.held = thing

    def put(self, place: str) -> None:
        """Put down what is held."""
        self.go(place)
        assert self.held is not None, "nothing is held"
        self.commands.append(f"move {self.names[self.held]} to {self.names[place]}")
        self.inside[self.held], self.held = place, None


def shortest_plan(house: House, goal: Goal) -> list[str] | None:
    """The fewest commands that reach the goal; None where nothing does, and empty where it is reached.

    Equal lengths are decided by the alphabet, so that the plan depends on the state alone.
    """
    plans = (plan.commands for start in _free_handed(house, goal) for plan in _plans(start, goal))
    return min(plans, key=lambda commands: (len(commands), commands), default=None)


def _free_handed(house: House, goal: Goal) -> Iterator[House]:
    """The state as it is, and with what is held put down, wherever it fits."""
    if house.held is None or house.types[house.held] == goal.kind:
        yield house
    if house.held is not None:
        for place in house.at:
            if house.can_hold(place, house.held):
                put = house.copy()
                put.put(place)
                yield put


def _plans(house: House, goal: Goal) -> Iterator[House]:
    things = house.of_type(goal.kind)
    if goal.look:
        for thing in things:
            for lamp in house.of_type(goal.place):
                if lamp in house.inside and house.held in (None, thing):
                    yield _looked(house.copy(), thing, lamp)
        return
    for place in house.of_type(goal.place):
        for chosen in combinations(things, goal.count):
            if house.held is None or house.held in chosen:
                yield from _placed(house.copy(), chosen, place, goal)


def _looked(house: House, thing: str, lamp: str) -> House:
    if house.held != thing:
        house.take(thing)
    house.go(house.inside[lamp], reach=False)
    if lamp not in house.toggled:
        house.commands.append(f"use {house.names[lamp]}")
    return house


def _placed(house: House, chosen: Iterable[str], place: str, goal: Goal) -> Iterator[House]:
    """Every order in which the chosen things that are not there are brought; one in hand goes first."""
    missing = [t for t in chosen if house.inside.get(t) != place or not _made(house, t, goal)]
    if not missing:
        yield house
        return
    for thing in [house.held] if house.held else missing:
        if not house.can_hold(place, thing):
            continue
        for source in _sources(house, thing, goal):
            brought = house.copy()
            if brought.held != thing:
                brought.take(thing)
            if source:
                brought.go(source, reach=False)
                brought.commands.append(
                    f"{APPLIANCES[goal.made][0]} {house.names[thing]} with {house.names[source]}"
                )
                brought.made |= {(goal.made, thing)}
            brought.put(place)
            yield from _placed(brought, chosen, place, goal)


def _made(house: House, thing: str, goal: Goal) -> bool:
    return not goal.made or (goal.made, thing) in house.made


def _sources(house: House, thing: str, goal: Goal) -> list[str]:
    """The appliances that would do; one empty string where none is needed."""
    if _made(house, thing, goal):
        return [""]
    _, appliance, able = APPLIANCES[goal.made]
    return house.of_type(appliance) if (able, thing) in house.able else []
