"""What every test leaves as it found it; Triton kernels run in its interpreter where there is no CUDA device."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import torch

# Before any kernel is imported: it is made for a GPU or for the interpreter once and for all.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell makes what it starts in the background deaf to Ctrl-C, and what that starts as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What needs more than a checkout, such as a browser or a model of a gigabyte.
APART = tuple(Path(__file__).parent / path for path in ("web", "exactness/test_large_model.py"))


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command run in the test's own process sends log lines to its stderr, which is gone after the test."""
    root, server = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level, server_level = root.handlers[:], root.level, server.level
    yield
    # In place: pytest adds and removes handlers of its own around this.
    root.handlers[:] = [h for h in root.handlers if type(h) is not logging.StreamHandler] + [
        h for h in handlers if h not in root.handlers
    ]
    root.setLevel(level)
    server.setLevel(server_level)
    structlog.reset_defaults()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is run apart from the rest is collected only where it is asked for by name."""
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    if collection_path in APART and not any(path.is_relative_to(collection_path) for path in asked):
        return True
    return None
