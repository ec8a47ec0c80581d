"""Where this user's files lie: configuration, state, and what ships with the package."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

APP = "tandem"
CONFIG_DIR_VARIABLE = "TANDEM_CONFIG_DIR"
SUPERVISOR_LOCK = "supervisor.lock"
"""In an engine's state directory: locked by the process that supervises the engine."""


def config_dir() -> Path:
    """The configuration folder: `TANDEM_CONFIG_DIR`, else the platform's own."""
    chosen = os.environ.get(CONFIG_DIR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_config_path

    return user_config_path(APP, appauthor=False)


def state_root() -> Path:
    """The folder that every engine of this user shares: the register of running engines, and the default state."""
    from platformdirs import user_state_path

    return user_state_path(APP, appauthor=False)


def default_state_dir() -> Path:
    return state_root() / "engine"


def shipped(name: str) -> Path:
    """A file or folder of the `ops` package."""
    return Path(str(files("ops"))) / name
