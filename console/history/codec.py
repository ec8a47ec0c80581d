"""The codec of snapshot histories, in memory and in recordings: blocks of snapshots, each stored as its difference from
the one before.

A body of JSON is cut at its commas. Nearly every piece is then one field, and most fields stay the same from one
snapshot to the next. A difference names the pieces that changed and keeps their text without the field's name. Where
the two bodies have different fields, for example because a lane became idle, pieces are aligned by field name from both
ends, and those in between are kept whole. The codec restores every body byte for byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from operator import ne

import msgspec

from console.history import first_format

# Half a minute of snapshots.
BLOCK_SNAPSHOTS = 120
_CUT = b","

Pieces = list[bytes]


class _Difference(msgspec.Struct, array_like=True):
    """`head` and `tail` pieces of the old body are kept, with `middle` in place of those between; without a head, all.

    Then the pieces at `steps` (each the distance to the one before) become their own field name and one of `values`.
    """

    steps: list[int]
    values: bytes
    head: int | None = None
    tail: int = 0
    middle: bytes | None = None


class Encoder:
    """Makes a line of each body. `begin_block` has the next one stored whole."""

    def __init__(self) -> None:
        self._before: Pieces | None = None

    def begin_block(self) -> None:
        self._before = None

    def line(self, body: bytes) -> bytes:
        """The body, as what changed since the one before."""
        pieces = body.split(_CUT)
        before, self._before = self._before, pieces
        if before is None:
            return msgspec.msgpack.encode(body)
        return msgspec.msgpack.encode(_difference(before, pieces))


class Decoder:
    """The bodies of one block. Going forward applies only the differences in between."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = lines
        self._index = -1
        self._pieces: Pieces = []
        self._old = first_format.Decoder()

    def body(self, index: int) -> bytes:
        """The body at that index; raises ValueError, LookupError or msgspec.MsgspecError where the block is damaged."""
        if index < self._index:
            self._index = -1
        while self._index < index:
            self._index += 1
            self._apply(self.lines[self._index])
        return self._old.body() if first_format.is_line(self.lines[index]) else _CUT.join(self._pieces)

    def _apply(self, line: bytes) -> None:
        if first_format.is_line(line):
            self._old.apply(line)
            return
        change = msgspec.msgpack.decode(line, type=bytes | _Difference)
        self._pieces = change.split(_CUT) if isinstance(change, bytes) else _changed(self._pieces, change)


def pack(lines: Sequence[bytes], level: int) -> bytes:
    """The lines of one block, compressed."""
    return zlib.compress(msgspec.msgpack.encode(lines), level)


def unpack(data: bytes) -> list[bytes]:
    """The lines that `pack` was given, or those of a block in the first format; raises zlib.error or
    msgspec.MsgspecError on other bytes."""
    plain = zlib.decompress(data)
    if first_format.is_line(plain):
        return plain.split(b"\n")
    return msgspec.msgpack.decode(plain, type=list[bytes])


def _difference(old: Pieces, new: Pieces) -> _Difference:
    places = _changed_places(old, new)
    fields = [_field(old[place]) for place in places]
    if len(old) == len(new) and all(new[place].startswith(field) for place, field in zip(places, fields, strict=True)):
        return _values(new, places, fields)
    shared = min(len(old), len(new))
    head = next((place for place in places if not new[place].startswith(_field(old[place]))), shared)
    tail = 0
    while tail < shared - head and new[-1 - tail].startswith(_field(old[-1 - tail])):
        tail += 1
    middle = new[head : len(new) - tail]
    base = _spliced(old, head, tail, middle)
    places = _changed_places(base, new)
    change = _values(new, places, [_field(base[place]) for place in places])
    change.head, change.tail, change.middle = head, tail, _CUT.join(middle) if middle else None
    return change


def _values(new: Pieces, places: list[int], fields: list[bytes]) -> _Difference:
    steps = [place - before for before, place in zip([0, *places], places, strict=False)]
    return _Difference(
        steps, _CUT.join([new[place][len(field) :] for place, field in zip(places, fields, strict=True)])
    )


def _changed(pieces: Pieces, change: _Difference) -> Pieces:
    if change.head is not None:
        middle = [] if change.middle is None else change.middle.split(_CUT)
        pieces = _spliced(pieces, change.head, change.tail, middle)
    place = 0
    for step, value in zip(change.steps, change.values.split(_CUT) if change.steps else (), strict=True):
        place += step
        pieces[place] = _field(pieces[place]) + value
    return pieces


def _spliced(pieces: Pieces, head: int, tail: int, middle: Pieces) -> Pieces:
    return [*pieces[:head], *middle, *pieces[len(pieces) - tail :]]


def _changed_places(old: Pieces, new: Pieces) -> list[int]:
    return [place for place, differs in enumerate(map(ne, old, new)) if differs]


def _field(piece: bytes) -> bytes:
    """The piece up to the colon behind a field's name; nothing where it has none."""
    return piece[: piece.find(b":") + 1]
