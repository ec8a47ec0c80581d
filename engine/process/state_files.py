"""Files of a state directory that a service can do without: what a full or read-only disk does not take is said."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from engine.process.private_files import open_private, write_private


def try_write(path: Path, body: bytes) -> str | None:
    """Write a file whole or not at all; a sentence where it could not be written, else None. Then no file of an earlier
    time is left to mislead, unless the directory is read-only.

    A disk that has no room for a second copy still takes what fits the present file's blocks. A reader may then see
    both bodies mixed for an instant, which decodes as neither.
    """
    try:
        write_private(path, body)
        return None
    except OSError as why:
        failure = why
    try:
        descriptor = open_private(path, os.O_WRONLY)
        try:
            write_over(descriptor, body)
        finally:
            os.close(descriptor)
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return unwritten(path, failure)
    return None


def write_over(descriptor: int, body: bytes) -> None:
    """Replace the contents of an open file. Its blocks are given back only after they have been written over. Raises
    OSError."""
    view = memoryview(body)
    at = 0
    while at < len(body):
        at += os.pwrite(descriptor, view[at:], at)
    os.ftruncate(descriptor, len(body))


def unwritten(path: Path, why: OSError) -> str:
    return f"{path} could not be written: {why.strerror or why}"
