"""The parameters of a URL: typed, and refused by name, limit and value."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl

from engine.http.decoding import shown
from engine.http.errors import invalid
from engine.http.wire import Scope

TEXT_LIMIT = 200
EnumT = TypeVar("EnumT", bound=StrEnum)


class Query:
    """The parameters of one request; an empty one counts as absent. Every error is a RequestError(400)."""

    def __init__(self, scope: Scope, *known: str) -> None:
        """Raises for a parameter that is not `known`: a search with a slip in it must not look like an answer."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        self._values = {name: value for name, value in pairs if value}
        for name, _ in pairs:
            if name not in known:
                raise invalid(name[:TEXT_LIMIT], f"is no parameter of {scope['path']}; there are {', '.join(known)}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and len(value) > TEXT_LIMIT:
            raise invalid(name, f"must have at most {TEXT_LIMIT} characters, got {len(value)}")
        return value

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", value) or not low <= int(value) <= high:
            raise invalid(name, f"must be an integer from {low} to {high}, got {shown(value)}")
        return int(value)

    def choice(self, name: str, kind: type[EnumT]) -> EnumT | None:
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            raise invalid(name, f"must be one of {', '.join(kind)}, got {shown(value)}") from None
