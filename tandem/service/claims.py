"""Who may run an engine where: one supervisor a port and a state directory, and nobody while the box is held."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.process.locks import Held, held, holder, process_words
from engine.process.state_dir import StateDirUnusable, prepare
from tandem.exits import CommandError, Exit
from tandem.settings.paths import SUPERVISOR_LOCK, state_root

_PR_SET_PDEATHSIG = 1


def port_lock(port: int) -> Path:
    return state_root() / "ports" / f"{port}.lock"


def hold_lock() -> Path:
    return state_root() / "hold.lock"


@contextmanager
def claimed(port: int, state_dir: Path) -> Iterator[None]:
    """Hold the state directory and the port for this supervisor, also while its engine is down. Port 0 is whichever is
    free, so no other can claim it. Raises CommandError (exit 5; 2 where the directory cannot be used)."""
    try:
        prepare(state_dir)
    except StateDirUnusable as why:
        raise CommandError(str(why), Exit.USAGE) from why
    with ExitStack() as stack:
        try:
            stack.enter_context(held(state_dir / SUPERVISOR_LOCK))
            if port:
                stack.enter_context(held(port_lock(port)))
        except Held:
            # Release the locks of this process first, or the check would find them.
            stack.close()
            check_unclaimed(port, state_dir)
            raise CommandError(f"the supervisor of {state_dir} has just begun", Exit.REFUSED) from None
        yield


def check_unclaimed(port: int, state_dir: Path) -> None:
    """Raises CommandError (exit 5) where another supervisor has the state directory or the port, or the box is held."""
    if (pid := holder(state_dir / SUPERVISOR_LOCK)) is not None:
        raise CommandError(
            f"the state directory {state_dir} is held by {process_words(pid)}, which supervises an engine there; "
            "`tandem stop` ends both, or choose another --state-dir",
            Exit.REFUSED,
        )
    if port and (pid := holder(port_lock(port))) is not None:
        raise CommandError(
            f"port {port} is held by {process_words(pid)}, which supervises an engine on it; "
            "`tandem stop` ends both, or choose another --port",
            Exit.REFUSED,
        )
    pid = holder(hold_lock())
    if pid is not None and not (pid and _comes_from(pid)):
        raise CommandError(
            f"the box is held by {process_words(pid)} (`tandem hold`), which starts the engine again when its command "
            "is done",
            Exit.REFUSED,
        )


def _comes_from(pid: int) -> bool:
    """Whether this process is the process `pid` or one of its descendants."""
    import psutil

    return pid == os.getpid() or any(parent.pid == pid for parent in psutil.Process().parents())


def end_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends, so that no engine outlives its supervisor or
    the command that it serves alone. `parent` is the process that started this one; it may have ended meanwhile."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
