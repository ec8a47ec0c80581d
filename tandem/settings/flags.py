"""Gives a command the flags of the settings table, so that `serve`, `start`, `restart` and `bench` share one list."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from tandem.settings import completers
from tandem.settings.origins import Flags
from tandem.settings.table import BY_NAME, TABLE, Setting

P = ParamSpec("P")

FLAGGED = tuple(setting for setting in TABLE if setting.has_flag)


def with_engine_flags(
    *, exclude: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[Flags, P], None]], Callable[..., None]]:
    """Adds every flag of the table except `exclude`, and `--profile` and `--env-file`. The command gets them as its
    first argument. `tandem.settings.origins` parses their texts, so a flag and a variable fail in the same words."""
    settings = [setting for setting in FLAGGED if setting.name not in exclude]

    def give(command: Callable[Concatenate[Flags, P], None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        added = [
            _parameter(
                setting.name,
                Annotated[
                    str | None,
                    typer.Option(
                        setting.flag,
                        metavar=setting.kind.metavar,
                        help=f"{setting.help} [{setting.default_text}]",
                        autocompletion=_completer(setting),
                    ),
                ],
            )
            for setting in settings
        ]
        added.append(
            _parameter(
                "profile",
                Annotated[
                    str | None,
                    typer.Option(metavar="NAME", help="A profile of settings.", autocompletion=completers.profiles),
                ],
            )
        )
        added.append(
            _parameter("env_file", Annotated[str | None, typer.Option(metavar="FILE", help="A file of settings.")])
        )

        @functools.wraps(command)
        def run(**given: Any) -> None:
            flags = Flags(
                values={setting.name: text for setting in settings if (text := given.pop(setting.name)) is not None},
                profile=given.pop("profile"),
                env_file=path_or_none(given.pop("env_file")),
            )
            command(flags, **given)  # type: ignore[call-arg]

        parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__
        return run

    return give


def path_or_none(text: str | None) -> Path | None:
    """The path that a flag names; an empty one is none, as an empty variable is."""
    return Path(text) if text else None


def _completer(setting: Setting) -> completers.Completer:
    return completers.models if setting.name == "model" else completers.words_of(setting.kind.metavar)


def _parameter(name: str, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def to_arguments(flags: Flags) -> list[str]:
    """The command line that says what `flags` says."""
    words = [f"{BY_NAME[name].flag}={text}" for name, text in flags.values.items()]
    if flags.profile is not None:
        words.append(f"--profile={flags.profile}")
    if flags.env_file is not None:
        words.append(f"--env-file={flags.env_file}")
    return words
