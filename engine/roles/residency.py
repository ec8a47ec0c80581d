"""The residency document: which small models may stand beside the engine and what each takes, as an operator writes it.

    [memory]
    margin_gb = 4            # kept free above the floor; absent: ROLE_RELOAD_MARGIN_GB
    engine_peak_gb = 84.65   # the engine's declared peak; absent: by the KV that one request may still commit

    [[role]]
    name = "narrator"        # any name, once
    kind = "narrator"        # decider, narrator, shadow
    claim_gb = 4.5           # what it takes while loaded
    claim_source = "measured"   # measured, or declared (the default)
    priority = 2             # lower is planned first; equal ones in the order of the file

Sizes are GiB. A key that is not known is a mistake, not a comment.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.memory.sizes import GIB

KINDS = ("decider", "narrator", "shadow")
CLAIM_SOURCES = ("measured", "declared")
LARGEST_GB = 1 << 20


class ResidencyFileError(Exception):
    """A residency document that does not parse: one line naming file, key, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class RoleClaim:
    """One small model: `claim_bytes` while loaded, `claim_source` how that is known, lower `priority` first."""

    name: str
    kind: str
    claim_bytes: int
    claim_source: str
    priority: int


@dataclass(frozen=True, slots=True)
class Residency:
    """A whole document. `roles` in the order in which they are planned; None where the document says nothing."""

    roles: tuple[RoleClaim, ...]
    margin_bytes: int | None = None
    engine_peak_bytes: int | None = None


def read_residency(path: Path) -> Residency:
    """Read and check the document. Raises ResidencyFileError, also where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ResidencyFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ResidencyFileError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return parse_residency(text, str(path))


def parse_residency(text: str, source: str) -> Residency:
    """Check a document's text; `source` names it in errors. Raises ResidencyFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ResidencyFileError(f"{source}: is not TOML: {error}") from error
    top = _Table(source, "", document)
    memory = top.take("memory", {}, _table)
    roles = top.take("role", [], _tables)
    top.done()

    limits = _Table(source, "memory.", memory)
    margin = limits.take("margin_gb", None, _size)
    peak = limits.take("engine_peak_gb", None, _size)
    limits.done()

    claims: list[RoleClaim] = []
    for index, entry in enumerate(roles):
        table = _Table(source, f"role[{index}].", entry)
        claims.append(
            RoleClaim(
                name=table.need("name", _name),
                kind=table.need("kind", _one_of(KINDS)),
                claim_bytes=table.need("claim_gb", _size),
                claim_source=table.take("claim_source", "declared", _one_of(CLAIM_SOURCES)),
                priority=table.take("priority", 100, _whole),
            )
        )
        table.done()
        if any(other.name == claims[-1].name for other in claims[:-1]):
            raise ResidencyFileError(f"{source}: role[{index}].name = {claims[-1].name!r}: allowed once")
    return Residency(tuple(sorted(claims, key=lambda claim: claim.priority)), margin, peak)


class _Refused(ValueError):
    """What is allowed instead."""


class _Table:
    """One table of the document; each key is taken once, and what is left over is not known."""

    def __init__(self, source: str, prefix: str, entries: Mapping[str, Any]) -> None:
        self._source = source
        self._prefix = prefix
        self._left = dict(entries)
        self._known: list[str] = []

    def take(self, key: str, default: Any, check: Callable[[Any], Any]) -> Any:
        self._known.append(key)
        if key not in self._left:
            return default
        value = self._left.pop(key)
        try:
            return check(value)
        except _Refused as allowed:
            raise ResidencyFileError(
                f"{self._source}: {self._prefix}{key} = {_shown(value)}: allowed: {allowed}"
            ) from None

    def need(self, key: str, check: Callable[[Any], Any]) -> Any:
        if key not in self._left:
            raise ResidencyFileError(f"{self._source}: {self._prefix}{key} is missing")
        return self.take(key, None, check)

    def done(self) -> None:
        for key, value in self._left.items():
            raise ResidencyFileError(
                f"{self._source}: {self._prefix}{key} = {_shown(value)}: no such key; known: {', '.join(self._known)}"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _table(value: Any) -> Any:
    if not isinstance(value, dict):
        raise _Refused("a table, [memory]")
    return value


def _tables(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise _Refused("tables, one [[role]] each")
    return value


def _size(value: Any) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= LARGEST_GB:
        raise _Refused(f"a number of GiB from 0 to {LARGEST_GB}")
    return int(value * GIB)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Refused("a whole number")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 64 or not value.isprintable():
        raise _Refused("a name of 1 to 64 printable characters")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise _Refused(", ".join(words))
        return value

    return check
