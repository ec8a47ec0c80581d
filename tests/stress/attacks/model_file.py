"""A model file that changes under its engine: overwritten, truncated, replaced, while it serves and while it loads."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.stress.attacks.harness import EngineDied, Harness, Result
from tests.support.models import default_model

BLOCK = 1 << 20
LOAD_DELAYS_S = (0.8, 1.2, 1.7, 2.5)
"""When the file is cut, after the process was started: before it is opened, while it is read, or once it is served."""

CLEAR = "the model could not be loaded: "


def run(harness: Harness) -> list[Result]:
    del harness
    folder = Path(tempfile.mkdtemp(prefix="tandem-model-"))
    try:
        model = folder / "model.gguf"
        shutil.copy(default_model(), model)
        with Harness.open(model=model) as other:
            serving = _while_serving(other, model)
            return [serving, _while_loading(other, folder)] if other.engine.alive else [serving]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _while_serving(harness: Harness, model: Path) -> Result:
    with harness.watch("the model file changes under the engine", ", ".join(CHANGES)) as watch:
        for name, change in CHANGES.items():
            change(model)
            watch.expect(harness.ask() == harness.alone, f"{name}: an answer beside the neighbour differs")
    return watch.result


def _while_loading(harness: Harness, folder: Path) -> Result:
    """Other engines load a file that is cut meanwhile; each serves, or ends with a sentence."""
    with harness.watch("the model file is cut while it loads", f"{len(LOAD_DELAYS_S)} starts") as watch:
        for number, delay_s in enumerate(LOAD_DELAYS_S):
            path = folder / f"loading-{number}.gguf"
            shutil.copy(default_model(), path)
            timer = threading.Timer(delay_s, os.truncate, (path, BLOCK))
            timer.start()
            try:
                with Harness.open(model=path) as other:
                    watch.expect(other.alone == harness.alone, "an engine that came up answers differently")
                    watch.note(f"cut after {delay_s} s: serves")
            except EngineDied as why:
                _, clear, reason = str(why).partition(CLEAR)
                watch.expect(bool(clear), f"cut after {delay_s} s, it ended with {why}")
                watch.note(f"cut after {delay_s} s: {reason.partition('.gguf: ')[2][:60]}")
            finally:
                timer.join()
                path.unlink()
    return watch.result


def _overwrite(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(size // BLOCK + 1):
            file.write(b"\xff" * BLOCK)


def _truncate(path: Path) -> None:
    os.truncate(path, 0)


def _copy_over(path: Path) -> None:
    """What `cp other path` does: truncates, then writes into the same file."""
    shutil.copyfile(default_model(), path)


def _replace(path: Path) -> None:
    beside = path.with_name("beside.gguf")
    beside.write_bytes(b"\xff" * BLOCK)
    beside.replace(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "overwritten": _overwrite,
    "truncated": _truncate,
    "copied over": _copy_over,
    "replaced": _replace,
}
