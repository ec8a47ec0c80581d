"""Snapshots kept small: one whole body now and then, and of those that follow only the pieces that differ from it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

# A body is cut here. Nearly all of its pieces are one field each, and stay the same from one snapshot to the next.
_CUT = b","
_LEVEL = 1


@dataclass(frozen=True)
class Key:
    """A whole body in pieces, which others are compared with."""

    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, body: bytes) -> Key:
        return cls(tuple(body.split(_CUT)))

    @property
    def body(self) -> bytes:
        """The whole body."""
        return _CUT.join(self.pieces)

    def packed(self) -> bytes:
        """The whole body, compressed."""
        return packed_bytes(self.body)


class _Changes(msgspec.Struct, array_like=True):
    """Which pieces differ, each as the distance to the one before it, and what stands there instead."""

    steps: list[int]
    texts: list[bytes]


def delta(key: Key, body: bytes) -> bytes | None:
    """What turns the key's body into `body`, compressed; None where they are not of the same shape."""
    pieces = body.split(_CUT)
    if len(pieces) != len(key.pieces):
        return None
    places = [place for place, (old, new) in enumerate(zip(key.pieces, pieces, strict=True)) if old != new]
    steps = [place - before for before, place in zip([0, *places], places, strict=False)]
    packed = msgspec.msgpack.encode(_Changes(steps, [pieces[place] for place in places]))
    return packed_bytes(packed)


def packed_bytes(plain: bytes) -> bytes:
    """Bytes compressed as quickly as can be: this runs with every snapshot."""
    return zlib.compress(plain, _LEVEL)


def unpacked_bytes(packed: bytes) -> bytes:
    """What `packed_bytes` compressed; raises zlib.error on other bytes."""
    return zlib.decompress(packed)


def unpacked(packed: bytes) -> Key:
    """The key that `Key.packed` compressed; raises zlib.error on other bytes."""
    return Key.of(unpacked_bytes(packed))


def patched(key: Key, change: bytes) -> bytes:
    """The body that `delta` was taken of; raises zlib.error or msgspec.DecodeError on other bytes."""
    changes = msgspec.msgpack.decode(unpacked_bytes(change), type=_Changes)
    pieces = list(key.pieces)
    place = 0
    for step, text in zip(changes.steps, changes.texts, strict=True):
        place += step
        pieces[place] = text
    return _CUT.join(pieces)
