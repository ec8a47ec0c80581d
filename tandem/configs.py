"""`tandem config show / init / validate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tandem import output
from tandem.configure import check_host
from tandem.exits import CommandError, Exit
from tandem.origins import Flags, Resolved, parse, read_layers, resolve
from tandem.paths import config_dir, shipped
from tandem.settings import BY_NAME, TABLE, Setting

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

SHIPPED = ("serve.env", "residency.toml", "profiles")

ProfileOption = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="A profile of settings.")]
EnvFileOption = Annotated[Path | None, typer.Option("--env-file", metavar="FILE", help="A file of settings.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def config() -> None:
    """Show, write and validate the settings."""


class ShownSetting(msgspec.Struct, frozen=True):
    """One setting as `config show --json` says it. `value` is null for a secret and for "by the box"."""

    variable: str
    value: str | int | float | bool | list[str] | None
    unit: str
    origin: str
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
    resolved = resolve(Flags({}, profile, env_file))
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
def validate(profile: ProfileOption = None, env_file: EnvFileOption = None) -> None:
    """Check every value of every layer, also those that a stronger layer hides. Exit 2 where one does not parse."""
    flags = Flags({}, profile, env_file)
    wrong = []
    for layer in read_layers(flags, os.environ):
        for name, found in layer.found.items():
            try:
                parse(BY_NAME[name], found)
            except CommandError as why:
                wrong.append(why.message)
    for text in wrong[:-1]:
        output.error(text)
    if wrong:
        raise CommandError(wrong[-1], Exit.USAGE)
    resolved = resolve(flags)
    check_host(resolved)
    for text in resolved.notes:
        output.warn(text)
    output.note("the settings are valid")


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
        return "(set, not shown)"
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
        written_as=resolved.origins[setting.name].name,
        alias=_is_alias(resolved, setting),
    )
