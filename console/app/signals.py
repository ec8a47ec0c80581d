"""The signals of a console's process, each answered by its loop: the end, a stop of the terminal, a new size."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from textual.driver import Driver


def hear_signals(leave: Callable[[int], None], driver: Driver | None) -> None:
    """Answer signals from now on, in the running loop. `leave` ends the app with an exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, 128 + number)
    if driver is not None and driver.can_suspend and signal.getsignal(signal.SIGCONT) != signal.SIG_DFL:
        loop.add_signal_handler(signal.SIGCONT, _continued, driver)
    _resized_by_the_loop()


def _continued(driver: Driver) -> None:
    """Take the terminal back after a stop. One by SIGSTOP comes without warning: its reader of the keyboard still runs,
    and a second one beside it would take some of the keys and never end. Called by the loop, so never within itself."""
    if not getattr(driver, "_must_signal_resume", False):
        driver.suspend_application_mode()
    driver.resume_application_mode()
    _resized_by_the_loop()


def _resized_by_the_loop() -> None:
    """Have the driver's handler of a resize called by the loop. Where one interrupts another, the outer would tell the
    size that it read before last, and the picture would keep it."""
    handler = signal.getsignal(signal.SIGWINCH)
    if callable(handler):
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, handler, signal.SIGWINCH, None)
