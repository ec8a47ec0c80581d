"""Ctrl-C while a coroutine runs: it cancels the coroutine, also while that is being set up or ends.

Python raises KeyboardInterrupt between any two instructions, also while an event loop is being made. Here Ctrl-C only
cancels the task that runs. `asyncio.Runner` does so for the first of several: one conversation of 200 answers ended.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """Main thread only. Between `hold` and `release` Ctrl-C raises nothing, and so within `held`."""

    def __init__(self) -> None:
        self._came = False
        self._stop: Callable[[], object] | None = None

    def hold(self) -> None:
        """From now on Ctrl-C is noted."""
        self._came = False
        signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """From now on Ctrl-C raises KeyboardInterrupt again."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    def run(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` to its end; False where Ctrl-C, since `hold`, stopped it. Raises what `work` raises."""
        try:
            asyncio.run(self._stoppable(work))
        except asyncio.CancelledError:
            return False
        return True

    async def _stoppable(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            if self._came:
                task.cancel()
            await task
        finally:
            self._stop = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            if self._stop is not None:
                self._stop()
