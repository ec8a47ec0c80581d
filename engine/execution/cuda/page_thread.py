"""The thread that maps and unmaps a GPU's pages beside the rounds: what is asked for goes before what goes back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto

POLL_S = 0.001
"""How often pages that wait for the device are looked at."""


class Progress(Enum):
    """What a step of work did: there is more of it, it must wait for the device, or it is over."""

    MORE = auto()
    WAITING = auto()
    OVER = auto()


class PageThread:
    """One thread with two queues. `soon` runs work in order; `later` runs work of small steps, one step at a time while
    nothing is wanted soon, so that a round's pages never wait for more than a step.

    It starts with the first work and ends when as many `detach` as `attach` calls have come, or with the process. Any
    thread may call it.
    """

    def __init__(self, name: str = "tandem-pages") -> None:
        self._name = name
        self._change = threading.Condition()
        self._soon: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._later: deque[Callable[[], Progress]] = deque()
        self._users = 0
        self._thread: threading.Thread | None = None

    def attach(self) -> None:
        with self._change:
            self._users += 1

    def detach(self) -> None:
        """The last one to leave ends the thread; its own queued work must be over then, or be dropped."""
        with self._change:
            self._users -= 1
            if self._users:
                return
            self._change.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._change:
            self._thread = None
            self._later.clear()

    def soon(self, work: Callable[[], None]) -> Future[None]:
        """Run `work` after what was wanted soon before it. The future has its failure."""
        future: Future[None] = Future()
        with self._change:
            self._soon.append((future, work))
            self._wake()
        return future

    def later(self, step: Callable[[], Progress]) -> None:
        """Call `step`, which raises nothing, until it is over; steps queued before it are over by then."""
        with self._change:
            self._later.append(step)
            self._wake()

    def wait_until_idle(self) -> None:
        """Wait until all steps are over. From the thread itself: do them."""
        if threading.current_thread() is not self._thread:
            with self._change:
                self._change.wait_for(lambda: not self._later)
            return
        while self._later:
            if self._step() is Progress.WAITING:
                time.sleep(POLL_S)

    def _wake(self) -> None:
        if self._thread is None:
            # A daemon: a pool that nobody closed must not keep the process.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._change.notify_all()

    def _run(self) -> None:
        waiting = False
        while True:
            with self._change:
                if waiting and not self._soon and self._users:
                    self._change.wait(POLL_S)
                self._change.wait_for(lambda: self._soon or self._later or not self._users)
                wanted = self._soon.popleft() if self._soon else None
                if wanted is None and not self._users:
                    return
            if wanted is None:
                waiting = self._step() is Progress.WAITING
            else:
                _run(*wanted)

    def _step(self) -> Progress:
        """One step of the oldest work. Only this thread takes from the queue."""
        progress = self._later[0]()
        if progress is Progress.OVER:
            with self._change:
                self._later.popleft()
                self._change.notify_all()
        return progress


def _run(future: Future[None], work: Callable[[], None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as failure:  # noqa: BLE001 - handed to whoever asks the future
        future.set_exception(failure)
    else:
        future.set_result(None)
