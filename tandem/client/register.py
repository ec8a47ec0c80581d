"""Which engines of this user run: a register of state directories, and how a command finds its engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.process.locks import holder, process_words
from engine.process.private_files import make_private, read_private
from engine.process.state_dir import LOCK_NAME, ServiceRecord, is_locked, read_record
from engine.process.state_files import try_write, unwritten
from tandem.client.unrecorded import answers_unrecorded, configured_address
from tandem.client.wire import Address
from tandem.exits import CommandError, Exit
from tandem.settings.origins import NO_FLAGS, Flags, resolve
from tandem.settings.paths import SUPERVISOR_LOCK, default_state_dir, state_root

LAUNCH_NAME = "launch.json"
_NAME_LENGTH = 16
ASK_S = 5.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine of a state directory was started, so that `restart` can do it again."""

    flags: dict[str, str]
    profile: str | None
    env_file: str | None
    folder: str

    def to_flags(self) -> Flags:
        return Flags(self.flags, self.profile, Path(self.env_file) if self.env_file else None)


@dataclass(frozen=True, slots=True)
class Running:
    """An engine whose process holds its state directory, or whose supervisor does while it is down.

    `record` is None until its port is open, `supervisor` is the process that watches it, if one does.
    """

    state_dir: Path
    record: ServiceRecord | None
    supervisor: int | None = None

    @classmethod
    def find(cls, state_dir: Path) -> Running | None:
        """The engine that runs in a state directory now, or None."""
        supervisor = holder(state_dir / SUPERVISOR_LOCK)
        if supervisor is None and not is_locked(state_dir):
            return None
        return cls(state_dir, read_record(state_dir), supervisor)

    @property
    def pid(self) -> int | None:
        """The engine's process id. None while there is no process, 0 where its id cannot be found out."""
        return holder(self.state_dir / LOCK_NAME)

    def __str__(self) -> str:
        if self.record is not None:
            return f"{self.record.url} ({process_words(self.pid)})"
        return f"{self.state_dir} ({process_words(self.supervisor or self.pid)})"


def _register() -> Path:
    return state_root() / "engines"


def _entry(state_dir: Path) -> Path:
    return _register() / hashlib.sha256(str(state_dir).encode()).hexdigest()[:_NAME_LENGTH]


@contextmanager
def registered(state_dir: Path) -> Iterator[str | None]:
    """Enter the engine of `state_dir` into the register while it runs. Yields a sentence where it could not be entered:
    then commands find it only by its state directory or its address."""
    entry = _entry(state_dir)
    try:
        make_private(entry.parent)
    except OSError as why:
        yield unwritten(entry, why)
        return
    try:
        yield try_write(entry, str(state_dir).encode())
    finally:
        with suppress(OSError):
            entry.unlink(missing_ok=True)


def running() -> list[Running]:
    """Every engine of this user that runs now."""
    folders = {default_state_dir()}
    if _register().is_dir():
        for entry in sorted(_register().glob(f"{'?' * _NAME_LENGTH}")):
            try:
                folder = read_private(entry).decode()
            except OSError:
                continue
            if folder:
                folders.add(Path(folder))
    return [engine for folder in sorted(folders) if (engine := Running.find(folder)) is not None]


def usual_state_dir() -> Path:
    """The state directory that the settings name, for questions about an engine that no longer runs. The default where
    the settings do not parse."""
    try:
        chosen = resolve().settings.state_dir
    except CommandError:
        chosen = None
    return chosen.absolute() if chosen else default_state_dir()


def write_launch(state_dir: Path, flags: Flags) -> str | None:
    """Write `launch.json`. A sentence where it could not be written: the engine runs without it."""
    launch = Launch(
        flags=dict(flags.values),
        profile=flags.profile,
        env_file=str(flags.env_file.absolute()) if flags.env_file else None,
        folder=str(Path.cwd()),
    )
    make_private(state_dir)
    return try_write(state_dir / LAUNCH_NAME, msgspec.json.encode(launch))


def read_launch(state_dir: Path) -> Launch | None:
    try:
        return msgspec.json.decode(read_private(state_dir / LAUNCH_NAME), type=Launch)
    except (OSError, msgspec.MsgspecError):
        return None


def find_engine(state_dir: Path | None) -> Running:
    """The running engine of `state_dir`, or the only one where no folder is given. Raises CommandError: exit 3 where
    none runs, exit 2 where several do."""
    found = [engine for engine in running() if state_dir is None or engine.state_dir == state_dir.absolute()]
    if state_dir is not None and not found and (engine := Running.find(state_dir.absolute())) is not None:
        found = [engine]
    if not found:
        where = f" with the state directory {state_dir}" if state_dir else ""
        raise CommandError(f"no engine runs{where}", Exit.NOT_RUNNING)
    if len(found) > 1:
        raise CommandError(f"several engines run; choose one with --state-dir: {_list(found)}", Exit.USAGE)
    return found[0]


def address_of(url: str | None) -> Address:
    """The address of the engine to talk to: `url` where given, else that of the only engine of this user, else the
    one that the settings name. Raises CommandError (exit 2) where several engines run."""
    if url is not None:
        return Address.of(url)
    found = [Address.of_engine(engine.record) for engine in running() if engine.record is not None]
    if len(found) > 1:
        urls = ", ".join(address.url for address in found)
        raise CommandError(f"several engines run; choose one with --url: {urls}", Exit.USAGE)
    if found:
        return found[0]
    settings = resolve().settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Address.of(f"http://{host}:{settings.port}")


def unrecorded_address(engine: Running, environ: Mapping[str, str] | None = None) -> Address | None:
    """Where an engine answers that could not write its record; None where it does not answer yet."""
    launch = read_launch(engine.state_dir)
    try:
        settings = resolve(launch.to_flags() if launch else NO_FLAGS, environ).settings
    except CommandError:
        return None
    address = configured_address(settings, engine.state_dir)
    return address if answers_unrecorded(address, engine.state_dir, ASK_S) else None


def _list(engines: list[Running]) -> str:
    return ", ".join(str(engine.state_dir) for engine in engines)
