"""Flags that are read without typer's types: what typer would have made of them, and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.exceptions import TyperException

from tandem.reading import QuickOption, read_quickly

SEEN: dict[str, Any] = {}
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def command(
    text: Annotated[str | None, typer.Option("--text")] = None,
    several: Annotated[list[str] | None, typer.Option("--several")] = None,
    folder: Annotated[Path | None, typer.Option("--folder")] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=9)] = 4,
    upper: Annotated[str | None, typer.Option("--upper", parser=str.upper)] = None,
    needed: Annotated[str, typer.Option("--needed")] = ...,  # type: ignore[assignment]
) -> None:
    SEEN.update(locals())


def seen(args: list[str], *, quickly: bool) -> dict[str, Any] | str:
    """What the command was given, or the refusal."""
    made = typer.main.get_command(app)
    if quickly:
        read_quickly(made)
        assert all(type(param) is QuickOption for param in made.params)
    SEEN.clear()
    try:
        made.main(args=list(args), prog_name="command", standalone_mode=False)
    except TyperException as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return dict(SEEN)


@pytest.mark.parametrize(
    "args",
    [
        ["--needed", "x"],
        [],
        ["--needed", ""],
        ["--needed=x", "--text", " a b ", "--several", "a", "--several", "é"],
        ["--needed=x", "--text", "zwölf"],
        ["--needed=x", "--text", "\udcff"],
        ["--needed=x", "--folder", "a/b", "--count", "9", "--upper", "loud"],
        ["--needed=x", "--count", "10"],
        ["--needed=x", "--count", "many"],
        ["--needed=x", "--text"],
        ["--needed=x", "--none-such"],
    ],
)
def test_flags_are_read_as_typer_reads_them(args: list[str]) -> None:
    assert seen(args, quickly=True) == seen(args, quickly=False)


def test_help_is_what_typer_prints(capsys: pytest.CaptureFixture[str]) -> None:
    seen(["--help"], quickly=False)
    printed = capsys.readouterr().out
    assert "--needed" in printed
    seen(["--help"], quickly=True)
    assert capsys.readouterr().out == printed


def test_another_typers_options_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = typer.main.get_command(app)
    read_quickly(made)
    option = made.params[0]
    assert isinstance(option, QuickOption)
    asked: list[object] = []
    monkeypatch.setattr("typer.core.TyperOption.process_value", lambda _option, _ctx, value: asked.append(value))
    option.process_value(None, "text")
    monkeypatch.setattr(option, "type_descriptor", object())
    option.process_value(None, "text")
    assert asked == ["text"]
