"""Sockets: both loopback families at once, a taken port named with its holder, strangers' hosts refused."""

from __future__ import annotations

import os
import socket

import pytest

from engine.process.listening import RECEIVE_BUFFER_BYTES, PortInUse, bind, is_loopback
from tests.support.patience import LONG_S

IPV6 = socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")


@pytest.mark.parametrize("first", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize("second", ["127.0.0.1", "localhost", "::1"])
def test_one_port_has_one_holder(first: str, second: str) -> None:
    if "::1" in (first, second) and not IPV6:
        pytest.skip("this box has no IPv6")
    held = bind(first, 0)
    try:
        assert len(held.sockets) == (2 if IPV6 else 1)
        with pytest.raises(PortInUse, match=f"port {held.port} .* held by this process itself"):
            bind(second, held.port)
    finally:
        held.close()
    bind(second, held.port).close()


def test_nothing_stays_open_after_a_refusal() -> None:
    """Only one family is taken: the other, bound first, is let go again."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUse):
            bind("::1" if IPV6 else "127.0.0.1", port)
        if IPV6:
            with socket.create_server(("::1", port), family=socket.AF_INET6):
                pass


def test_the_kernel_keeps_little_of_what_is_not_read() -> None:
    held = bind("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", held.port)):
            accepted, _ = held.sockets[0].accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 2 * RECEIVE_BUFFER_BYTES
    finally:
        held.close()


def test_urls() -> None:
    for host in ("127.0.0.1", "127.0.0.5"):
        held = bind(host, 0)
        assert held.url == f"http://{host}:{held.port}"
        held.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_told_as_this_machine_sees_it(host: str) -> None:
    if host == "::" and not IPV6:
        pytest.skip("this box has no IPv6")
    held = bind(host, 0)
    try:
        assert held.url == f"http://{'[::1]' if host == '::' else '127.0.0.1'}:{held.port}"
        for there in ("127.0.0.1", *(("::1",) if host == "::" else ())):
            socket.create_connection((there, held.port), timeout=LONG_S).close()
    finally:
        held.close()


def test_loopback_hosts() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.8.8.8", "::1", "::ffff:127.0.0.1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.5", "128.0.0.1", "box.lan", ""))
