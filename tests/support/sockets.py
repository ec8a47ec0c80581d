"""Reading from a raw socket in tests."""

from __future__ import annotations

import socket
from collections.abc import Callable


def heard_until(opened: socket.socket, reached: bytes | Callable[[bytearray], bool]) -> bytes:
    """What comes until it holds the bytes, or until `reached` says so. A connection that ends before is a failure, and
    so is silence for as long as the socket's timeout."""
    heard = bytearray()
    while not (reached in heard if isinstance(reached, bytes) else reached(heard)):
        part = opened.recv(1 << 20)
        assert part, f"the connection ended before {reached!r}: {bytes(heard[-2000:])!r}"
        heard += part
    return bytes(heard)
