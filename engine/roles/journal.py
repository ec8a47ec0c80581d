"""The residency journal: one JSON line for each decision about a role that was carried out, in the state directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.process.private_files import read_private

JOURNAL_NAME = "residency.jsonl"


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: when (Unix time in seconds), what was done to which role, the numbers it was made on (bytes), and
    the cause as a sentence."""

    time: float
    action: str
    role: str
    numbers: dict[str, int]
    cause: str


def read_journal(state_dir: Path) -> Iterator[JournalLine | str]:
    """The journal's lines, oldest first; a line that is no decision (cut short by a crash) comes as its text. Nothing
    where there is no journal."""
    try:
        text = read_private(state_dir / JOURNAL_NAME)
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=JournalLine)
        except msgspec.MsgspecError:
            yield line.decode("utf-8", "replace")
