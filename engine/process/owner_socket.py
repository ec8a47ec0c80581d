"""The owner's way in: a unix socket of mode 600 in the state directory, which nobody else can reach.

A unix socket's address holds 107 bytes, less than a path may have. So the directory is opened, and the socket is named
through it as `/proc/self/fd/N/engine.sock`, which always fits. Where /proc is not mounted, the path itself is used and
has to fit.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("tandem.service")

SOCKET_NAME = "engine.sock"
BACKLOG = 128
LONGEST_ADDRESS = 107
"""Bytes of a unix socket's address on Linux, without the zero at its end."""

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class OwnerSocket:
    """A listening socket, and where it lies."""

    path: Path
    socket: socket.socket


@contextmanager
def owner_socket(state_dir: Path) -> Iterator[OwnerSocket | None]:
    """Listen in a state directory that this process holds, until the block ends. What an engine left there that died is
    replaced. None, with a line in the log, where the file system or the path allows no socket: the owner's commands
    then ask over TCP."""
    path = state_dir / SOCKET_NAME
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            listening = _listen(folder, path)
        except OSError as why:
            log.warning("no socket at %s (%s): the commands of this user ask over TCP, as others do", path, _words(why))
            yield None
            return
        try:
            yield OwnerSocket(path, listening)
        finally:
            listening.close()
            # In the directory that was opened: another engine may have made a new one at the same path since.
            _remove(folder)
    finally:
        os.close(folder)


def _listen(folder: int, path: Path) -> socket.socket:
    _remove(folder)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the socket's own mode, so there is no moment in which it is wider.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(_short(folder, path))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _short(folder: int, path: Path) -> str:
    """The socket's address: through its opened directory where /proc is there. Raises OSError where none fits."""
    through = f"/proc/self/fd/{folder}"
    if Path(through).exists():
        return f"{through}/{SOCKET_NAME}"
    if len(os.fsencode(path)) > LONGEST_ADDRESS:
        raise OSError(errno.ENAMETOOLONG, f"the path has over {LONGEST_ADDRESS} bytes and /proc is not mounted")
    return str(path)


def _remove(folder: int) -> None:
    with suppress(OSError):
        os.unlink(SOCKET_NAME, dir_fd=folder)


def _words(why: OSError) -> str:
    return why.strerror or str(why)


def address_for(path: str) -> str:
    """An address by which this process can connect to the socket at `path`, whatever its length. It stays good while
    the directory stays."""
    return path if len(os.fsencode(path)) <= LONGEST_ADDRESS else _through_directory(path)


@functools.lru_cache(maxsize=64)
def _through_directory(path: str) -> str:
    """The directory stays open until the process ends."""
    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return path
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}"


def connect(path: str, timeout_s: float | None) -> socket.socket:
    """A connection to the socket at `path`. Raises OSError."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(timeout_s)
        opened.connect(address_for(path))
    except BaseException:
        opened.close()
        raise
    return opened


def is_owner(peer: socket.socket) -> bool:
    """Whether the process at the other end of a unix connection is this user's, or root's."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return user in (os.geteuid(), 0)
