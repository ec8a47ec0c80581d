"""`tandem secrets list / add / rotate / remove`: an engine's API keys and tokens, shown once and kept as digests."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.process.keyring import LABEL, TOKENS, Secret, SecretsUnusable, digest, read_secrets, write_secrets
from tandem import output
from tandem.commands.options import JsonOption
from tandem.exits import CommandError, Exit
from tandem.settings.completers import Candidates
from tandem.settings.engine_config import secrets_file
from tandem.settings.origins import Flags, resolve

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

PREFIX = "tk-"
RANDOM_BYTES = 32
LEAST_LENGTH = 20
"""The minimum for a secret from standard input. Digests are quick to compute, so a short secret could be guessed."""

GRACE_LIMIT_S = 366 * 86400
"""The maximum of `--grace`."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _labels(incomplete: str) -> Candidates:
    try:
        held = {secret.label for secret in read_secrets(secrets_file(resolve().settings))}
    except (CommandError, SecretsUnusable, OSError):
        held = set()
    return [(label, "") for label in sorted(held | set(TOKENS))]


LabelArgument = Annotated[str, typer.Argument(metavar="LABEL", help="Whose key it is.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="LABEL",
        help="A key's label, or admin or metrics for the token of that name.",
        autocompletion=_labels,
    ),
]
StdinOption = Annotated[
    bool, typer.Option("--from-stdin", help="Take the secret from standard input instead of making one.")
]


class ListedSecret(msgspec.Struct, frozen=True):
    """One secret as `list --json` says it. `until` is null for one that holds until it is removed."""

    label: str
    kind: str
    made: str
    until: str | None
    holds: bool


class NewSecret(msgspec.Struct, frozen=True):
    """What `add` and `rotate` print with `--json`: the one time that the secret is shown. `old_holds_until` is null
    where there was none, or where it ended at once."""

    label: str
    secret: str | None
    old_holds_until: str | None


@app.callback()
def main() -> None:
    """Make, rotate and remove API keys and tokens.

    With an API key present every /v1 route wants one. A running engine sees a change at once.
    """


@app.command("list")
def list_secrets(json: JsonOption = False) -> None:
    """List the labels, never the secrets."""
    now = time.time()
    found = [_listed(secret, now) for secret in _read(_file())]
    if json:
        output.emit_json(found)
        return
    if not found:
        output.note("no secrets: every client on this machine may ask, and no other machine can")
        return
    width = max(len(one.label) for one in found)
    for one in found:
        ends = "" if one.until is None else f", {'until' if one.holds else 'ended'} {one.until}"
        output.emit(f"{one.label:<{width}}  {one.kind:<13}  made {one.made}{ends}")


@app.command()
def add(label: LabelArgument, from_stdin: StdinOption = False, json: JsonOption = False) -> None:
    """Make an API key and print it: once, since only its digest is kept."""
    _check_label(label)
    # Upper and lower case are one: in a list, a key called Admin would look like the token.
    if (token := label.lower()) in TOKENS:
        raise CommandError(
            f"{token} is the name of the {token} token; `tandem secrets rotate {token}` makes it", Exit.USAGE
        )
    secret = _from_stdin() if from_stdin else _random()
    with _changing() as (path, held):
        if any(one.label == label for one in held):
            raise CommandError(f"{label} has a key already; `tandem secrets rotate {label}` makes another", Exit.USAGE)
        made = _made(label, secret, held)
        if not any(one.label not in TOKENS for one in held):
            output.note("from now on every client needs a key, also those on this machine")
        write_secrets(path, (*held, made))
    _show(label, None if from_stdin else secret, None, json=json)


@app.command()
def rotate(
    label: NameArgument,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long the old one still holds: 90s, 10m, 2h, 1d.")
    ] = "0s",
    from_stdin: StdinOption = False,
    json: JsonOption = False,
) -> None:
    """Make a new secret for a label and end the old one, after `--grace` where it is given."""
    _check_label(label)
    until = time.time() + _seconds(grace)
    secret = _from_stdin() if from_stdin else _random()
    with _changing() as (path, held):
        old = [one for one in held if one.label == label]
        if not old and label not in TOKENS:
            raise _unknown(label, held)
        kept = [one for one in held if one.label != label]
        now = time.time()
        ending = [_ending(one, until) for one in old if one.holds(now)] if until > now else []
        write_secrets(path, (*kept, *ending, _made(label, secret, kept)))
    last = max((one.until or 0 for one in ending), default=None)
    _show(label, None if from_stdin else secret, last, json=json)


@app.command()
def remove(label: NameArgument) -> None:
    """End a key or a token at once."""
    with _changing() as (path, held):
        kept = tuple(one for one in held if one.label != label)
        if len(kept) == len(held):
            raise _unknown(label, held)
        write_secrets(path, kept)
    output.note(f"removed {label}")
    if label not in TOKENS and all(one.label in TOKENS for one in kept):
        output.note("no API key is left: clients on this machine need none, an engine on another address lets none in")


def _file() -> Path:
    return secrets_file(resolve(Flags({})).settings)


def _read(path: Path) -> tuple[Secret, ...]:
    try:
        return read_secrets(path)
    except SecretsUnusable as why:
        raise CommandError(str(why), Exit.USAGE) from why


@contextmanager
def _changing() -> Iterator[tuple[Path, tuple[Secret, ...]]]:
    """The secrets file and its entries, locked against other commands until the block ends."""
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise CommandError(f"{path} cannot be written: {why.strerror}", Exit.USAGE) from why
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path, _read(path)
    except OSError as why:
        raise CommandError(f"{path} cannot be written: {why.strerror}", Exit.USAGE) from why
    finally:
        os.close(lock)


def _random() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def _from_stdin() -> str:
    given = sys.stdin.readline().strip()
    if not given.isascii() or not given.isprintable() or " " in given or len(given) < LEAST_LENGTH:
        raise CommandError(
            f"the secret on standard input has {len(given)} characters; allowed: at least {LEAST_LENGTH}, printable "
            "ASCII without spaces",
            Exit.USAGE,
        )
    return given


def _made(label: str, secret: str, others: Iterable[Secret]) -> Secret:
    """Make the entry. Refuses the secret of another label: only one of the two labels would be found for it."""
    made = Secret(label, digest(secret.encode()), time.time())
    taken = next((one.label for one in others if one.sha256 == made.sha256), None)
    if taken is not None:
        raise CommandError(f"the secret on standard input is that of {taken} already; take another", Exit.USAGE)
    return made


def _ending(old: Secret, until: float) -> Secret:
    return msgspec.structs.replace(old, until=until if old.until is None else min(until, old.until))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise CommandError(f"--grace is {text!r}; allowed: a whole number and s, m, h or d, as in 10m", Exit.USAGE)
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds > GRACE_LIMIT_S:
        raise CommandError(f"--grace is {text!r}; allowed: at most {GRACE_LIMIT_S // 86400}d", Exit.USAGE)
    return seconds


def _check_label(label: str) -> None:
    if not LABEL.fullmatch(label):
        raise CommandError(
            f"the label is {label!r}; allowed: 1 to 64 letters, digits, dots, dashes and underscores, not a mark first",
            Exit.USAGE,
        )


def _unknown(label: str, held: tuple[Secret, ...]) -> CommandError:
    there = ", ".join(sorted({one.label for one in held})) or "none"
    return CommandError(f"no secret is named {label!r}; there are: {there}", Exit.USAGE)


def _show(label: str, secret: str | None, old_until: float | None, *, json: bool) -> None:
    old = None if old_until is None else _time(old_until)
    if json:
        output.emit_json(NewSecret(label, secret, old))
    elif secret is not None:
        output.emit(secret)
    kept = "; this is the one time it is shown" if secret is not None else ""
    output.note(f"{label}: {_kind(label)} made{kept}{f'; the old one holds until {old}' if old else ''}")


def _listed(secret: Secret, now: float) -> ListedSecret:
    until = None if secret.until is None else _time(secret.until)
    return ListedSecret(secret.label, _kind(secret.label), _time(secret.made), until, secret.holds(now))


def _kind(label: str) -> str:
    return f"{label} token" if label in TOKENS else "API key"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
