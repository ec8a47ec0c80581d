"""`tandem service install / uninstall / show`: the engine as a systemd unit of this user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tandem import output
from tandem.client.register import Running
from tandem.commands.options import JsonOption
from tandem.exits import CommandError, Exit
from tandem.service import unit
from tandem.settings.engine_config import check_host, state_dir
from tandem.settings.flags import to_arguments, with_engine_flags
from tandem.settings.origins import Flags, resolve
from tandem.settings.paths import CONFIG_DIR_VARIABLE, config_dir
from tandem.settings.table import ALIAS_PREFIXES, PREFIX

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="The unit's name.")]
UserOption = Annotated[bool, typer.Option("--user", help="A unit of this user, the only kind there is.")]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `service show --json` prints. `active` and `enabled` are systemd's own words, null where it does not answer;
    `linger` is null where that cannot be found out."""

    name: str
    path: str
    active: str | None
    enabled: str | None
    linger: bool | None
    unit: str


@app.command()
@with_engine_flags()
def install(
    flags: Flags,
    user: UserOption = True,
    name: NameOption = "tandem",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit and write nothing.")] = False,
    enable: Annotated[bool, typer.Option("--enable", help="Also enable and start it.")] = False,
) -> None:
    """Write a systemd unit that serves with these flags.

    TANDEM_ variables that are set now go into a settings file of the unit's own, which only you may read.
    """
    settings = resolve(flags).settings
    check_host(resolve(flags))
    facts = unit.UnitFacts(
        name=unit.checked_name(name),
        command=[_python(), "-m", "tandem", "serve", *to_arguments(_absolute(flags))],
        folder=Path.home(),
        environment_file=config_dir() / f"{name}.unit.env",
        port=settings.port,
        state_dir=state_dir(settings),
        drain_s=settings.drain_timeout,
        systemd=unit.systemd_version(),
    )
    text = unit.render(facts)
    if dry_run:
        output.emit(text, end="")
        return
    path = unit.unit_path(name)
    if path.exists() and all(one.path != path for one in unit.installed()):
        raise CommandError(f"{path} is there and was not written by `tandem service install`", Exit.REFUSED)
    running = Running.find(facts.state_dir) if enable else None
    if running is not None and (running.record is None or running.record.unit != path.name):
        raise CommandError(f"an engine of yours already runs: {running}; `tandem stop` ends it", Exit.REFUSED)
    environment = {key: value for key, value in os.environ.items() if key.startswith((PREFIX, *ALIAS_PREFIXES))}
    if CONFIG_DIR_VARIABLE in environment:
        environment[CONFIG_DIR_VARIABLE] = str(config_dir().absolute())
    _write(facts.environment_file, unit.environment_text(environment))
    _write(path, text)
    output.note(f"wrote {path}\nwrote {facts.environment_file} ({len(environment)} variables)")
    if enable:
        unit.manage("daemon-reload")
        unit.manage("enable", "--now", path.name)
        output.note(f"{path.name} is enabled and runs; `systemctl --user status {name}` shows it")
    else:
        output.note(f"start it with:\n  systemctl --user daemon-reload\n  systemctl --user enable --now {path.name}")
    if unit.lingers() is False:
        output.warn("your services end when you log out; `loginctl enable-linger` keeps them")


@app.command()
def uninstall(user: UserOption = True, name: NameOption = "tandem") -> None:
    """Stop and disable the unit and remove its files. Exit 3 where there is none."""
    found = _installed(name)
    if unit.state_of(name) is not None:
        unit.manage("disable", "--now", f"{name}.service")
    found.path.unlink()
    (config_dir() / f"{name}.unit.env").unlink(missing_ok=True)
    if unit.answers():
        unit.manage("daemon-reload")
    output.note(f"removed {found.path}")


@app.command()
def show(
    user: UserOption = True,
    name: NameOption = "tandem",
    json: JsonOption = False,
) -> None:
    """Show the unit and how it is. Exit 3 where there is none."""
    found = _installed(name)
    shown = Shown(
        name=name,
        path=str(found.path),
        active=unit.state_of(name),
        enabled=unit.systemctl("is-enabled", f"{name}.service"),
        linger=unit.lingers(),
        unit=found.path.read_text(encoding="utf-8"),
    )
    if json:
        output.emit_json(shown)
        return
    linger = {True: "yes", False: "no: it ends when you log out", None: "not known"}[shown.linger]
    output.emit(f"{shown.path}: {shown.active or 'systemd does not answer'}, {shown.enabled or 'not known'}")
    output.emit(f"linger: {linger}\n\n{shown.unit}", end="")


def _installed(name: str) -> unit.Installed:
    for found in unit.installed():
        if found.name == unit.checked_name(name):
            return found
    known = ", ".join(one.name for one in unit.installed()) or "none"
    raise CommandError(f"no unit {name} was installed; there are: {known}", Exit.NOT_RUNNING)


def _python() -> str:
    """The path of this environment's Python, from which a unit finds the packages."""
    return sys.executable


def _absolute(flags: Flags) -> Flags:
    """The flags with absolute paths, so that they are valid from any folder."""
    values = dict(flags.values)
    for name in ("model", "state_dir"):
        if name in values and (name == "state_dir" or Path(values[name]).is_file()):
            values[name] = str(Path(values[name]).absolute())
    return Flags(values, flags.profile, flags.env_file.absolute() if flags.env_file else None)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all, for this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
