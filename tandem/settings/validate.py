"""Finds every problem of the settings: all values of files and environment, also those that a stronger layer hides."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from engine.roles.residency import ResidencyFileError, read_residency
from tandem.exits import CommandError
from tandem.settings.engine_config import check_host, residency_file
from tandem.settings.envfile import scan_env_file
from tandem.settings.origins import (
    FOREIGN,
    OUTSIDE,
    PROFILE_VARIABLE,
    Flags,
    Found,
    environment,
    files,
    found_in,
    profiles,
    resolve,
    unknown_note,
)
from tandem.settings.table import ALIAS_PREFIXES, BY_VARIABLE


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `file` and `line` are null where it lies in the environment, `variable` where it is no
    setting's, `value` where it is a secret or not at fault, `allowed` where there is no choice."""

    message: str
    file: str | None = None
    line: int | None = None
    variable: str | None = None
    value: str | None = None
    allowed: str | None = None

    def __str__(self) -> str:
        return self.message


class Validation(msgspec.Struct, frozen=True):
    """What was looked at and what is wrong with it. `warnings` change no exit code."""

    valid: bool
    files: list[str]
    problems: list[Problem]
    warnings: list[str]


def validate(flags: Flags, environ: Mapping[str, str]) -> Validation:
    """Look at the environment, every settings file, every profile, the secrets and the plan of the small models."""
    sources = _sources(flags, environ)
    problems = [problem for found in environment(environ) for problem in _of(found, None)]
    warnings: list[str] = []
    for layer, path in sources:
        problems += _of_file(layer, path)
        warnings += _readable_secrets(path)
    if not problems:
        problems += _together(flags, environ)
    if not problems:
        warnings += resolve(flags, environ).notes
    return Validation(not problems, [str(path) for _, path in sources], problems, warnings)


def _sources(flags: Flags, environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    return files(flags, environ) + [("profile", path) for path in profiles().values()]


def _of_file(layer: str, path: Path) -> Iterator[Problem]:
    try:
        entries, bad = scan_env_file(path)
    except CommandError as why:
        yield Problem(message=why.message, file=str(path))
        return
    for line in bad:
        yield Problem(message=f"{path}:{line.line}: {line.problem}", file=str(path), line=line.line)
    for entry in entries:
        for problem in _of(found_in(layer, path, entry), path):
            yield msgspec.structs.replace(problem, line=entry.line)


def _of(found: Found, path: Path | None) -> Iterator[Problem]:
    """What is wrong with one variable of a file, or of the environment."""
    name = found.origin.name
    where = f"{found.origin.place}: " if path else "environment: "
    file = str(path) if path else None
    setting = BY_VARIABLE.get(name)
    if setting is not None and found.text:
        try:
            setting.kind.parse(found.text)
        except ValueError:
            allowed = setting.kind.allowed
            shown = "a secret, not shown" if setting.secret else repr(found.text)
            value = None if setting.secret else found.text
            yield Problem(
                message=f"{where}{name} is {shown}; allowed: {allowed}",
                file=file,
                variable=name,
                value=value,
                allowed=allowed,
            )
    elif setting is None and path is not None and name in (*OUTSIDE, *FOREIGN) and name != PROFILE_VARIABLE:
        yield Problem(
            message=f"{where}{name} has no effect in a file; set it in the environment", file=file, variable=name
        )
    # Other programs may use the older prefixes in the environment. In a settings file every line is a setting of ours.
    elif setting is None and name not in (*OUTSIDE, *FOREIGN) and (path or not name.startswith(ALIAS_PREFIXES)):
        note = unknown_note(found.origin).replace(f" (set in {found.origin})", "")
        yield Problem(
            message=f"{where}{note}; allowed: the names that `tandem config show` lists", file=file, variable=name
        )


def _together(flags: Flags, environ: Mapping[str, str]) -> Iterator[Problem]:
    """The problems that only the values together have: contradictions, an unknown profile, a host without keys, the
    files that the values name."""
    try:
        resolved = resolve(flags, environ)
        check_host(resolved)
        plan = residency_file(resolved.settings)
        read_residency(plan)
    except CommandError as why:
        yield Problem(message=why.message)
    except ResidencyFileError as why:
        yield Problem(message=str(why), file=str(plan))


def _readable_secrets(path: Path) -> Iterator[str]:
    """Warnings for tokens in plain text that other users can read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        entries, _ = scan_env_file(path)
    except (OSError, CommandError):
        return
    for entry in entries:
        setting = BY_VARIABLE.get(entry.name)
        if setting is not None and setting.secret and entry.value and mode & 0o077:
            token = setting.name.removesuffix("_token")
            yield (
                f"{path}:{entry.line}: {entry.name} can be read by other users (mode {mode:o}); `chmod 600 {path}`, or "
                f"`tandem secrets rotate {token}` in its place"
            )
