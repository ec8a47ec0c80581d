"""A service over a scripted engine in a process of its own: `python -m tests.engine.service_process DIR PORT MODE`.

Modes: `hello` answers at once; `hold` streams one piece and then waits for its client or the drain's end; `slow` ends
its stream once the drain has begun and DIR holds a file `finish`; `broken` fails to load; `compiling` is never done
loading; `garbage` says whether garbage is searched for while it loads, and then; `opening` never gets as far as an
engine.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from pathlib import Path

from engine.config import EngineConfig, ServiceConfig
from engine.request import Admitted, Text
from engine.service import run
from tests.support.scripted_engine import ScriptedEngine, Ticket, say_hello


class Owned(ScriptedEngine):
    """A scripted engine with a life to run."""

    def __init__(self, mode: str, folder: Path) -> None:
        super().__init__({"hold": self._hold, "slow": self._slow}.get(mode, say_hello))
        self._mode = mode
        self._finish = folder / "finish"

    def _hold(self, ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9), Text(0, "begun", 1))
        ticket.cancelled.wait(30)

    def _slow(self, ticket: Ticket) -> None:
        ticket.put(Admitted(0, 0, 9), Text(0, "begun", 1))
        while not (self.draining and self._finish.exists()):
            time.sleep(0.01)
        ticket.finish(" ended")

    def start(self) -> None:
        print("started", flush=True)

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        if self._mode == "compiling":
            return threading.Event().wait(timeout_s)
        if self._mode == "broken":
            raise ValueError("the file's magic is wrong:\nnot a model")
        if self._mode == "garbage":
            print("searching" if gc.isenabled() else "not searching", flush=True)
            threading.Thread(target=self._say_when_settled, daemon=True).start()
        return True

    def _say_when_settled(self) -> None:
        while not gc.isenabled():
            time.sleep(0.01)
        print("searching among what is new" if gc.get_freeze_count() else "searching", flush=True)

    def close(self, timeout_s: float) -> None:
        print("closed", flush=True)


def main() -> int:
    folder, port, mode = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    config = EngineConfig(model=Path("none"), model_name="scripted", state_dir=Path(folder))
    service = ServiceConfig(port=int(port), drain_timeout_s=0.5 if mode == "hold" else 10.0)
    return run(config, service, open_engine=_never if mode == "opening" else lambda _: Owned(mode, Path(folder)))


def _never(config: EngineConfig) -> Owned:
    print("started", flush=True)
    time.sleep(30)
    raise AssertionError(f"{config.model_name} was to be stopped before")


if __name__ == "__main__":
    sys.exit(main())
