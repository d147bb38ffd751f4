"""The console script ``icml``: the right command for the words, one line and a status for what goes wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from icml_core.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: exits with the command's status."""
    sys.exit(call(sys.argv[1:] if arguments is None else arguments))


def call(arguments: Sequence[str]) -> int:
    """Execute one command line; the exit status."""
    try:
        return _dispatch(list(arguments))
    except UserError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader of a pipe (`icml list | head`) has left; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(f"{error.filename or 'system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _dispatch(tokens: list[str]) -> int:
    if tokens in (["list"], ["list", "--json"]):
        # The plain list is asked for most, by people and by scripts: half its time would go into loading
        # the parser of command lines, which it does not need.
        from icml_core.listing import print_listing

        print_listing(as_json=len(tokens) == 2)
        return 0
    if tokens[:1] == ["run"] and len(tokens) > 1 and not tokens[1].startswith("-"):
        from icml_core.execution import run_component

        return run_component(tokens[1], tokens[2:])
    from cyclopts import CycloptsError

    from icml_core.commands import app

    try:
        status = app(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UserError(" ".join(str(error).split())) from error
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    print(f"icml: {message}", file=sys.stderr)
    return 2
