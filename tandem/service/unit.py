"""The systemd user unit of an engine: rendered from a template, found again, and asked about."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engine.config import CLOSING_S
from tandem.exits import CommandError, Exit
from tandem.settings.paths import shipped

TEMPLATE = "systemd/tandem.service"
SLOWER_S = 5.0
"""Added to the engine's own time for its end in `TimeoutStopSec`, so that systemd does not kill it first."""

LIMIT_INTERVAL_S = 600
LIMIT_BURST = 6
GROWING_PAUSES_SINCE = 254
"""The first systemd version with RestartSteps."""

ASK_S = 10.0
BUSY = ("active", "activating", "reloading", "deactivating")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """What a unit is rendered from. `systemd` is the version it is for, None where that is not known."""

    name: str
    command: list[str]
    folder: Path
    environment_file: Path
    port: int
    state_dir: Path
    drain_s: float
    systemd: int | None


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed unit of ours."""

    name: str
    path: Path
    port: int
    state_dir: Path


def units_folder() -> Path:
    """Where a user's own units lie."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def unit_path(name: str) -> Path:
    return units_folder() / f"{name}.service"


def checked_name(name: str) -> str:
    """Raises CommandError (exit 2) for what cannot be a unit's name."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}", name) is None or name.endswith(".service"):
        raise CommandError(
            f"--name is {name!r}; allowed: letters, digits, dots, dashes, underscores, without .service", Exit.USAGE
        )
    return name


def render(facts: UnitFacts) -> str:
    """The text of the unit."""
    growing = facts.systemd is not None and facts.systemd >= GROWING_PAUSES_SINCE
    pauses = "RestartSec=1\nRestartSteps=5\nRestartMaxDelaySec=60" if growing else "RestartSec=5"
    words = {
        "name": facts.name,
        "port": str(facts.port),
        "limit_interval": str(LIMIT_INTERVAL_S),
        "limit_burst": str(LIMIT_BURST),
        "command": " ".join(quoted(word) for word in facts.command),
        "folder": _path(facts.folder),
        "environment_file": _path(facts.environment_file),
        "stop_timeout": str(int(facts.drain_s + CLOSING_S + SLOWER_S)),
        "pauses": pauses,
        "state_dir": str(facts.state_dir),
    }
    template = shipped(TEMPLATE).read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda match: words[match[1]], template)


def quoted(word: str) -> str:
    """One word of `ExecStart=`, whatever it holds. Raises CommandError for a line's end, which no unit can carry."""
    if "\n" in word or "\r" in word:
        raise CommandError(f"a unit cannot carry a value of several lines: {word!r}", Exit.USAGE)
    word = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if word and re.fullmatch(r"[^\s\"';]+", word):
        return word
    return '"' + word.replace('"', '\\"') + '"'


def _path(path: Path) -> str:
    """A path as the whole value of a line, where systemd reads quotes as characters."""
    text = str(path)
    if "\n" in text or text != text.strip():
        raise CommandError(f"a unit cannot carry the path {text!r}", Exit.USAGE)
    return text.replace("%", "%%")


def environment_text(values: dict[str, str]) -> str:
    """Settings as a file that systemd reads."""
    lines = []
    for name, value in sorted(values.items()):
        if "\n" in value:
            raise CommandError(f"{name} has several lines, which a unit's settings file cannot hold", Exit.USAGE)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def installed() -> list[Installed]:
    """Every unit that `tandem service install` wrote."""
    found = []
    for path in sorted(units_folder().glob("*.service")):
        facts = dict(re.findall(r"^(Port|StateDir)=(.*)$", _section(path, "X-Tandem"), re.MULTILINE))
        if facts.get("Port", "").isdigit() and "StateDir" in facts:
            found.append(Installed(path.stem, path, int(facts["Port"]), Path(facts["StateDir"])))
    return found


def _section(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]


def check_no_unit_runs(port: int, state_dir: Path) -> None:
    """Raises CommandError (exit 5) where a unit of this user has the port or the state directory, also in the pause
    between two lives of its engine."""
    for unit in installed():
        if (unit.port == port != 0 or unit.state_dir == state_dir) and (state := state_of(unit.name)) in BUSY:
            raise CommandError(
                f"the systemd unit {unit.name} runs the engine of port {unit.port} ({state}); "
                f"`systemctl --user stop {unit.name}` ends it",
                Exit.REFUSED,
            )


def state_of(name: str) -> str | None:
    """`active`, `inactive`, `failed` and so on; None where systemd cannot be asked."""
    return systemctl("is-active", f"{name}.service")


def systemctl(*words: str) -> str | None:
    """What `systemctl --user` prints on stdout, whatever its exit code; None where no user's systemd answers."""
    done = _run("systemctl", "--user", *words)
    return None if done is None or (done.returncode and not done.stdout.strip()) else done.stdout.strip()


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command of systemd; None where it is missing or does not answer in time."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None


def answers() -> bool:
    """Whether a systemd of this user runs."""
    return systemctl("is-system-running") not in (None, "offline", "unknown")


def manage(*words: str, wait_s: float = 300.0) -> None:
    """Have `systemctl --user` do something. Raises CommandError with its words where it does not."""
    command = ["systemctl", "--user", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=wait_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise CommandError(f"`{' '.join(command)}` did not work: {why}") from why
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise CommandError(f"`{' '.join(command)}` did not work: {reason}")


def systemd_version() -> int | None:
    """The version of this box's systemd; None where there is none."""
    done = _run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", done.stdout) if done else None
    return int(found[1]) if found else None


def lingers() -> bool | None:
    """Whether this user's services run without a login; None where that cannot be found out."""
    import getpass

    user = getpass.getuser()
    done = _run("loginctl", "show-user", user, "-p", "Linger", "--value")
    if done is not None and done.returncode == 0 and done.stdout.strip() in ("yes", "no"):
        return done.stdout.strip() == "yes"
    lingering = Path("/var/lib/systemd/linger")
    return (lingering / user).exists() if lingering.is_dir() else None
