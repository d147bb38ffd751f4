"""Options whose values are dataclasses: a field that is not given keeps the job's own default."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from icml_core.errors import UserError
from icml_core.options import HelpShown, parse


@dataclass(frozen=True)
class Inner:
    """Inner settings.

    Attributes:
        depth: how deep.
        tags: words.
    """

    depth: int = 1
    tags: tuple[str, ...] = ("class",)


@dataclass(frozen=True)
class Settings:
    """Settings.

    Attributes:
        width: how wide.
        rate: how fast.
        inner: more.
        names: a list, which has no hash.
    """

    width: int = 128
    rate: float | None = 0.1
    inner: Inner = Inner()
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width {self.width} must be at least 1")


OWN = Settings(width=64, rate=None, inner=Inner(depth=7, tags=("own",)), names=["a"])


def job(*, run, settings: Settings = OWN, other: Settings | None = OWN) -> None:
    """Do something.

    Args:
        settings: of the thing.
        other: of another.
    """


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], OWN),
        (["--settings.width", "3"], Settings(3, None, OWN.inner, ["a"])),
        (["--settings.rate", "0.5"], Settings(64, 0.5, OWN.inner, ["a"])),
        (["--settings.inner.depth", "2"], Settings(64, None, Inner(2, ("own",)), ["a"])),
        (["--settings.names", "b"], Settings(64, None, OWN.inner, ["b"])),
    ],
)
def test_a_field_that_is_not_given_keeps_the_default_of_the_job(tokens, expected):
    settings = parse("x.job", job, tokens).arguments["settings"]
    assert settings == expected
    assert type(settings) is Settings
    assert type(settings.inner) is Inner


def test_the_same_where_the_option_may_be_none():
    other = parse("x.job", job, ["--other.width", "3"]).arguments["other"]
    assert other == Settings(3, None, OWN.inner, ["a"])
    assert parse("x.job", job, ["--none-other"]).arguments["other"] is None


def test_the_same_from_a_configuration(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[settings.inner]\ndepth = 2\n")
    parsed = parse("x.job", job, ["--config", str(path)])
    assert parsed.arguments["settings"] == Settings(64, None, Inner(2, ("own",)), ["a"])
    assert "other" not in parsed.given


def test_what_is_left_out_is_not_shared_between_calls():
    parse("x.job", job, ["--settings.width", "3"]).arguments["settings"].names.append("b")
    assert OWN.names == ["a"]


def test_a_value_that_the_dataclass_refuses_is_one_line():
    with pytest.raises(UserError, match="width 0 must be at least 1"):
        parse("x.job", job, ["--settings.width", "0"])


def test_the_help_shows_the_defaults_of_the_job(capsys):
    with pytest.raises(HelpShown):
        parse("x.job", job, ["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "how wide. [default: 64]" in shown
    assert "how deep. [default: 7]" in shown
