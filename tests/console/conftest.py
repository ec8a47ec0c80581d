"""What every console test stands on: one time zone, so that times of day are everywhere the same, and SVG pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.image import SVGImageSnapshotExtension


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def quick_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question may be answered as soon as it is seen."""
    monkeypatch.setattr("console.widgets.confirm.MOMENT_S", 0.0)


@pytest.fixture
def picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> SnapshotAssertion:
    """Compares with an approved picture, in colour unless the test sets NO_COLOR."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    return snapshot.use_extension(SVGImageSnapshotExtension)
