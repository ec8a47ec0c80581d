"""The generated pages say what the tables say now."""

from __future__ import annotations

import re

import pytest

from tandem.reference import PAGES, ROOT
from tandem.settings.envfile import read_env_file
from tandem.settings.origins import resolve
from tandem.settings.table import TABLE


@pytest.mark.parametrize("name", list(PAGES))
def test_a_generated_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_the_security_page_names_tests_that_are_there() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+)`", text)
    named += [f"tests/stress/attacks/{name}.py" for name in re.findall(r"-m tests\.stress\.attacks (\w+)", text)]
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_shipped_settings_file_changes_nothing(folders: object, tmp_path: object) -> None:
    assert read_env_file(ROOT / "ops/serve.env") == []


def test_every_default_it_shows_is_the_default() -> None:
    text = (ROOT / "ops/serve.env").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^#(TANDEM_[A-Z0-9_]+)=(.*)$", text, re.MULTILINE))
    assert set(shown) == {setting.variable for setting in TABLE}
    assert resolve(environ=shown).settings == resolve(environ={}).settings
