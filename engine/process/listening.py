"""The sockets a service listens on: bound before anything is loaded, both loopback families at once."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from engine.process.locks import process_words

_LOOPBACK = {"localhost": ("127.0.0.1", "::1"), "127.0.0.1": ("127.0.0.1", "::1"), "::1": ("::1", "127.0.0.1")}
_EVERY = {"0.0.0.0": ("0.0.0.0",), "::": ("::", "0.0.0.0")}
_AS_SEEN_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_TRIES_FOR_A_FREE_PORT = 20
BACKLOG = 1024
"""Connections that the kernel holds until they are accepted; a client beyond them tries again after a second."""

RECEIVE_BUFFER_BYTES = 256 << 10
"""Of what a client sends and is not read yet, what the kernel keeps for each connection (it doubles the figure); it
would grow to megabytes by itself, which no limit on bodies counts."""

SEND_BUFFER_BYTES = 128 << 10
"""Of an answer that its client does not read, what the kernel keeps for each connection (it doubles the figure); it
would grow to megabytes by itself."""


class PortInUse(Exception):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int, pid: int | None) -> None:
        super().__init__(f"port {port} on {host} is held by {process_words(pid)}; stop it or choose another --port")
        self.host = host
        self.port = port
        self.pid = pid


class HostNotAllowed(Exception):
    """The host is not a loopback one, and no API key keeps strangers out."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"--host {host} lets other machines in, and there is no API key: `tandem secrets add LABEL` makes one; "
            "or use 127.0.0.1"
        )
        self.host = host


@dataclass(frozen=True, slots=True)
class Listening:
    """Bound, listening sockets, and the address that clients are told."""

    host: str
    port: int
    sockets: list[socket.socket]

    @property
    def url(self) -> str:
        """For clients on this machine, which an address that stands for all of them does not name."""
        host = _AS_SEEN_HERE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def close(self) -> None:
        for opened in self.sockets:
            opened.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`: `localhost` and loopback addresses."""
    if host in _LOOPBACK:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def bind(host: str, port: int) -> Listening:
    """Bind and listen. `localhost`, 127.0.0.1 and ::1 take both families, so that two engines cannot share a port by
    taking one each; a box without IPv6 serves the other alone, and so does `::`. Port 0 takes a free one. Raises
    PortInUse.
    """
    hosts = _LOOPBACK.get(host) or _EVERY.get(host, (host,))
    for _ in range(_TRIES_FOR_A_FREE_PORT if port == 0 else 1):
        try:
            return _bind_all(hosts, port)
        except PortInUse as error:
            in_use = error
    raise in_use


def _bind_all(hosts: tuple[str, ...], port: int) -> Listening:
    opened: list[socket.socket] = []
    served: list[str] = []
    try:
        for host in hosts:
            try:
                opened.append(_bind_one(host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(host, port, holder_of(port)) from None
                if error.errno in _NO_SUCH_FAMILY and len(hosts) > 1:
                    continue
                raise
            served.append(host)
            port = opened[0].getsockname()[1]
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, f"no address of {', '.join(hosts)} can be bound")
    except BaseException:
        for one in opened:
            one.close()
        raise
    return Listening(served[0], port, opened)


def _bind_one(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What a listening socket has, the connections that it accepts have too.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((host, port))
        one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


def holder_of(port: int) -> int | None:
    """The process that listens on the port, where this user may see it."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return int(connection.pid) if connection.pid else None
    return None
