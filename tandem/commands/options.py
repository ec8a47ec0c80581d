"""Flags that several commands have: the engine's address or state directory, an engine of one's own, JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.client.register import running
from tandem.settings.completers import Candidates


def _engine_urls(incomplete: str) -> Candidates:
    return [(engine.record.url, "") for engine in running() if engine.record is not None]


UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The engine's address.", autocompletion=_engine_urls)
]
OwnOption = Annotated[bool, typer.Option("--own", help="Start an engine for this command, also where one runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _absolute_or_none(text: str) -> Path | None:
    return Path(text).absolute() if text else None


StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="FOLDER",
        parser=_absolute_or_none,
        help="The engine's state directory, where several run.",
    ),
]
"""For commands that find an engine which runs. The folder comes absolute; an empty one is none."""
