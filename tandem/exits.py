"""The exit codes of every command, and the exception that carries one out."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a script may rely on."""

    OK = 0
    FAILURE = 1
    """A damaged model, a crash, texts that differ in a check."""
    USAGE = 2
    """A flag, setting or settings file that does not parse, an unknown model name, a bind that needs API keys."""
    NOT_RUNNING = 3
    NOT_READY = 4
    """Not ready in time."""
    REFUSED = 5
    """Port or lock held, a plan step refused, a bench level not proven."""
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with one message on stderr and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
