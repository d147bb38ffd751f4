"""Options of a job, from its signature: hints, defaults and docstring become a command line and a config.

cyclopts parses; what is added here is the same set of reserved options for every job, configuration
files whose keys and types are checked as strictly as the command line's, and the way back from
values to a configuration.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any

from icml_core.errors import UserError
from icml_core.registry import nearest
from icml_core.run import _plain

RESERVED = ("out", "seed", "device", "config", "resume", "force")
_OF_THE_RUN = ("seed", "device")  # reserved options that belong to the effective configuration
_DECLARED = "__icml_declared__"
NONE_KEY = "none"  # TOML has no null: this key lists the options that are None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line, understood.

    Attributes:
        arguments: what the job is called with.
        reserved: the reserved options.
        given: names of the options that the command line or the configuration set.
    """

    arguments: dict[str, Any]
    reserved: dict[str, Any]
    given: frozenset[str]

    @property
    def configuration(self) -> dict[str, Any]:
        """The effective configuration, as plain values: what ``--config`` takes back."""
        return _plain(self.arguments) | {name: self.reserved[name] for name in _OF_THE_RUN}


class HelpShown(Exception):
    """``--help`` was asked for and has been printed."""


def job_parameters(job: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a job that are options: all but ``run``, with their hints resolved.

    Raises:
        TypeError: a parameter without hint, positional-only, variadic, or with a reserved name.
    """
    signature = inspect.signature(job, eval_str=True)
    options = [p for p in signature.parameters.values() if p.name != "run"]
    for parameter in options:
        where = f"job {job.__module__}.{job.__qualname__}: parameter {parameter.name!r}"
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(f"{where} cannot be an option; make it keyword-only")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{where} has no type hint")
        if parameter.name in (*RESERVED, NONE_KEY):
            raise TypeError(f"{where} has a reserved name ({', '.join((*RESERVED, NONE_KEY))})")
    return [p.replace(kind=p.KEYWORD_ONLY) for p in options]


def parse(
    component: str,
    job: Callable[..., Any],
    tokens: Sequence[str],
    *,
    base: Mapping[str, Any] | None = None,
) -> Parsed:
    """Understand ``tokens`` as the options of ``job``.

    Args:
        component: its name, for the help text.
        base: a configuration to start from (that of the run to resume), below ``--config``.

    Raises:
        UserError: an unknown option or key (with the nearest), a wrong type, a missing option.
        HelpShown: after printing the help.
    """
    from cyclopts import App, CycloptsError, Parameter
    from cyclopts.config import Dict

    parameters = job_parameters(job)
    hints = {p.name: p.annotation for p in parameters} | {"seed": int, "device": str}
    layers = []
    if (path := _config_path(tokens)) is not None:
        layers.append((load_config(path), str(path)))
    if base is not None:
        layers.append((dict(base), "the resumed run"))
    nulls: dict[str, Any] = {}
    configs: list[Any] = [_refuse_fractions]
    for data, source in layers:
        data = _take_nulls(data, hints, source)
        check_config(hints, data, source)
        nulls = {k: None for k, v in data.items() if v is None} | nulls
        data = {k: v for k, v in data.items() if v is not None}
        configs.insert(-1, Dict(data, source=source, use_commands_as_keys=False))

    signature = inspect.Signature(
        [_with_none_flag(_with_own_defaults(p), Parameter) for p in parameters]
        + _reserved_parameters(Parameter)
    )
    received: dict[str, Any] = {}

    def command(**options: Any) -> None:
        received.update(options)

    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    command.__doc__ = inspect.getdoc(job)
    app = App(name=f"icml run {component}", config=configs, version_flags=(), result_action="return_value")
    app.default(command)
    if any(token in ("--help", "-h") for token in tokens):
        app.help_print([])
        raise HelpShown
    _refuse_unknown(
        tokens, [name for argument in app.assemble_argument_collection() for name in argument.names]
    )
    try:
        app(list(tokens), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UserError(" ".join(str(error).split())) from error
    received = nulls | {name: _as_declared(value) for name, value in received.items()}
    defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
    values = defaults | received
    reserved = {name: values.pop(name) for name in RESERVED}
    if base is not None and reserved["config"] is not None:
        raise UserError("--resume takes its configuration from the run; drop --config")
    return Parsed({p.name: values[p.name] for p in parameters}, reserved, frozenset(received))


def load_config(path: Path) -> dict[str, Any]:
    """Read a configuration: TOML, or the ``run.json`` of an earlier run.

    Raises:
        UserError: the file is missing or malformed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"--config {path} cannot be read: {error}") from error
    if path.suffix == ".json" and isinstance(data, dict) and isinstance(data.get("options"), dict):
        data = data["options"]
    if not isinstance(data, dict):
        raise UserError(f"--config {path}: expected a table of options, got {type(data).__name__}")
    return data


def dump_config(configuration: Mapping[str, Any]) -> str:
    """The configuration as TOML, such that :func:`load_config` gives it back."""
    import tomli_w

    nulls: list[str] = []

    def prune(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in values.items():
            if value is None:
                nulls.append(prefix + key)
            elif isinstance(value, Mapping):
                kept[key] = prune(value, f"{prefix}{key}.")
            else:
                kept[key] = value
        return kept

    kept = prune(configuration, "")
    return tomli_w.dumps(({NONE_KEY: nulls} if nulls else {}) | kept)


def check_config(hints: Mapping[str, Any], data: Mapping[str, Any], source: str, prefix: str = "") -> None:
    """Refuse keys that no option has and values of another type, at any depth.

    Raises:
        UserError: names the key, the nearest one or the type that was expected.
    """
    for key, value in data.items():
        name = f"{prefix}{key}"
        if key not in hints:
            near = nearest(key, hints, count=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"the keys are {', '.join(hints)}"
            raise UserError(f"{source}: unknown key {name!r}; {hint}")
        hint = hints[key]
        nested = next((h for h in _alternatives(hint) if is_dataclass(h)), None)
        if nested is not None and isinstance(value, Mapping):
            check_config(_field_hints(nested), value, source, f"{name}.")
        elif not _fits(hint, value):
            raise UserError(f"{source}: {name} = {value!r} is not {_describe(hint)}")


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value out of TOML or JSON may become ``hint``; texts are judged later, by cyclopts."""
    for kind in _alternatives(hint):
        origin = typing.get_origin(kind) or kind
        if kind is NoneType:
            fits = value is None
        elif kind is bool:
            fits = isinstance(value, bool)
        elif kind is int:
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif kind is float:
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        elif origin in (list, tuple, set, frozenset, Sequence):
            inner = [a for a in typing.get_args(kind) if a is not ...] or [str]
            fits = isinstance(value, list) and all(any(_fits(i, v) for i in inner) for v in value)
        elif origin is typing.Literal:
            fits = value in typing.get_args(kind)
        elif origin in (dict, Mapping) or is_dataclass(kind):
            fits = isinstance(value, Mapping)
        else:
            fits = isinstance(value, str)
        if fits:
            return True
    return False


def _describe(hint: Any) -> str:
    names = []
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is typing.Literal:
            names.append("one of " + ", ".join(map(repr, typing.get_args(kind))))
        else:
            plain = {
                NoneType: "none",
                str: "text",
                int: "an integer",
                float: "a number",
                bool: "true or false",
            }
            names.append(plain.get(kind) or str(getattr(kind, "__name__", kind)))
    return " or ".join(names)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return tuple(a for arg in typing.get_args(hint) for a in _alternatives(arg))
    return (hint,)


def _field_hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.init}


def _take_nulls(data: Mapping[str, Any], hints: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Turn the list under ``none`` into null values."""
    data = dict(data)
    listed = data.pop(NONE_KEY, [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise UserError(f"{source}: {NONE_KEY!r} must list the names of options that are none")
    for name in listed:
        *parents, leaf = name.split(".")
        table = data
        for parent in parents:
            table[parent] = dict(table.get(parent, {}))
            table = table[parent]
        table[leaf] = None
    return data


def _config_path(tokens: Sequence[str]) -> Path | None:
    for index, token in enumerate(tokens):
        if token == "--config" and index + 1 < len(tokens):
            return Path(tokens[index + 1])
        if token.startswith("--config="):
            return Path(token.partition("=")[2])
    return None


def _with_none_flag(parameter: inspect.Parameter, annotate: Any) -> inspect.Parameter:
    """An option that may be None but is not by default gets a flag ``--none-<name>``."""
    optional = NoneType in _alternatives(parameter.annotation)
    if not optional or parameter.default in (None, parameter.empty):
        return parameter
    return parameter.replace(annotation=Annotated[parameter.annotation, annotate(negative_none="none-")])


def _with_own_defaults(parameter: inspect.Parameter) -> inspect.Parameter:
    """A dataclass whose default is an instance: its fields default to that instance's, not to the class's.

    Otherwise to set one field on the command line would reset all the others.
    """
    if not is_dataclass(parameter.default) or isinstance(parameter.default, type):
        return parameter
    kind = type(parameter.default)
    hint = parameter.annotation
    if kind is not hint and kind not in typing.get_args(hint):
        return parameter
    own = _defaulting_to(parameter.default)
    if hint is kind:
        return parameter.replace(annotation=own)
    alternatives = tuple(own if a is kind else a for a in typing.get_args(hint))
    return parameter.replace(annotation=typing.Union[alternatives])  # noqa: UP007


def _defaulting_to(instance: Any) -> type:
    """A dataclass like that of ``instance``, whose fields default to those of ``instance``."""
    kind = type(instance)
    hints = typing.get_type_hints(kind, include_extras=True)
    members = []
    for member in fields(kind):
        if not member.init:
            continue
        value = getattr(instance, member.name)
        hint = hints[member.name]
        if is_dataclass(value) and not isinstance(value, type) and hint is type(value):
            hint = own = _defaulting_to(value)
            default = field(default_factory=own)
        elif value.__hash__ is None:
            default = field(default_factory=partial(copy.copy, value))
        else:
            default = field(default=value)
        members.append((member.name, hint, default))
    namespace = {"__doc__": kind.__doc__, _DECLARED: kind}
    own = make_dataclass(kind.__name__, members, kw_only=True, namespace=namespace)
    own.__module__ = kind.__module__
    return own


def _as_declared(value: Any) -> Any:
    """A value of a class that :func:`_defaulting_to` made, as the class that the job declares."""
    kind = getattr(type(value), _DECLARED, None)
    if kind is None:
        return value
    try:
        return kind(**{f.name: _as_declared(getattr(value, f.name)) for f in fields(value)})
    except (TypeError, ValueError) as error:  # from __post_init__
        raise UserError(f"{kind.__name__}: {error}") from error


def _reserved_parameters(annotate: Any) -> list[inspect.Parameter]:
    def option(name: str, kind: Any, default: Any, text: str) -> inspect.Parameter:
        annotation = Annotated[kind, annotate(help=text, group="Run", negative="")]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    return [
        option("out", Path | None, None, "Directory of the run; by default a new one in ./icml-runs."),
        option("seed", int, 0, "From which all randomness derives."),
        option("device", str, "auto", "auto, cpu, cuda or cuda:N."),
        option("config", Path | None, None, "TOML file with options, or an earlier run's run.json."),
        option("resume", Path | None, None, "Directory of an interrupted run to continue."),
        option("force", bool, False, "Replace the run that --out holds."),
    ]


def _refuse_fractions(app: Any, commands: Any, arguments: Any) -> None:
    """Refuse ``2.5`` where an integer is wanted, which cyclopts would cut down to 2."""
    whole = re.compile(r"[+-]?(\d[\d_]*|0[xXoObB][0-9a-fA-F_]+)")
    for argument in arguments:
        leaves = _leaves(argument.hint)
        if set(leaves) - {NoneType} != {int}:
            continue
        nulls = ("none", "null") if NoneType in leaves else ()
        for token in argument.tokens:
            value = token.value.strip() if isinstance(token.value, str) else ""
            if value and value.lower() not in nulls and not whole.fullmatch(value):
                raise UserError(f"{token.keyword or argument.name} {token.value!r} is not an integer")


def _leaves(hint: Any) -> list[Any]:
    leaves: list[Any] = []
    for kind in _alternatives(hint):
        inner = [a for a in typing.get_args(kind) if a is not ...]
        if typing.get_origin(kind) in (list, tuple, set, frozenset, Sequence):
            leaves += [leaf for a in inner for leaf in _leaves(a)]
        else:
            leaves.append(kind)
    return leaves


def _refuse_unknown(tokens: Sequence[str], flags: Sequence[str]) -> None:
    """Refuse an option that does not exist before anything else is said of the command line.

    A value that begins with two dashes is given as ``--option=--value``, so every such token is an option.
    """
    for token in tokens:
        name = token.partition("=")[0]
        if not name.startswith("--") or name == "--" or name.replace("_", "-") in flags:
            continue
        near = nearest(name, flags, count=1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(flags)}"
        raise UserError(f"unknown option {name}; {hint}")
