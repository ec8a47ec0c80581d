"""The console in a real browser: who gets in, what is seen, keys, sizes, several tabs, and what is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.web.browser import ROWS, WAIT_S, Tab
from tests.web.conftest import Served, served, stage

# A folder that takes a picture for the docs.
PICTURES = os.environ.get("TANDEM_WEB_PICTURES")


async def entered(tab: Tab, console: Served) -> str:
    """What the tab shows once it has gone through the token."""
    await tab.open(console.url)
    return await tab.wait_for("waits for memory")


async def gone(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
            await asyncio.sleep(0.05)


def test_the_token_lets_in_and_the_console_lives_in_the_tab(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as (browser, console, _):
            tab = await browser.tab()
            await tab.open(console.origin + "/")
            await tab.wait_for_page("open the address that `tandem console --web` printed")
            assert tab.answers[0] == (console.origin + "/", 401)

            text = await entered(tab, console)
            for words in ("tandem", "opencode", "日本語クライアント", "Writing, ", "aider", "GiB free of 24.0 GiB"):
                assert words in text
            assert await tab.evaluate("location.href") == console.origin + "/"
            assert await tab.evaluate("document.cookie") == ""
            assert [answer for answer in tab.answers if answer[1] not in (200, 204, 401)] == []
            assert all(url.startswith(console.origin) for url, _ in tab.answers)
            picture = await tab.picture()
            assert await (await browser.tab()).colours(picture) > 50
            if PICTURES:
                (Path(PICTURES) / "console-web.png").write_bytes(picture)

            await tab.press("3")
            await tab.wait_for("memory is almost full")
            await tab.press("1")
            await tab.wait_for("kv pool")

            columns = await tab.evaluate("__terminal.cols")
            await tab.resize(600, 400)
            await tab.until(f"__terminal.cols < {columns}")
            await tab.until(f"{ROWS}.split('\\n')[0].trimEnd().endsWith('live')")

            second = await browser.tab()
            await second.open(console.origin + "/")
            await second.wait_for("waits for memory")
            assert len(console.children()) == 2
            await second.press("q")
            await second.wait_for_page("The console of this tab has ended.")
            assert "tandem" in await tab.text()

    asyncio.run(run())


def test_a_closed_tab_and_a_told_server_leave_no_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as (browser, console, _):
            first, second = await browser.tab(), await browser.tab()
            await entered(first, console)
            before = console.children()
            await entered(second, console)
            added = [child for child in console.children() if child not in before]
            assert len(before) == len(added) == 1
            token = console.url.partition("token=")[2]
            for process in psutil.process_iter():
                assert token not in " ".join(process.cmdline())
            await second.close()
            await gone(added)
            assert before[0].is_running()
            code, said = await console.end()
            assert (code, said) == (0, "")
            await gone(before)

    asyncio.run(run())


def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as (browser, console, _):
            tab = await browser.tab()
            await entered(tab, console)
            children = console.children()
            assert len(children) == 1
            await console.end(signal.SIGKILL)
            await gone(children)

    asyncio.run(run())


@contextmanager
def foreign_page() -> Iterator[str]:
    """Another site on this box."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def test_another_page_gets_nothing_though_its_requests_carry_the_cookie(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as (browser, console, _):
            tab = await browser.tab()
            await entered(tab, console)
            assert len(console.children()) == 1
            with foreign_page() as elsewhere:
                other = await browser.tab()
                await other.open(elsewhere)
                socket = f"new WebSocket('ws{console.origin[4:]}/ws?width=80&height=24')"
                told = await other.evaluate(
                    f"new Promise(done => {{ const socket = {socket};"
                    " socket.onopen = () => done('open'); socket.onclose = () => done('closed'); })"
                )
                assert told == "closed"
                framed = f"const frame = document.createElement('iframe'); frame.src = '{console.origin}/';"
                await other.evaluate(framed + " document.body.append(frame); new Promise(done => frame.onload = done)")
            assert len(console.children()) == 1
            assert "tandem" in await tab.text()

    asyncio.run(run())


def test_what_a_client_without_a_browser_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            served("http://127.0.0.1:9") as console,
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client,
        ):
            own = {"Origin": console.origin}

            async def status(path: str, **headers: str) -> int:
                async with client.get(console.origin + path, headers=headers) as answer:
                    return answer.status

            for path in ("/", "/static/js/textual.js", "/ws", "/download/x", "/nothing", "/?token=", "/?token=é"):
                assert await status(path) == 401, path
            assert await status(console.url.removeprefix(console.origin), Host="evil.example") == 403
            assert await status(console.url.removeprefix(console.origin)) == 200
            assert await status("/") == 200
            assert await status("/", Host="localhost:1234") == 200
            assert await status("/", Host="evil.example") == 403
            assert await status("/", Host="127.0.0.1.evil.example") == 403
            assert await status("/", Origin="http://evil.example") == 403
            assert await status("/", Origin="null") == 403
            assert await status("/ws") == 403
            for headers in ({"Origin": "http://127.0.0.1:1"}, {"Origin": "https" + console.origin[4:]}, {}):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await client.ws_connect(console.origin + "/ws", headers=headers)
                assert refused.value.status == 403
            async with client.ws_connect(console.origin + "/ws?width=100&height=9", headers=own) as socket:
                seen = b""
                async with asyncio.timeout(WAIT_S):
                    while b"connection refused" not in seen:
                        seen += (await socket.receive()).data
            assert (await console.end(signal.SIGINT))[0] == 0

    asyncio.run(run())
