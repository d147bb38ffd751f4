"""The registry: loads every plug-in by itself, so that none can harm another, and answers for names.

Each plug-in is registered alone: registering, checking its hooks and calling them either all succeed,
or leave one record that says what went wrong.
"""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pluggy

from icml_core import hookspecs
from icml_core.components import Component, Paper
from icml_core.errors import UnknownNameError, UserError, install_command

_KIND_OF_HOOK = {
    "icml_models": "model",
    "icml_samplers": "sampler",
    "icml_optimizers": "optimizer",
    "icml_solvers": "solver",
    "icml_evaluators": "evaluator",
}
_HOOKS = (*_KIND_OF_HOOK, "icml_paper", "icml_claims")


class BrokenPluginError(UserError):
    """A plug-in that cannot be used, asked for by name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A component as registered: with its kind and where it comes from."""

    component: Component
    kind: str
    plugin: str
    distribution: str

    @property
    def name(self) -> str:
        return self.component.name


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in that loaded."""

    name: str
    distribution: str
    version: str
    module: str
    entries: tuple[Entry, ...]
    paper: Paper | None
    claims: str | None


@dataclass(frozen=True, slots=True)
class Broken:
    """A plug-in that did not load, and why."""

    name: str
    distribution: str
    reason: str
    traceback: str

    @property
    def remedy(self) -> str:
        """What the user can do about it."""
        uninstall = install_command(self.distribution).replace("pip install", "pip uninstall")
        return f"update {self.distribution}, or remove it: {uninstall}"


class Registry:
    """Every plug-in of an environment, working or broken.

    Args:
        plugins: those that loaded.
        broken: those that did not.
    """

    def __init__(self, plugins: Sequence[Plugin] = (), broken: Sequence[Broken] = ()) -> None:
        self.plugins = tuple(sorted(plugins, key=lambda p: (p.name, p.distribution)))
        self.broken = tuple(sorted(broken, key=lambda b: (b.name, b.distribution)))
        self._entries: dict[str, list[Entry]] = {}
        for plugin in self.plugins:
            for entry in plugin.entries:
                self._entries.setdefault(entry.name, []).append(entry)

    @classmethod
    def discover(cls, *, strict: bool | None = None) -> Registry:
        """Load the entry points of group ``icml`` of this environment.

        Args:
            strict: raise what a plug-in raises instead of recording it; by default where the
                environment variable ``ICML_STRICT`` is set to something other than 0.
        """
        if strict is None:
            strict = os.environ.get("ICML_STRICT", "0") not in ("", "0")
        plugins, broken = [], []
        for entry_point, distribution, version in _unique(metadata.entry_points(group=hookspecs.GROUP)):
            try:
                module = entry_point.load()
                plugins.append(
                    read_plugin(entry_point.name, module, distribution=distribution, version=version)
                )
            except (Exception, SystemExit) as error:
                if strict:
                    raise
                broken.append(
                    Broken(
                        entry_point.name,
                        distribution,
                        _last_line(error),
                        "".join(traceback.format_exception(error)),
                    )
                )
        return cls(plugins, broken)

    @property
    def clashes(self) -> Mapping[str, tuple[Entry, ...]]:
        """Names that several distributions claim; each is reachable as ``distribution:name`` only."""
        return {name: tuple(found) for name, found in self._entries.items() if len(found) > 1}

    def entries(self, *, kind: str | None = None, contract: str | None = None) -> list[Entry]:
        """The components, by name, of one kind or with one contract where asked."""
        return [
            entry
            for name in sorted(self._entries)
            for entry in self._entries[name]
            if (kind is None or entry.kind == kind)
            and (contract is None or contract in entry.component.implements)
        ]

    def entry(self, name: str) -> Entry:
        """The component called ``name``, or ``distribution:name``.

        Raises:
            UnknownNameError: nobody offers it; names the nearest.
            UserError: several distributions offer it.
            BrokenPluginError: its plug-in is installed and did not load.
        """
        distribution, _, plain = name.rpartition(":")
        found = self._entries.get(plain, [])
        if distribution:
            found = [e for e in found if _normal(e.distribution) == _normal(distribution)]
        if len(found) == 1:
            return found[0]
        if found:
            choices = " or ".join(f"{e.distribution}:{plain}" for e in found)
            raise UserError(f"{plain!r} is offered by several distributions; say {choices}")
        prefix = plain.partition(".")[0]
        self._raise_if_broken(prefix)
        raise UnknownNameError(self._unknown("component", name, sorted(self._entries), prefix))

    def plugin(self, name: str) -> Plugin:
        """The plug-in called ``name``, or ``distribution:name``.

        Raises:
            UnknownNameError: it is not installed; names the nearest.
            UserError: several distributions use the name.
            BrokenPluginError: it is installed and did not load.
        """
        distribution, _, plain = name.rpartition(":")
        found = [
            p
            for p in self.plugins
            if p.name == plain and (not distribution or _normal(p.distribution) == _normal(distribution))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            choices = " or ".join(f"{p.distribution}:{plain}" for p in found)
            raise UserError(f"{plain!r} is the name of several plug-ins; say {choices}")
        self._raise_if_broken(plain)
        raise UnknownNameError(self._unknown("plug-in", name, [p.name for p in self.plugins], plain))

    def _raise_if_broken(self, name: str) -> None:
        for broken in self.broken:
            if broken.name == name:
                raise BrokenPluginError(
                    f"plug-in {name!r} ({broken.distribution}) is broken: {broken.reason}; {broken.remedy}; "
                    "`icml doctor` shows the traceback"
                )

    def _unknown(self, what: str, name: str, known: Iterable[str], prefix: str) -> str:
        known = list(known)
        near = nearest(name, known)
        text = f"unknown {what} {name!r}"
        if near:
            return f"{text}; did you mean {' or '.join(near)}?"
        if prefix and all(p.name != prefix for p in self.plugins):
            command = install_command(f"icml-{prefix}")
            return f"{text}; if it belongs to a plug-in that is not installed: {command}"
        return f"{text}; `icml list` shows what is installed"


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known words most like ``word``, best first; also those that ``word`` begins or ends."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=count, cutoff=0.6)
    parts = [k for k in known if word and (k.startswith(word) or k.endswith(f".{word}")) and k not in near]
    return (near + sorted(parts))[:count]


def _unique(entry_points: Iterable[metadata.EntryPoint]) -> list[tuple[metadata.EntryPoint, str, str]]:
    """Each entry point with its distribution's name and version, once.

    Linked folders and stale metadata show a plug-in twice.
    """
    seen: dict[tuple[str, str, str], tuple[metadata.EntryPoint, str, str]] = {}
    for entry_point in entry_points:
        # Reading the metadata parses a file, so it is done once for both fields.
        fields = entry_point.dist.metadata if entry_point.dist is not None else {"Name": "", "Version": ""}
        name, version = fields["Name"] or "unknown", fields["Version"] or "0"
        seen.setdefault((_normal(name), entry_point.name, entry_point.value), (entry_point, name, version))
    return list(seen.values())


def read_plugin(name: str, module: Any, *, distribution: str = "", version: str = "0") -> Plugin:
    """Read a plug-in from the module or object that implements its hooks.

    Args:
        name: its entry point's name, with which every component's name begins.
        module: the namespace with the ``@hookimpl`` functions.

    Raises:
        ValueError: a misspelt or unknown hook, a component with a wrong name, or two alike.
        TypeError: a hook returned something else than it should.
    """
    with _registered(name, module) as hooks:
        _check_hooks(name, module)
        return _read(name, module, hooks, distribution, version)


@cache
def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    return manager


@contextmanager
def _registered(name: str, module: Any) -> Iterator[Any]:
    """The hooks of one plug-in, registered alone in a manager that is as before when the body ends.

    Reading the specifications is most of a manager's cost, so it is kept; after a failure, which may
    leave a plug-in half registered, it is thrown away.
    """
    manager = _manager()
    try:
        manager.register(module, name)
        yield manager.hook
        manager.unregister(name=name)
    except BaseException:
        _manager.cache_clear()
        raise


def _read(name: str, module: Any, hooks: Any, distribution: str, version: str) -> Plugin:
    entries: list[Entry] = []
    for hook, kind in _KIND_OF_HOOK.items():
        for returned in getattr(hooks, hook)():
            for component in _components(name, hook, returned):
                entries.append(Entry(component, kind, name, distribution))
    names = [entry.name for entry in entries]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"plug-in {name!r} offers {', '.join(twice)} twice")
    paper, claims = hooks.icml_paper(), hooks.icml_claims()
    if paper is not None and not isinstance(paper, Paper):
        raise TypeError(f"icml_paper of {name!r} returned {paper!r}; expected an icml_core.Paper")
    if claims is not None and not isinstance(claims, str):
        raise TypeError(f"icml_claims of {name!r} returned {claims!r}; expected an import string")
    return Plugin(
        name, distribution, version, getattr(module, "__name__", repr(module)), tuple(entries), paper, claims
    )


def _check_hooks(name: str, module: Any) -> None:
    """Refuse hooks nobody specified, and functions named like hooks that lack ``@hookimpl``."""
    for attribute in dir(module):
        value = getattr(module, attribute)
        marked = getattr(value, "icml_impl", None) is not None
        if attribute in _HOOKS and callable(value) and not marked:
            raise ValueError(f"{attribute} in plug-in {name!r} lacks the @hookimpl decorator")
        looks_like = attribute.startswith("icml_") and callable(value)
        if attribute not in _HOOKS and (marked or looks_like):
            near = nearest(attribute, _HOOKS, count=1)
            hint = f"; did you mean {near[0]}?" if near else f"; the hooks are {', '.join(_HOOKS)}"
            raise ValueError(f"unknown hook {attribute!r} in plug-in {name!r}{hint}")


def _components(name: str, hook: str, returned: Any) -> list[Component]:
    if isinstance(returned, (str, bytes, Component, Mapping)) or not isinstance(returned, Iterable):
        raise TypeError(f"{hook} of {name!r} returned {returned!r}; expected a list of icml_core.Component")
    components = list(returned)
    for component in components:
        if not isinstance(component, Component):
            raise TypeError(f"{hook} of {name!r} gave {component!r}; expected an icml_core.Component")
        if not component.name.startswith(f"{name}."):
            raise ValueError(f"component {component.name!r} must begin with its plug-in's name: '{name}.'")
    return components


def _normal(distribution: str) -> str:
    return distribution.lower().replace("_", "-").replace(".", "-")


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def duplicate_distributions() -> dict[str, list[tuple[str, Path]]]:
    """``icml-*`` distributions that this environment holds more than once: version and place of each."""
    found: dict[str, dict[Path, str]] = {}
    for distribution in metadata.distributions():
        name = _normal(distribution.metadata["Name"] or "")
        if name.startswith("icml-"):
            place = Path(str(distribution.locate_file(""))).resolve()
            found.setdefault(name, {})[place] = distribution.version
    return {
        name: [(version, place) for place, version in places.items()]
        for name, places in found.items()
        if len(places) > 1
    }
