"""Reading a client's JSON: the body decoded, and typed fields whose errors name path, limit and value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import msgspec

from engine.http.errors import invalid
from engine.request import RequestError

type_names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}

SHOWN = 60
"""Characters of a wrong value that an error repeats."""


def shown(value: object) -> str:
    """A value as an error repeats it: JSON, cut."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, UnicodeError, ValueError, TypeError, RecursionError):
        text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def decode_object(body: bytes) -> Fields:
    """The body as an object. Raises RequestError(400) that names the place of what is wrong."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _diagnose(body, error) from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {kind(value)}", status=400, code="invalid_json")
    return Fields(value)


def _diagnose(body: bytes, error: Exception) -> RequestError:
    """Why the strict decoder refused: a lenient one reads on where it can, and the culprit is looked for by path."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return RequestError(f"the body is not valid JSON: {what}", status=400, code="invalid_json")
    try:
        for path, problem in _faults(value, ""):
            return RequestError(f"{path or 'the body'}: {problem}", status=400, code="invalid_json", param=path or None)
    except RecursionError:
        pass
    return RequestError(f"the body is not valid JSON: {error}", status=400, code="invalid_json")


def _faults(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path, f"must be a finite number, got {value}"
    elif isinstance(value, str) and _has_surrogate(value):
        yield path, "holds half of a surrogate pair, which is no character"
    elif isinstance(value, dict):
        for key, item in value.items():
            if _has_surrogate(key):
                yield path, "has a key with half of a surrogate pair, which is no character"
            else:
                yield from _faults(item, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]")


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def kind(value: object) -> str:
    return type_names.get(type(value), "a number")


class Fields:
    """One JSON object under validation. A null counts as absent; every error is a RequestError(400) with the path."""

    def __init__(self, data: Mapping[str, object], path: str = "") -> None:
        self.data = data
        self.path = path

    def at(self, name: str) -> str:
        return join(self.path, name)

    def get(self, name: str) -> object:
        return self.data.get(name)

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(self.at(name), f"must be true or false, got {shown(value)}")
        return value

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(self.at(name), f"must be a string, got {shown(value)}")
        return value

    def integer(self, name: str, *, low: int | None = None, high: int | None = None) -> int | None:
        value = self.data.get(name)
        if value is None:
            return None
        return as_integer(value, self.at(name), low=low, high=high)

    def number(
        self,
        name: str,
        default: float,
        *,
        low: float | None = None,
        high: float | None = None,
        above: float | None = None,
    ) -> float:
        """A finite number with `low` <= value <= `high`, and strictly over `above`."""
        value = self.data.get(name)
        if value is None:
            return default
        return as_number(value, self.at(name), low=low, high=high, above=above)

    def nested(self, name: str) -> Fields | None:
        value = self.data.get(name)
        if value is None:
            return None
        return as_object(value, self.at(name))

    def array(self, name: str) -> list[object] | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise invalid(self.at(name), f"must be an array, got {shown(value)}")
        return value


def as_object(value: object, path: str) -> Fields:
    if not isinstance(value, dict):
        raise invalid(path, f"must be an object, got {shown(value)}")
    return Fields(value, path)


def as_integer(value: object, path: str, *, low: int | None = None, high: int | None = None) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(path, f"must be an integer, got {shown(value)}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise invalid(path, f"must be {_range('an integer', low, high, None)}, got {shown(value)}")
    return value


def as_number(
    value: object, path: str, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid(path, f"must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise invalid(path, f"must be a finite number, got {shown(value)}") from None
    too_low = (low is not None and number < low) or (above is not None and number <= above)
    if not math.isfinite(number) or too_low or (high is not None and number > high):
        raise invalid(path, f"must be {_range('a finite number', low, high, above)}, got {shown(value)}")
    return number


def _range(what: str, low: float | None, high: float | None, above: float | None) -> str:
    lower = f"at least {_bound(low)}" if low is not None else f"over {_bound(above)}" if above is not None else ""
    upper = f"at most {_bound(high)}" if high is not None else ""
    bounds = " and ".join(part for part in (lower, upper) if part)
    return f"{what}, {bounds}" if bounds else what


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
