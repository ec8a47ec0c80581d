"""What every test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


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
