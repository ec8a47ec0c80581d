"""Reads lines of recordings in the first format (schema 1), in which a snapshot is a JSON change of the one before."""

from __future__ import annotations

from typing import Any

import msgspec

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

# In place of a change: a number that grew by as much as the engine's clock.
_AGED = 0


def is_line(line: bytes) -> bool:
    """Whether a line is of this format: JSON `[time, [step, change]]`."""
    return line.startswith(b"[")


def time_of(line: bytes) -> int:
    """When the snapshot of the line came, in microseconds."""
    return int(line[1 : line.index(b",")])


class Decoder:
    """The snapshot after each line."""

    def __init__(self) -> None:
        self._value: Json = None

    def apply(self, line: bytes) -> None:
        """Go on to the snapshot of that line; raises ValueError or LookupError where the line does not fit."""
        # Parsed each time: parts of the line become parts of the value, which later lines change in place.
        _, change = msgspec.json.decode(line, type=tuple[int, Any])
        match change:
            case [float() | int() as step, how]:
                if how != {}:
                    self._value = _changed(self._value, how, step)
            case _:
                raise ValueError("not a change")

    def body(self) -> bytes:
        return msgspec.json.encode(self._value)


def _changed(value: Json, how: Json, step: float) -> Json:
    """The value after a change: `[new value]`, `0` for a number that grew by `step`, or an object with the change of
    each member (of a list: of each index) that differs."""
    if isinstance(how, list) and len(how) == 1:
        return how[0]
    if isinstance(how, dict) and isinstance(value, dict):
        for name, inner in how.items():
            value[name] = _changed(value[name], inner, step)
        return value
    if isinstance(how, dict) and isinstance(value, list):
        for index, inner in how.items():
            value[int(index)] = _changed(value[int(index)], inner, step)
        return value
    if isinstance(value, float) and how == _AGED:
        return value + step
    raise ValueError("a change does not fit the value before it")
