"""A body decoded into a dialect's Struct, and every refusal in words: the field's path, what it must be, what it is.

The bounds stand in the Structs (`msgspec.Meta`), and msgspec checks them as it decodes. Where it refuses, the body is
read once more beside the Struct's declared types: to name the value, which msgspec does not, and to take numbers like
1.0 for integers, which clients send whose language has one kind of number. A null counts as absent wherever a field may
be absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from engine.http.errors import invalid
from engine.request import RequestError

T = TypeVar("T", bound=msgspec.Struct)

_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

SHOWN = 60
"""Characters of a wrong value that an error repeats."""


def shown(value: object) -> str:
    """A value as an error repeats it: JSON, cut."""
    if isinstance(value, str):
        value = value[: SHOWN + 1]
    try:
        # msgspec would write a number that is not finite as null.
        text = repr(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, UnicodeError, ValueError, TypeError, RecursionError):
        text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def decode(body: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's Struct. Raises RequestError(400) that names the place of what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        fault = error
    except _UNDECODABLE as error:
        raise _diagnose(body, error) from None
    try:
        value = msgspec.json.decode(body)
    except _UNDECODABLE as error:
        raise _diagnose(body, error) from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {_kind(value)}", status=400, code="invalid_json")
    kind: Any = decoder.type
    fitted = _fit(value, _shape(kind), "")
    try:
        read: T = msgspec.convert(fitted, decoder.type, str_keys=True)
        return read
    except msgspec.ValidationError:
        raise RequestError(f"the body cannot be served: {fault}", status=400, code="invalid_value") from None


def _diagnose(body: bytes | bytearray, error: Exception) -> RequestError:
    """Why the strict decoder refused: a lenient one reads on where it can, and the culprit is looked for by path."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as why:
        return RequestError(f"the body is not valid JSON: {why}", status=400, code="invalid_json")
    for path, problem in _faults(value, ""):
        return RequestError(f"{path or 'the body'}: {problem}", status=400, code="invalid_json", param=path or None)
    return RequestError(f"the body is not valid JSON: {error}", status=400, code="invalid_json")


def _faults(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, int | float) and not _is_finite(value):
        yield path, f"must be a finite number, got {shown(value)}"
    elif isinstance(value, str) and _has_surrogate(value):
        yield path, "holds half of a surrogate pair, which is no character"
    elif isinstance(value, dict):
        for key, item in value.items():
            if _has_surrogate(key):
                yield path, "has a key with half of a surrogate pair, which is no character"
            else:
                yield from _faults(item, _join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _join(path: str, name: str) -> str:
    name = name[:SHOWN]
    return f"{path}.{name}" if path else name


def _kind(value: object) -> str:
    return _NAMES.get(type(value), "a number")


@dataclass(slots=True)
class _Shape:
    """What a place of the body may hold: at most one declared type for each of JSON's kinds, and what is in them.
    `noun` names the entries of a container in the plural."""

    number: inspect.IntType | inspect.FloatType | None = None
    text: inspect.StrType | inspect.LiteralType | None = None
    array: inspect.ListType | None = None
    items: _Shape | None = None
    mapping: inspect.DictType | None = None
    keys: _Shape | None = None
    values: _Shape | None = None
    fields: dict[str, _Shape] | None = None
    required: frozenset[str] = frozenset()
    flag: bool = False
    null: bool = False
    anything: bool = False
    noun: str = "entries"

    def add(self, kind: inspect.Type) -> _Shape:
        match kind:
            case inspect.Metadata():
                self.noun = (kind.extra or {}).get("noun", self.noun)
                self.add(kind.type)
            case inspect.UnionType():
                for member in kind.types:
                    self.add(member)
            case inspect.IntType() | inspect.FloatType():
                if not isinstance(self.number, inspect.FloatType):
                    self.number = kind
            case inspect.StrType() | inspect.LiteralType():
                self.text = kind
            case inspect.ListType():
                self.array, self.items = kind, _Shape().add(kind.item_type)
            case inspect.DictType():
                self.mapping = kind
                self.keys, self.values = _Shape().add(kind.key_type), _Shape().add(kind.value_type)
            case inspect.StructType():
                self.fields = {field.encode_name: _Shape().add(field.type) for field in kind.fields}
                self.required = frozenset(field.encode_name for field in kind.fields if field.required)
            case inspect.BoolType():
                self.flag = True
            case inspect.NoneType():
                self.null = True
            case _:
                self.anything = True
        return self

    @property
    def words(self) -> str:
        if isinstance(self.text, inspect.LiteralType):
            return f"one of {', '.join(map(str, self.text.values))}"
        kinds = [
            "true or false" if self.flag else "",
            "" if self.number is None else "an integer" if isinstance(self.number, inspect.IntType) else "a number",
            "a string" if self.text is not None else "",
            "an array" if self.array is not None else "",
            "an object" if self.fields is not None or self.mapping is not None else "",
        ]
        return " or ".join(kind for kind in kinds if kind)


@cache
def _shape(kind: Hashable) -> _Shape:
    return _Shape().add(inspect.type_info(kind))


def _fit(value: Any, shape: _Shape, path: str) -> Any:
    """`value` with integers in the place of numbers like 1.0. Raises RequestError(400) at the first thing in it that
    `shape` does not allow."""
    if shape.anything or (value is None and shape.null) or (isinstance(value, bool) and shape.flag):
        return value
    match value:
        case bool():
            pass
        case int() | float() if shape.number is not None:
            return _fit_number(value, shape.number, path)
        case str() if shape.text is not None:
            return _fit_text(value, shape, path)
        case list() if shape.array is not None and shape.items is not None:
            _check_length(len(value), shape.array.max_length, shape.noun, path)
            return [_fit(item, shape.items, f"{path}[{index}]") for index, item in enumerate(value)]
        case dict() if shape.fields is not None:
            return _fit_fields(value, shape.fields, shape.required, path)
        case dict() if shape.mapping is not None and shape.keys is not None and shape.values is not None:
            _check_length(len(value), shape.mapping.max_length, shape.noun, path)
            for key in value:
                _check_key(key, shape.keys, shape.noun, path)
            return {key: _fit(item, shape.values, _join(path, key)) for key, item in value.items()}
    raise invalid(path, f"must be {shape.words}, got {shown(value)}")


def _fit_fields(
    value: Mapping[str, Any], fields: Mapping[str, _Shape], required: frozenset[str], path: str
) -> dict[str, Any]:
    fitted = {name: _fit(item, fields[name], _join(path, name)) for name, item in value.items() if name in fields}
    for name in fields:
        if name in required and name not in fitted:
            raise invalid(_join(path, name), f"must be {fields[name].words}, got null")
    return fitted


def _fit_number(value: float, kind: inspect.IntType | inspect.FloatType, path: str) -> float:
    what = "an integer"
    if isinstance(kind, inspect.FloatType):
        what = "a finite number"
        if not _is_finite(value):
            raise invalid(path, f"must be a finite number, got {shown(value)}")
    elif isinstance(value, float):
        if not value.is_integer():
            raise invalid(path, f"must be an integer, got {shown(value)}")
        value = int(value)
    bounds = [
        ("at least", kind.ge, kind.ge is None or value >= kind.ge),
        ("over", kind.gt, kind.gt is None or value > kind.gt),
        ("at most", kind.le, kind.le is None or value <= kind.le),
    ]
    if not all(holds for _, _, holds in bounds):
        words = " and ".join(f"{name} {_bound(bound)}" for name, bound, _ in bounds if bound is not None)
        raise invalid(path, f"must be {what}, {words}, got {shown(value)}")
    return value


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _fit_text(value: str, shape: _Shape, path: str) -> str:
    kind = shape.text
    if isinstance(kind, inspect.LiteralType):
        if value not in kind.values:
            raise invalid(path, f"must be {shape.words}, got {shown(value)}")
    elif kind is not None:
        if kind.min_length and not value:
            raise invalid(path, "must be a string that is not empty, got an empty one")
        if kind.max_length is not None and len(value) > kind.max_length:
            raise invalid(path, f"must be at most {kind.max_length} characters, got {len(value)}")
    return value


def _check_key(key: str, shape: _Shape, noun: str, path: str) -> None:
    if isinstance(shape.number, inspect.IntType) and not (key.isascii() and key.isdigit() and len(key) < 19):
        raise invalid(path, f"keys must be {noun}, got {shown(key)}")
    limit = shape.text.max_length if isinstance(shape.text, inspect.StrType) else None
    if limit is not None and len(key) > limit:
        raise invalid(path, f"keys must be at most {limit} characters, got {len(key)} in {shown(key)}")


def _check_length(length: int, limit: int | None, noun: str, path: str) -> None:
    if limit is not None and length > limit:
        raise invalid(path, f"must hold at most {limit} {noun}, got {length}")
