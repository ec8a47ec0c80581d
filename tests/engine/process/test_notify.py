"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from engine.process.notify import SILENT_LOAD_S, Notifier
from engine.process.standstill import STUCK_S, standstill
from engine.protocol import Health, Loading, Status
from tests.support import fake_health

LOADING = Loading(stage="packing weights", done_bytes=5, total_bytes=10, eta_s=None)


def serving(**changes: object) -> Health:
    return msgspec.structs.replace(fake_health.busy(0.0), snapshot_age_s=0.1, last_progress_age_s=0.1, **changes)


def loading() -> Health:
    return serving(status=Status.LOADING, loading=LOADING)


@contextmanager
def systemd(name: str) -> Iterator[socket.socket]:
    """The end that listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + name[1:] if name.startswith("@") else name)
        end.settimeout(5)
        yield end


def heard(end: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in end.recv(4096).decode().splitlines())


@pytest.mark.parametrize("abstract", [True, False])
def test_a_datagram_arrives(tmp_path: Path, abstract: bool) -> None:
    name = f"@tandem-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with systemd(name) as end:
        Notifier(name).stopping(45)
        assert heard(end) == {"STOPPING": "1", "STATUS": "ending", "EXTEND_TIMEOUT_USEC": "45000000"}


@pytest.mark.parametrize("name", [None, "", "relative", "/no/such/socket", "@nobody-listens-here"])
def test_nobody_listens(name: str | None) -> None:
    Notifier(name).tell(READY=1)


def test_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}.items():
        monkeypatch.setenv(key, value)
    assert Notifier.take() == Notifier("@x", 6.0)
    assert "NOTIFY_SOCKET" not in os.environ
    assert Notifier.take() == Notifier(None, None)


@pytest.mark.parametrize("values", [{"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_PID": "1"}])
def test_a_watchdog_that_is_not_for_us(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for key, value in ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "6000000"} | values).items():
        monkeypatch.setenv(key, value)
    assert Notifier.take() == Notifier("@x", None)


class Told:
    """The state that `keep_told` looks at, one after another, and its clock."""

    def __init__(self, *states: Health, seconds_each: float = 1.0) -> None:
        self._states = list(states)
        self._each = seconds_each
        self._at = 0.0

    def health(self) -> Health:
        if not self._states:
            raise asyncio.CancelledError
        self._at += self._each
        return self._states.pop(0)

    def clock(self) -> float:
        return self._at


def told(
    name: str, *states: Health, watchdog_s: float | None = 0.003, seconds_each: float = 1.0
) -> list[dict[str, str]]:
    """What systemd hears while the engine passes through the states."""
    with systemd(name) as end:
        seen = Told(*states, seconds_each=seconds_each)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(Notifier(name, watchdog_s).keep_told(seen.health, seen.clock))
        end.setblocking(False)
        found = []
        try:
            while True:
                found.append(heard(end))
        except BlockingIOError:
            return found


NAME = f"@tandem-notify-{os.getpid()}"


def test_loading_asks_for_time_and_then_it_is_ready() -> None:
    first, status, ready, alive = told(NAME, loading(), serving())
    assert list(first) == ["EXTEND_TIMEOUT_USEC"]
    assert status == {"STATUS": "loading: packing weights"}
    assert ready["READY"] == "1"
    assert ready["STATUS"].startswith("ok: ")
    assert alive == {"WATCHDOG": "1"}


def test_ready_is_said_once_and_the_watchdog_each_time() -> None:
    found = told(NAME, *[serving()] * 3)
    assert sum("READY" in one for one in found) == 1
    assert sum("WATCHDOG" in one for one in found) == 3


def test_a_stuck_engine_thread_is_not_spoken_for() -> None:
    stuck = msgspec.structs.replace(serving(), snapshot_age_s=STUCK_S + 1)
    found = told(NAME, serving(), stuck, stuck)
    assert sum("WATCHDOG" in one for one in found) == 1
    assert found[-1]["STATUS"].startswith("stuck: the engine thread has not turned for 121 s")


def test_without_a_watchdog_nothing_is_said_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.process.notify.EVERY_S", 0.001)
    assert all("WATCHDOG" not in one for one in told(NAME, serving(), watchdog_s=None))


def test_a_load_without_progress_gets_no_time_for_ever() -> None:
    found = told(NAME, *[loading()] * 5, seconds_each=SILENT_LOAD_S / 3)
    assert sum("EXTEND_TIMEOUT_USEC" in one for one in found) < 5


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({}, True),
        ({"status": Status.STALLED, "last_progress_age_s": 40.0}, True),
        ({"status": Status.STALLED, "last_progress_age_s": STUCK_S + 1}, False),
        ({"snapshot_age_s": STUCK_S + 1}, False),
        ({"status": Status.DRAINING, "snapshot_age_s": STUCK_S + 1}, True),
        ({"status": Status.LOADING, "snapshot_age_s": STUCK_S + 1}, True),
    ],
)
def test_what_counts_as_standing_still(changes: dict[str, object], moves: bool) -> None:
    assert (standstill(msgspec.structs.replace(serving(), **changes)) is None) is moves
