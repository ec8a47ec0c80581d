"""Reads a settings file: `NAME=VALUE` lines, comments, and the quotes of a shell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tandem.exits import CommandError, Exit

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_PLAIN = re.compile(r"(?P<text>[^'\"#\s][^'\"\s]*(?:[ \t]+[^'\"#\s][^'\"\s]*)*|)(?:\s+#.*|#.*)?")
_QUOTED = re.compile(r"(?P<quote>['\"])(?P<text>[^'\"]*)(?P=quote)(?:\s+#.*)?")


@dataclass(frozen=True, slots=True)
class EnvEntry:
    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no setting. `problem` shows of it at most its first word: the rest may be a secret."""

    line: int
    problem: str


def read_env_file(path: Path) -> list[EnvEntry]:
    """The entries of `path` in order. A `#` after a space starts a comment; quotes keep spaces and `#`.

    Raises CommandError (exit 2) naming file and line where a line is not a setting, and where the file cannot be read.
    """
    entries, bad = scan_env_file(path)
    if bad:
        raise CommandError(f"{path}:{bad[0].line}: {bad[0].problem}", Exit.USAGE)
    return entries


def scan_env_file(path: Path) -> tuple[list[EnvEntry], list[BadLine]]:
    """The entries of `path`, and its lines that are none. A byte order mark, as some editors leave, counts as neither.

    Raises CommandError (exit 2) where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as why:
        raise CommandError(f"{path}: cannot be read: {_why(why)}", Exit.USAGE) from why
    entries: list[EnvEntry] = []
    bad: list[BadLine] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        named = _LINE.fullmatch(line)
        if named is None:
            word = line.split()[0].partition("=")[0]
            bad.append(BadLine(number, f"not a setting: {word[:40]!r}...; allowed: NAME=VALUE or # comment"))
            continue
        valued = _QUOTED.fullmatch(named["value"]) or _PLAIN.fullmatch(named["value"])
        if valued is None:
            bad.append(
                BadLine(number, f"{named['name']} has unbalanced quotes; allowed: one word, or a value in quotes")
            )
            continue
        entries.append(EnvEntry(named["name"], valued["text"], number))
    return entries, bad


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"byte {error.start} is not UTF-8"
