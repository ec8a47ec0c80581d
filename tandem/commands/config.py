"""`tandem config show / init / validate / profiles`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tandem import output
from tandem.commands.options import JsonOption
from tandem.exits import Exit
from tandem.settings.completers import profiles as profile_names
from tandem.settings.envfile import read_env_file
from tandem.settings.flags import path_or_none
from tandem.settings.origins import Flags, Resolved, profile_path, profiles, resolve
from tandem.settings.paths import config_dir, shipped
from tandem.settings.table import BY_VARIABLE, TABLE, Setting

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

SHIPPED = ("serve.env", "residency.toml", "profiles")
NOT_SHOWN = "(set, not shown)"

ProfileOption = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A profile of settings.", autocompletion=profile_names)
]
EnvFileOption = Annotated[str | None, typer.Option("--env-file", metavar="FILE", help="A file of settings.")]


@app.callback()
def config() -> None:
    """Show, write and validate the settings."""


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as `config show --json` says it. `value` is null for a secret and for "by the box"; `layer` and
    `place` (a file and line, where there is one) are the parts of `origin`."""

    variable: str
    value: str | int | float | bool | list[str] | None
    unit: str
    origin: str
    layer: str
    place: str
    written_as: str
    alias: bool


@app.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    profile: ProfileOption = None,
    env_file: EnvFileOption = None,
    json: JsonOption = False,
) -> None:
    """Print every setting in force."""
    resolved = resolve(Flags({}, profile, path_or_none(env_file)))
    if json:
        output.emit_json([_shown(resolved, setting) for setting in TABLE])
        return
    lines = [(f"{setting.variable}={_text(resolved, setting)}", _origin(resolved, setting)) for setting in TABLE]
    width = min(48, max(len(text) for text, _ in lines))
    for text, where in lines:
        output.emit(f"{text:<{width}}  # {where}" if origin else text)
    for text in resolved.notes:
        output.warn(text)


@app.command()
def init(
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Copy the commented settings files into the configuration folder."""
    folder = config_dir()
    for source in sorted(path for name in SHIPPED for path in _files(shipped(name))):
        target = folder / source.relative_to(shipped("."))
        if target.exists() and not force:
            output.note(f"kept     {target}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        output.note(f"written  {target}")


@app.command()
def validate(profile: ProfileOption = None, env_file: EnvFileOption = None, json: JsonOption = False) -> None:
    """Check every value of every file and of the environment, also those that a stronger layer hides.

    Exit 2 where one is wrong. Profiles, secrets and the plan of the small models are checked too.
    """
    from tandem.settings.validate import validate as look

    found = look(Flags({}, profile, path_or_none(env_file)), os.environ)
    if json:
        output.emit_json(found)
    else:
        for problem in found.problems:
            output.error(problem.message)
        for text in found.warnings:
            output.warn(text)
        if found.valid:
            output.note(f"the settings are valid (the environment and {len(found.files)} files)")
    raise typer.Exit(Exit.OK if found.valid else Exit.USAGE)


profiles_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="List and show the profiles.")
app.add_typer(profiles_app, name="profiles")


class ListedProfile(msgspec.Struct, frozen=True):
    """One profile: where its file lies, whether it is the user's own, and what its first comment says."""

    name: str
    file: str
    own: bool
    about: str


class ProfileSetting(msgspec.Struct, frozen=True):
    """One line of a profile; `value` is null for a secret."""

    variable: str
    value: str | None
    line: int


@profiles_app.command("list")
def list_profiles(json: JsonOption = False) -> None:
    """List the profiles that --profile takes."""
    found = [_listed_profile(name, path) for name, path in profiles().items()]
    if json:
        output.emit_json(found)
        return
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        output.emit(f"{one.name:<{width}}  {'own    ' if one.own else 'shipped'}  {one.about}")


@profiles_app.command("show")
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile's name.", autocompletion=profile_names)],
    json: JsonOption = False,
) -> None:
    """Print what a profile sets."""
    path = profile_path(name)
    rows = [
        ProfileSetting(entry.name, None if _is_secret(entry.name) else entry.value, entry.line)
        for entry in read_env_file(path)
    ]
    if json:
        output.emit_json(rows)
        return
    output.note(str(path))
    for row in rows:
        output.emit(f"{row.variable}={NOT_SHOWN if row.value is None else row.value}")


def _listed_profile(name: str, path: Path) -> ListedProfile:
    first = path.read_text(encoding="utf-8-sig", errors="replace").partition("\n")[0]
    about = first.removeprefix("#").strip() if first.startswith("#") else ""
    return ListedProfile(name, str(path), path.is_relative_to(config_dir()), about)


def _is_secret(variable: str) -> bool:
    setting = BY_VARIABLE.get(variable)
    return setting is not None and setting.secret


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.env")) if path.is_dir() else [path] if path.exists() else []


def _value(resolved: Resolved, setting: Setting) -> object:
    return getattr(resolved.settings, setting.name)


def _text(resolved: Resolved, setting: Setting) -> str:
    """The value as a settings file would hold it; empty where there is none."""
    value = _value(resolved, setting)
    if value is None:
        return ""
    if setting.secret:
        return NOT_SHOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(value)
    if setting.unit == "GiB" and isinstance(value, int):
        return f"{value / (1 << 30):g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _origin(resolved: Resolved, setting: Setting) -> str:
    origin = resolved.origins[setting.name]
    if origin.layer == "default" and _value(resolved, setting) is None:
        return f"default: {setting.default_text}"
    alias = f", written as {origin.name}" if _is_alias(resolved, setting) else ""
    return f"{origin}{alias}"


def _is_alias(resolved: Resolved, setting: Setting) -> bool:
    written = resolved.origins[setting.name].name
    return bool(written) and not written.startswith("--") and written != setting.variable


def _shown(resolved: Resolved, setting: Setting) -> ShownSetting:
    value = _value(resolved, setting)
    if isinstance(value, tuple):
        value = list(value)
    elif isinstance(value, Path):
        value = str(value)
    return ShownSetting(
        variable=setting.variable,
        value=None if setting.secret else value,  # type: ignore[arg-type]
        unit="bytes" if setting.unit == "GiB" else setting.unit,
        origin=str(resolved.origins[setting.name]),
        layer=resolved.origins[setting.name].layer,
        place=resolved.origins[setting.name].place,
        written_as=resolved.origins[setting.name].name,
        alias=_is_alias(resolved, setting),
    )
