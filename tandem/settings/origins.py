"""Puts the settings together from their layers and keeps where each value comes from.

Flag > environment > --env-file > local.env > profile > serve.env > default. In one layer the `TANDEM_` name wins over
`QSE_`, that over `QWEN38_`. An empty value is no value.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.exits import CommandError, Exit
from tandem.settings.envfile import EnvEntry, read_env_file
from tandem.settings.paths import CONFIG_DIR_VARIABLE, config_dir, shipped
from tandem.settings.table import ALIAS_PREFIXES, BY_NAME, BY_VARIABLE, PREFIX, TABLE, Setting, Settings

ENV_FILE_VARIABLE = "TANDEM_ENV_FILE"
PROFILE_VARIABLE = "TANDEM_PROFILE"
OUTSIDE = (CONFIG_DIR_VARIABLE, ENV_FILE_VARIABLE, PROFILE_VARIABLE)
"""Variables that say where settings are read from, and so are no settings themselves."""
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
FOREIGN = ("TANDEM_CACHE_DIR", "TANDEM_API_KEY")
"""Variables that other parts read straight from the environment."""


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value comes from: the layer, the place in it (a file and line), and the name it was written under."""

    layer: str
    place: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.layer} ({self.place})" if self.place else self.layer


DEFAULT = ValueOrigin("default")


@dataclass(frozen=True, slots=True)
class Found:
    text: str
    origin: ValueOrigin


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values: what it sets, by setting name, its variables that no setting has, the profile it names."""

    name: str
    found: Mapping[str, Found]
    unknown: tuple[ValueOrigin, ...] = ()
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says. `values` are texts by setting name, for the flags that were given."""

    values: Mapping[str, str]
    profile: str | None = None
    env_file: Path | None = None


NO_FLAGS = Flags({})


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings in force, each value's origin by setting name, and the notes to show once."""

    settings: Settings
    origins: Mapping[str, ValueOrigin]
    notes: tuple[str, ...]


def resolve(flags: Flags = NO_FLAGS, environ: Mapping[str, str] | None = None) -> Resolved:
    """Resolve every setting. Raises CommandError (exit 2) in one line where a value in force does not parse, a file
    cannot be read, or two values contradict each other."""
    layers = read_layers(flags, os.environ if environ is None else environ)
    values: dict[str, object] = {}
    origins: dict[str, ValueOrigin] = {}
    for setting in TABLE:
        for layer in layers:
            if found := layer.found.get(setting.name):
                values[setting.name] = parse(setting, found)
                origins[setting.name] = found.origin
                break
        else:
            origins[setting.name] = DEFAULT
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_together(settings, origins)
    return Resolved(settings, origins, (*_alias_notes(origins), *_later_notes(origins), *_unknown_notes(layers)))


def parse(setting: Setting, found: Found) -> object:
    """The value of a found text; raises CommandError naming the variable, the value, its place and what is allowed."""
    try:
        return setting.kind.parse(found.text)
    except ValueError:
        place = f" ({found.origin.place})" if found.origin.place else ""
        text = "a secret, not shown" if setting.secret else repr(found.text)
        raise CommandError(
            f"{found.origin.name} is {text}{place}; allowed: {setting.kind.allowed}", Exit.USAGE
        ) from None


def read_layers(flags: Flags, environ: Mapping[str, str]) -> list[Layer]:
    """Every layer above the defaults, the strongest first."""
    flag = Layer("flag", {n: Found(t, ValueOrigin("flag", "", BY_NAME[n].flag)) for n, t in flags.values.items() if t})
    layers = [flag, _layer("environment", environment(environ))]
    serve: list[Layer] = []
    for name, path in files(flags, environ):
        (serve if name == "serve.env" else layers).append(_layer(name, _entries(name, path)))
    if profile := flags.profile or _profile_of([*layers, *serve]):
        layers.append(_layer("profile", _entries("profile", profile_path(profile))))
    return layers + serve


def environment(environ: Mapping[str, str]) -> list[Found]:
    """The variables that may be settings. The whole environment is other programs' too: only the project's own prefix
    can hold a mistake."""
    return [
        Found(text, ValueOrigin("environment", "", name))
        for name, text in environ.items()
        if name.startswith((PREFIX, *ALIAS_PREFIXES))
    ]


def files(flags: Flags, environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """The layer and the path of every settings file but the profile's, the strongest first."""
    found = []
    if named := str(flags.env_file or "") or environ.get(ENV_FILE_VARIABLE):
        found.append(("--env-file", Path(named).expanduser()))
    folder = config_dir()
    return found + [(name, folder / name) for name in ("local.env", "serve.env") if (folder / name).exists()]


def _entries(name: str, path: Path) -> list[Found]:
    return [found_in(name, path, entry) for entry in read_env_file(path)]


def found_in(layer: str, path: Path, entry: EnvEntry) -> Found:
    return Found(entry.value, ValueOrigin(layer, f"{path}:{entry.line}", entry.name))


def profile_path(name: str) -> Path:
    """The file of a profile: the user's own, else the one that ships. Raises CommandError (exit 2) for no such one."""
    known = profiles()
    if name in known:
        return known[name]
    raise CommandError(f"no profile is named {name!r}; there are: {', '.join(known) or 'none'}", Exit.USAGE)


def profiles() -> dict[str, Path]:
    """Every profile by name: the user's own, and those that ship where the user has none of that name."""
    found: dict[str, Path] = {}
    for folder in (shipped("profiles"), config_dir() / "profiles"):
        found |= {path.stem: path for path in sorted(folder.glob("*.env")) if PROFILE_NAME.fullmatch(path.stem)}
    return dict(sorted(found.items()))


def _layer(name: str, entries: list[Found]) -> Layer:
    """Sort one source's variables into settings: the strongest name of a setting wins, of one name the last line."""
    found: dict[str, Found] = {}
    unknown = []
    profile = ""
    for entry in entries:
        variable = entry.origin.name
        setting = BY_VARIABLE.get(variable)
        if setting is None:
            if variable.startswith(PREFIX) and variable not in (*OUTSIDE, *FOREIGN):
                unknown.append(entry.origin)
            elif variable == PROFILE_VARIABLE:
                profile = entry.text
            continue
        held = found.get(setting.name)
        names = setting.names
        if entry.text and (held is None or names.index(variable) <= names.index(held.origin.name)):
            found[setting.name] = entry
    return Layer(name, found, tuple(unknown), profile)


def _profile_of(layers: list[Layer]) -> str | None:
    return next((layer.profile for layer in layers if layer.profile), None)


def _check_together(settings: Settings, origins: Mapping[str, ValueOrigin]) -> None:
    floor, hard = settings.parallel_floor_gb, settings.kv_hard_floor_gb
    if floor is not None and hard is not None and hard > floor:
        named = f"{_written_name(origins, 'kv_hard_floor_gb')} ({hard / (1 << 30):g} GiB)"
        raise CommandError(
            f"{named} is above {_written_name(origins, 'parallel_floor_gb')} ({floor / (1 << 30):g} GiB); "
            "allowed: at most the floor",
            Exit.USAGE,
        )


def _written_name(origins: Mapping[str, ValueOrigin], name: str) -> str:
    return origins[name].name or BY_NAME[name].variable


def _alias_notes(origins: Mapping[str, ValueOrigin]) -> list[str]:
    return [
        f"{origin.name} is an older name of {BY_NAME[name].variable} (set in {origin})"
        for name, origin in origins.items()
        if origin.name.startswith(ALIAS_PREFIXES)
    ]


def _later_notes(origins: Mapping[str, ValueOrigin]) -> list[str]:
    return [
        f"{origin.name} is set ({origin}), and nothing acts on it yet"
        for name, origin in origins.items()
        if origin is not DEFAULT and BY_NAME[name].later
    ]


def _unknown_notes(layers: list[Layer]) -> list[str]:
    return [unknown_note(origin) for layer in layers for origin in layer.unknown]


def unknown_note(origin: ValueOrigin) -> str:
    """The note about a variable that no setting has, with the nearest name of a setting."""
    near = difflib.get_close_matches(origin.name, [setting.variable for setting in TABLE], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{origin.name} is no setting (set in {origin}){hint}"
