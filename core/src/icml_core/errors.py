"""What can go wrong at the boundary, as exceptions whose text is meant for the user."""

from __future__ import annotations

import sys


class UserError(Exception):
    """Something the user can put right; shown as one line, exit status 2."""


class UnknownNameError(UserError):
    """A component, plug-in, option or claim that nobody offers."""


class NeedsError(UserError):
    """Something that is not there (a library, a device) and how to get it."""

    def __init__(self, wanted: str, found: str | None = None, hint: str | None = None) -> None:
        self.wanted, self.found, self.hint = wanted, found, hint
        text = f"needs {wanted}" + (f" (found {found})" if found else "")
        super().__init__(f"{text}; {hint}" if hint else text)


def install_command(*requirements: str) -> str:
    """The command that installs ``requirements`` into the interpreter that runs now."""
    quoted = " ".join(f'"{r}"' if any(c in r for c in "<>=! [") else r for r in requirements)
    return f"{sys.executable} -m pip install {quoted}"
