"""Makes threads late, so that a test that races one fails at once: `pytest -p tests.stress.late_threads PATH`.

Every thread but the main one sleeps for `LATE_S` (environment, 0.02 by default) when it starts, when it wakes up from a
wait, and before each piece of work that a pool or another thread's event loop hands it. `LATE_WHO=main` makes the main
thread late instead: it then finds that everything happened before it looked. A test's sleeps sum up to `BUDGET_S`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread as pools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

LATE_S = float(os.environ.get("LATE_S", "0.02"))
MAIN_IS_LATE = os.environ.get("LATE_WHO") == "main"
BUDGET_S = 2.0


class _Budget:
    left_s = BUDGET_S


def _be_late() -> None:
    if (threading.current_thread() is threading.main_thread()) is MAIN_IS_LATE and _Budget.left_s > 0:
        _Budget.left_s -= LATE_S
        time.sleep(LATE_S)


def _late_first(function: Callable[..., Any]) -> Callable[..., Any]:
    def late(*args: Any, **kwargs: Any) -> Any:
        _be_late()
        return function(*args, **kwargs)

    return late


def _late_after_wait(wait: Callable[..., bool]) -> Callable[..., bool]:
    def late(self: Any, timeout: float | None = None) -> bool:
        woken = wait(self, timeout)
        # Without the lock: whoever holds it while sleeping makes others late instead.
        held = self._release_save()
        try:
            _be_late()
        finally:
            self._acquire_restore(held)
        return woken

    return late


def _late_start(start: Callable[..., None]) -> Callable[..., None]:
    def late(self: threading.Thread) -> None:
        self.run = _late_first(self.run)  # type: ignore[method-assign]
        start(self)
        _be_late()

    return late


def _late_callbacks(call: Callable[..., Any]) -> Callable[..., Any]:
    def late(self: Any, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return call(self, _late_first(callback), *args, **kwargs)

    return late


def pytest_configure() -> None:
    threading.Thread.start = _late_start(threading.Thread.start)  # type: ignore[method-assign]
    threading.Condition.wait = _late_after_wait(threading.Condition.wait)  # type: ignore[method-assign]
    pools._WorkItem.run = _late_first(pools._WorkItem.run)  # type: ignore[attr-defined]
    loop = asyncio.BaseEventLoop
    loop.call_soon_threadsafe = _late_callbacks(loop.call_soon_threadsafe)  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _Budget.left_s = BUDGET_S
