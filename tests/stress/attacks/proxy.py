"""The world behind a proxy on the same machine: what nginx and Caddy open, plainly configured and as documented.

The documented configurations are taken from docs/operations.md as they stand. Replaced are what a test cannot have:
the engine's port, the proxy's, and the certificate. A proxy that is not installed is left out and said
(`apt-get install nginx-light caddy`).
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.stress.attacks.harness import Harness, RealEngine, Result, Watch
from tests.stress.real_engine import ROOT, Answer, free_port, read_answer

NAME = "llm.example.org"
UP_S = 10.0
ASKED = (
    ("POST", "/admin/drain"),
    ("POST", "/admin/resume"),
    ("GET", "/admin/log"),
    ("GET", "/admin/requests"),
    ("GET", "/metrics"),
    ("GET", "/slots"),
    ("GET", "/health"),
)
CHAT = {
    "messages": [{"role": "user", "content": "Count slowly from one to three hundred."}],
    "max_tokens": 500,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}
NGINX = """daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""
PLAIN_NGINX = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{engine}; }} }}"
PLAIN_CADDY = "http://:{port} {{\n\tbind 127.0.0.1\n\treverse_proxy 127.0.0.1:{engine}\n}}\n"
CADDY_OPTIONS = "{\n\tadmin off\n\tauto_https off\n}\n"


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs. A `secure` one speaks TLS, with a certificate of nobody's."""

    port: int
    secure: bool

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30.0) as plain:
            if not self.secure:
                yield plain
                return
            trusting = ssl.create_default_context()
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            with trusting.wrap_socket(plain, server_hostname=NAME) as secured:
                yield secured

    def ask(self, method: str, path: str, body: bytes = b"", *, secret: str = "") -> Answer:
        with self.connected() as connection:
            connection.sendall(head(method, path, len(body), secret) + body)
            return read_answer(connection)


def head(method: str, path: str, length: int, secret: str, request_id: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {NAME}", f"Content-Length: {length}", "Connection: close"]
    lines += [f"X-Request-Id: {request_id}"] if request_id else []
    lines += [f"Authorization: Bearer {secret}"] if secret else []
    return "\r\n".join([*lines, "", ""]).encode()


def run(harness: Harness) -> list[Result]:
    results = []
    with harness.another(environment={"TANDEM_ALLOWED_HOSTS": NAME}) as other:
        for program in ("nginx", "caddy"):
            for documented in (False, True):
                what = f"{program}, {'as documented' if documented else 'passing on everything'}"
                with other.watch(what, "the engine's inside and controls, a stream, a client that leaves") as watch:
                    if shutil.which(program) is None:
                        watch.note(f"{program} is not installed")
                        continue
                    with tempfile.TemporaryDirectory(prefix="tandem-proxy-") as folder:
                        start = nginx if program == "nginx" else caddy
                        with start(Path(folder), other.engine.port, documented=documented) as proxy:
                            attack(proxy, other.engine, watch)
                            if documented:
                                stream(proxy, other.engine, watch)
                results.append(watch.result)
    return results


def attack(proxy: Proxy, engine: RealEngine, watch: Watch) -> None:
    """A stranger asks, and one with an API key."""
    opened = []
    for secret in ("", engine.key):
        for method, path in ASKED:
            answer = proxy.ask(method, path, secret=secret)
            closed = answer.status in (401, 403, 404) or (path == "/health" and not answer.body)
            watch.expect(closed, f"{method} {path} is open: {answer.status}, {answer.body[:60]!r}")
            opened.append(f"{path} {answer.status}" if closed else f"{path} OPEN")
    watch.note(", ".join(dict.fromkeys(opened)))
    watch.expect(engine.get("/health").json()["status"] == "ok", "the engine drains")
    for secret, status in (("", 401), (engine.key, 200)):
        found = proxy.ask("GET", "/v1/models", secret=secret).status
        watch.expect(found == status, f"/v1/models {'with' if secret else 'without'} a key: {found}")


def stream(proxy: Proxy, engine: RealEngine, watch: Watch) -> None:
    """An answer comes piece by piece, the engine hears a client leave, and a body over the limit does not pass.

    Both of the first are shown by the request's end: it is `abandoned`, so the pieces came while it was being written.
    """
    name = f"through-a-proxy-{secrets.token_hex(4)}"
    body = json.dumps(CHAT).encode()
    with proxy.connected() as connection:
        connection.sendall(head("POST", "/v1/chat/completions", len(body), engine.key, name) + body)
        read_until(connection, b'"content":')
        pieces = sum(1 for _ in range(20) if connection.recv(1 << 16))
        watch.expect(pieces == 20, f"only {pieces} pieces came")
    deadline = time.monotonic() + UP_S
    while not (rows := engine.get(f"/admin/requests?q={name}").json()["rows"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    finish = rows[0]["finish"] if rows else f"not ended after {UP_S:g} s"
    watch.expect(finish == "abandoned", f"a stream that was left after {pieces} pieces: {finish}")
    watch.note(f"a stream unbuffered, left after {pieces} pieces: {finish}")
    # A proxy may close before all of it is sent, where the answer is lost.
    with contextlib.suppress(OSError):
        over = proxy.ask("POST", "/v1/chat/completions", b" " * (16 << 20) + b"{}", secret=engine.key)
        watch.expect(over.status in (0, 413), f"a body over the limit got {over.status}")
        watch.note(f"a body over the limit {over.status}")


def read_until(connection: socket.socket, words: bytes) -> bytes:
    got = b""
    while words not in got:
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError(f"it ended with {got[-200:]!r}")
        got += part
    return got


@contextmanager
def nginx(folder: Path, engine: int, *, documented: bool) -> Iterator[Proxy]:
    port = free_port()
    server = PLAIN_NGINX.format(port=port, engine=engine)
    if documented:
        certificate(folder)
        server = replaced(
            documented_block("nginx"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
            ("/etc/ssl/llm.example.org.pem", f"{folder}/cert.pem"),
            ("/etc/ssl/llm.example.org.key", f"{folder}/cert.key"),
            ("127.0.0.1:8000", f"127.0.0.1:{engine}"),
        )
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, server=server))
    with proxying(["nginx", "-c", str(config), "-p", str(folder)], folder, Proxy(port, documented)) as proxy:
        yield proxy


@contextmanager
def caddy(folder: Path, engine: int, *, documented: bool) -> Iterator[Proxy]:
    port = free_port()
    server = PLAIN_CADDY.format(port=port, engine=engine)
    if documented:
        certificate(folder)
        server = replaced(
            documented_block("caddyfile"),
            (
                "llm.example.org {",
                f"https://llm.example.org:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/cert.pem {folder}/cert.key",
            ),
            ("127.0.0.1:8000", f"127.0.0.1:{engine}"),
        )
    config = folder / "Caddyfile"
    config.write_text(CADDY_OPTIONS + server)
    with proxying(["caddy", "run", "--config", str(config)], folder, Proxy(port, documented)) as proxy:
        yield proxy


def documented_block(language: str) -> str:
    """The configuration of docs/operations.md."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert isinstance(block, str)
    return block


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        if text.count(old) != 1:
            raise AssertionError(f"the documented configuration has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    return text


def certificate(folder: Path) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    words += ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", f"{folder}/cert.key", "-out", f"{folder}/cert.pem"]
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def proxying(command: list[str], folder: Path, proxy: Proxy) -> Iterator[Proxy]:
    """Run the proxy until the block ends. Raises AssertionError where it does not come up."""
    log = folder / "proxy.log"
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, env=environment)
    try:
        deadline = time.monotonic() + UP_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=1.0):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{command[0]} did not come up: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)
        yield proxy
    finally:
        process.terminate()
        try:
            process.wait(UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
