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
class Entry:
    name: str
    value: str
    line: int


def read_env_file(path: Path) -> list[Entry]:
    """The entries of `path` in order. A `#` after a space starts a comment; quotes keep spaces and `#`.

    Raises CommandError (exit 2) naming file and line where a line is not a setting, and where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as why:
        raise CommandError(f"{path}: cannot be read: {_why(why)}", Exit.USAGE) from why
    entries = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        named = _LINE.fullmatch(line)
        if named is None:
            raise CommandError(
                f"{path}:{number}: not a setting: {line!r}; allowed: NAME=VALUE or # comment", Exit.USAGE
            )
        valued = _QUOTED.fullmatch(named["value"]) or _PLAIN.fullmatch(named["value"])
        if valued is None:
            raise CommandError(
                f"{path}:{number}: {named['name']} has unbalanced quotes: {named['value']!r}", Exit.USAGE
            )
        entries.append(Entry(named["name"], valued["text"], number))
    return entries


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"byte {error.start} is not UTF-8"
