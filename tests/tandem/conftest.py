"""Fixtures of the command tests: folders of their own, and no setting of the surroundings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.settings.table import ALIAS_PREFIXES, PREFIX


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration and a state folder of the test's own; returns the configuration folder."""
    for name in list(os.environ):
        if name.startswith((PREFIX, *ALIAS_PREFIXES)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    config = tmp_path / "config"
    config.mkdir()
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(config))
    return config
