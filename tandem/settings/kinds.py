"""The kinds of value that a setting takes: each parses a text and describes the allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

GIB = 1 << 30
MOST_WHOLE = 10**9
"""The largest count that a setting takes where nothing smaller bounds it."""
MOST_GIB = 1 << 20
DEFAULT_PORTS = {"http": 80, "https": 443}


class Kind(Protocol):
    """Parses the text of one setting."""

    @property
    def metavar(self) -> str:
        """The word that stands for a value in help."""
        ...

    @property
    def allowed(self) -> str:
        """What is allowed, to end the sentence "allowed: ..."."""
        ...

    def parse(self, text: str) -> object:
        """The value of `text`; ValueError where it is not allowed."""
        ...


def _range(low: float, high: float) -> str:
    return f" from {low:.15g} to {high:.15g}"


def _check(value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in plain digits."""

    low: int
    high: int = MOST_WHOLE
    metavar: str = "N"

    @property
    def allowed(self) -> str:
        return f"a whole number{_range(self.low, self.high)}"

    def parse(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text):
            raise ValueError(text)
        value = int(text)
        _check(value, self.low, self.high)
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A finite decimal number."""

    low: float
    high: float
    metavar: str = "X"

    @property
    def allowed(self) -> str:
        return f"a number{_range(self.low, self.high)}"

    def parse(self, text: str) -> float:
        if not re.fullmatch(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e-?[0-9]+)?", text):
            raise ValueError(text)
        value = float(text)
        _check(value, self.low, self.high)
        return value


@dataclass(frozen=True, slots=True)
class Gib:
    """An amount of memory: written in GiB, held in bytes."""

    metavar: str = "GIB"
    allowed: str = f"a number of GiB from 0 to {MOST_GIB}"

    def parse(self, text: str) -> int:
        return round(Real(0, MOST_GIB).parse(text) * GIB)


@dataclass(frozen=True, slots=True)
class Switch:
    metavar: str = "on|off"
    allowed: str = "on or off"

    def parse(self, text: str) -> bool:
        if text not in ("on", "off"):
            raise ValueError(text)
        return text == "on"


@dataclass(frozen=True, slots=True)
class OneOf:
    choices: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.choices)

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def parse(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(text)
        return text


@dataclass(frozen=True, slots=True)
class Device:
    metavar: str = "auto|cpu|cuda[:N]"
    allowed: str = "auto, cpu, cuda or cuda:N"

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
            raise ValueError(text)
        return text


@dataclass(frozen=True, slots=True)
class Words:
    """Any text on one line."""

    metavar: str = "TEXT"
    allowed: str = "text on one line"

    def parse(self, text: str) -> str:
        if not text.isprintable():
            raise ValueError(text)
        return text


def _listed(text: str, parse: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse(word.strip()) for word in text.split(",")))


def _split(url: str) -> SplitResult:
    """The URL's parts. ValueError where it has more than scheme, host, port and path."""
    if not url.isprintable() or any(c in url for c in " @?#\\"):
        raise ValueError(url)
    return urlsplit(url)


def _host(parts: SplitResult) -> str:
    """The host as a browser spells it: lower case, other alphabets in their ASCII form. ValueError where it is none."""
    host = (parts.hostname or "").rstrip(".")
    if ":" in host:
        from ipaddress import ip_address  # most settings name no address

        return f"[{ip_address(host).compressed}]"
    if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", host := host.encode("idna").decode()):
        raise ValueError(host)
    return host


@dataclass(frozen=True, slots=True)
class Hosts:
    """Host names with commas between them; the port of one does not count."""

    metavar: str = "HOST,HOST"
    allowed: str = "host names with commas between them, without scheme or path"

    def parse(self, text: str) -> tuple[str, ...]:
        return _listed(text, self._parse_one)

    def _parse_one(self, text: str) -> str:
        parts = _split(f"//{text}")
        _ = parts.port  # a port that is no number is refused here
        if parts.path:
            raise ValueError(text)
        return _host(parts).strip("[]")


@dataclass(frozen=True, slots=True)
class Origins:
    """Web origins with commas between them, as browsers send them: scheme, host and the port where it is not the
    scheme's own."""

    metavar: str = "ORIGIN,ORIGIN"
    allowed: str = "origins such as https://chat.example or http://box.lan:3000, with commas between them, or *"

    def parse(self, text: str) -> tuple[str, ...]:
        return _listed(text, self._parse_one)

    def _parse_one(self, text: str) -> str:
        if text in ("*", "null"):
            return text
        parts = _split(text)
        port = parts.port
        if not parts.scheme or parts.path not in ("", "/"):
            raise ValueError(text)
        own = port is None or port == DEFAULT_PORTS.get(parts.scheme)
        return f"{parts.scheme}://{_host(parts)}{'' if own else f':{port}'}"


@dataclass(frozen=True, slots=True)
class AnyPath:
    """A path; `~` is the home folder."""

    metavar: str = "PATH"
    allowed: str = "a path"

    def parse(self, text: str) -> Path:
        if "\0" in text:
            raise ValueError(text)
        return Path(text).expanduser()
