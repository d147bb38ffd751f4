"""Every `icml` command of the READMEs and guides names what exists and gives options that are taken."""

import re
import shlex
from pathlib import Path

import pytest
from icml_core import Registry
from icml_core.commands import app
from icml_core.execution import load_job
from icml_core.options import HelpShown, parse

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(ROOT.glob("docs/guide/*.md")),
]


def commands(path):
    """The `icml` commands of a page's shell blocks, joined over continued lines."""
    found = []
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "icml" in words:
                found.append(tuple(words[words.index("icml") + 1 :]))
    return found


CASES = [(page, words) for page in PAGES for words in dict.fromkeys(commands(page))]


def label(case):
    page, words = case
    return f"{page.relative_to(ROOT)}: icml {' '.join(words)}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_command_of_a_readme_is_understood(case):
    _, words = case
    if words[:1] == ("run",) and len(words) > 1 and not words[1].startswith("-"):
        if words[1].startswith("demo."):
            pytest.skip("the tutorial's own plug-in; test_third_party runs it")
        entry = Registry.discover().entry(words[1])
        tokens = [w for w in words[2:] if w not in ("--resume",)]
        if "--resume" in words:
            tokens = [
                w
                for i, w in enumerate(words[2:])
                if words[2:][max(0, i - 1)] != "--resume" and w != "--resume"
            ]
        try:
            # --resume brings the options of the run it names; without it they must be complete.
            parsed = parse(entry.name, load_job(entry), tokens)
        except HelpShown:
            return
        assert set(parsed.arguments) >= set()
        return
    command, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    assert command is not None
    if words[0] in ("verify", "info"):
        registry = Registry.discover()
        for name in bound.args:
            if name == "demo":
                continue
            (registry.entry if "." in name else registry.plugin)(name)


def test_the_pages_have_commands_at_all():
    assert len(CASES) >= 10
