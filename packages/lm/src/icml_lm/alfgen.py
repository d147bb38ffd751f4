"""Games of ALFWorld without its downloads: new ones, in the rooms that its package describes.

ALFWorld (M. Shridhar et al., 2021, arXiv 2010.03768) plays household tasks as PDDL problems, whose texts a
grammar writes. Its game files are a download, but its package holds the domain, the grammar, the goals, and
which receptacles (with their places) and kinds of objects 120 rooms have. From these a seed makes a game: a
room, some of its receptacles, objects put where they belong, a goal. Rules and words are then ALFWorld's own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icml_lm.text_env import needs, split_seed, unknown

TASKS = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
MADE_IN = {
    "clean": ("Cleanable", "SinkBasin"),
    "heat": ("Heatable", "Microwave"),
    "cool": ("Coolable", "Fridge"),
}
LAMP, LAMP_STANDS = "DeskLamp", ("CoffeeTable", "Desk", "Dresser", "SideTable", "TVStand")
"""The lamp under which things are looked at, and what it stands on: the package's table of what belongs where
has only what can be taken."""
ABILITIES = {
    "cleanable": "Cleanable",
    "heatable": "Heatable",
    "coolable": "Coolable",
    "toggleable": "Toggleable",
    "sliceable": "Sliceable",
}
MANGLED = {"|": "_bar_", "-": "_minus_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
INSTALL = ("alfworld", "textworld[pddl]")
WHY = "builds from source and needs a C++ compiler"


@dataclass(frozen=True)
class Room:
    """A room: its receptacles as (name, type, place to stand), and the types of objects that occur in it."""

    receptacles: tuple[tuple[str, str, str], ...]
    objects: tuple[str, ...]


def alfred_package(module: str) -> Any:
    """A module of ALFWorld's package, or the error that says how to get it."""
    return needs(f"alfworld.{module}", *INSTALL, why=WHY)


def room(number: int) -> Room:
    """A floor plan of the package."""
    constants = alfred_package("gen.constants")
    home = Path(constants.__file__).parent / "layouts"
    places = json.loads((home / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8"))
    objects = json.loads((home / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))
    receptacles = []
    for name, (x, z, turn, tilt) in sorted(places.items()):
        parts = name.split("|")
        kind = parts[0] + ("Basin" if parts[-1].endswith("Basin") else "")
        if kind in constants.VAL_RECEPTACLE_OBJECTS:
            stand = f"loc|{x / 0.25:.0f}|{z / 0.25:.0f}|{turn / 90:.0f}|{tilt:.0f}"
            receptacles.append((name, kind, stand))
    fitting = set().union(*(constants.VAL_RECEPTACLE_OBJECTS[kind] for _, kind, _ in receptacles))
    return Room(tuple(receptacles), tuple(sorted(set(objects) & (fitting | {LAMP}))))


def new_game(
    task: str, seed: int, split: str = "train", *, receptacles: int = 8, objects: int = 7
) -> dict[str, Any]:
    """A game in ALFWorld's own format; ``dev`` has the rooms of ``train``, ``test`` has rooms of its own.

    Args:
        task: pick, look, clean, heat, cool or two.
        seed: of the game; the same seed gives the same one.
        split: train, dev or test.
        receptacles: how many of the room's, at most.
        objects: how many, at most, of which one, or two, fulfil the task.

    Raises:
        UnknownNameError: for another task.
        ValueError: for fewer than three receptacles or two objects.
        NeedsError: where ALFWorld is not installed.
    """
    if task not in TASKS:
        raise unknown("task of alfgen", task, TASKS)
    if receptacles < 3 or objects < 2:
        raise ValueError(f"{receptacles} receptacles and {objects} objects; at least 3 and 2 are wanted")
    constants = alfred_package("gen.constants")
    rng = random.Random(split_seed(seed, f"alfgen {task} {split}"))
    kinds = constants.GOALS_VALID[TASKS[task]]
    numbers = constants.TEST_SCENE_NUMBERS if split == "test" else constants.TRAIN_SCENE_NUMBERS
    plans = [n for n in numbers if any(n in constants.SCENE_TYPE[kind] for kind in kinds)]
    for number in rng.sample(plans, len(plans)):
        if furnished := _furnish(room(number), task, rng, receptacles, objects):
            return _written(task, f"{task}_{number}", rng, *furnished)
    raise ValueError(f"no room suits the task {task!r}")


Placed = list[tuple[str, str, str]]
"""Objects as (name, type, name of the receptacle)."""


def _furnish(
    plan: Room, task: str, rng: random.Random, n_receptacles: int, n_objects: int
) -> tuple[Sequence[tuple[str, str, str]], Placed, str, str] | None:
    """Receptacles, objects in them, and the goal's two types; None where the room has no such task."""
    constants = alfred_package("gen.constants")
    holds = constants.VAL_RECEPTACLE_OBJECTS
    by_kind: dict[str, list[tuple[str, str, str]]] = {}
    for receptacle in plan.receptacles:
        by_kind.setdefault(receptacle[1], []).append(receptacle)
    ability, appliance = MADE_IN.get(task, ("", ""))
    if appliance and appliance not in by_kind:
        return None
    goals = []
    for kind in (k for k in plan.objects if k != LAMP):
        if ability and kind not in constants.VAL_ACTION_OBJECTS[ability]:
            continue
        if task == "look":
            goals += [(kind, LAMP)] if LAMP in plan.objects else []
        else:
            goals += [(kind, place) for place in by_kind if kind in holds[place] and place != appliance]
    rng.shuffle(goals)
    for kind, place in goals:
        avoided = (place, appliance)
        sources = [r for r in plan.receptacles if kind in holds[r[1]] and r[1] not in avoided]
        stands = [r for r in plan.receptacles if r[1] in LAMP_STANDS]
        if not sources or (task == "look" and not stands):
            continue
        chosen = [rng.choice(sources), rng.choice(stands if task == "look" else by_kind[place])]
        chosen += [rng.choice(by_kind[appliance])] if appliance else []
        others = [r for r in plan.receptacles if r not in chosen]
        more = max(0, min(len(others), n_receptacles - len(set(chosen))))
        picked = sorted({*chosen, *rng.sample(others, more)})
        homes = [r for r in picked if r in sources]
        wanted = [(kind, rng.choice(homes)) for _ in range(2 if task == "two" else 1)]
        wanted += [(place, chosen[1])] if task == "look" else []
        fillers = [k for k in plan.objects if k not in (kind, place, LAMP)]
        for _ in range(n_objects - len(wanted)):
            filler = rng.choice(fillers) if fillers else kind
            fits = [r for r in picked if filler in holds[r[1]]]
            wanted += [(filler, rng.choice(fits))] if fits and filler != kind else []
        return picked, _named(wanted, rng), kind, place
    return None


def _named(wanted: list[tuple[str, tuple[str, str, str]]], rng: random.Random) -> Placed:
    """Names as ALFRED gives them, of type and position: unlike ones, near their receptacle."""
    placed: Placed = []
    taken: set[str] = set()
    for kind, (home, _, _) in wanted:
        x, y, z = (float(part) for part in home.split("|")[1:4])
        while (
            name := "|".join([kind, *(f"{v + rng.uniform(-0.3, 0.3):+06.2f}" for v in (x, y, z))])
        ) in taken:
            pass
        taken.add(name)
        placed.append((name, kind, home))
    return placed


def mangled(name: str) -> str:
    """A name of ALFRED as PDDL can have it: ``Apple|-01.10`` is ``Apple_bar__minus_01_dot_10``."""
    return "".join(MANGLED.get(letter, letter) for letter in name)


def _written(
    task: str,
    title: str,
    rng: random.Random,
    receptacles: Sequence[tuple[str, str, str]],
    objects: Placed,
    kind: str,
    place: str,
) -> dict[str, Any]:
    constants, library = alfred_package("gen.constants"), alfred_package("gen.goal_library")
    info = alfred_package("info")
    goal = library.gdict[TASKS[task]]
    filled = {"obj": kind, "recep": place, "toggle": place, "mrecep": ""}
    stand = {name: mangled(where) for name, _, where in receptacles}
    start = "loc_bar_start"
    rtypes = sorted({k for _, k, _ in receptacles} | ({place} if task != "look" else set()))
    otypes = sorted({k for _, k, _ in objects})
    declared = ["agent1 - agent", f"{start} - location"]
    declared += [f"{where} - location" for where in sorted(set(stand.values()))]
    declared += [f"{mangled(name)} - receptacle" for name, _, _ in receptacles]
    declared += [f"{mangled(name)} - object" for name, _, _ in objects]
    declared += [f"{k}Type - rtype" for k in rtypes] + [f"{k}Type - otype" for k in otypes]
    # The domain's goals and rules name these types whether the room has them or not.
    declared += [f"{k}Type - rtype" for k in ("Fridge", "Microwave", "SinkBasin") if k not in rtypes]
    declared += [f"{k}Type - otype" for k in ("Knife", "ButterKnife") if k not in otypes]
    facts = ["(= (total-cost) 0)", f"(atLocation agent1 {start})"]
    for name, k, _ in receptacles:
        facts += [
            f"(receptacleType {mangled(name)} {k}Type)",
            f"(receptacleAtLocation {mangled(name)} {stand[name]})",
        ]
        facts += [f"(openable {mangled(name)})"] if k in constants.OPENABLE_CLASS_SET else []
    for name, k, home in objects:
        facts += [f"(objectType {mangled(name)} {k}Type)", f"(inReceptacle {mangled(name)} {mangled(home)})"]
        facts += [f"(objectAtLocation {mangled(name)} {stand[home]})"]
        facts += [f"(pickupable {mangled(name)})"] if k != LAMP else []
        facts += [f"(isReceptacleObject {mangled(name)})"] if k in constants.MOVABLE_RECEPTACLES_SET else []
        able = [word for word, key in ABILITIES.items() if k in constants.VAL_ACTION_OBJECTS[key]]
        facts += [f"({word} {mangled(name)})" for word in able]
    for r in rtypes:
        facts += [f"(canContain {r}Type {o}Type)" for o in otypes if o in constants.VAL_RECEPTACLE_OBJECTS[r]]
    wanted = goal["pddl"].replace("#", "-").format(**filled)
    problem = "\n".join(
        [
            f"(define (problem {title})",
            "(:domain alfred)",
            "(:objects",
            *declared,
            ")",
            "(:init",
            *facts,
            ")",
            wanted,
        ]
    )
    said = rng.choice(goal["templates"]).format(**{key: word.lower() for key, word in filled.items()})
    grammar = Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    return {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL", said),
        "pddl_problem": problem,
        "solvable": True,
    }
