"""Run the Python code blocks of Markdown files, each file's in order in one namespace, in a temporary folder.

A block behind the line ``<!-- not run -->`` is left out; use it only for what needs the reader's own files.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"(<!-- not run -->\s*)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """Line number and code of each block that is to be run."""
    return [(text.count("\n", 0, m.start(2)) + 1, m[2]) for m in _BLOCK.finditer(text) if not m[1]]


def main(paths: list[str]) -> int:
    """Run every block of every file; the number of files whose code failed."""
    failed = 0
    for name in paths:
        path = Path(name).resolve()
        namespace: dict[str, object] = {"__name__": "__main__"}
        home = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for line, code in blocks(path.read_text(encoding="utf-8")):
                    print(f"{path.name}:{line}", flush=True)
                    # Padding keeps the line numbers of a traceback those of the file.
                    exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)
            except Exception as error:
                failed += 1
                print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
                raise
            finally:
                os.chdir(home)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
