"""A real Chromium without a window, driven over its DevTools protocol: tabs, keys, sizes, pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

# Without the background flags it asks its maker's servers for all kinds of things.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1200,700",
)
# The page keeps its terminal to itself; this takes note of it as it is made.
_TAP = """
Object.defineProperty(Object.prototype, "terminal", {
  configurable: true,
  set(made) {
    window.__terminal = made;
    Object.defineProperty(this, "terminal", {value: made, writable: true, configurable: true});
  },
});
"""
ROWS = """
(() => {
  const terminal = window.__terminal;
  if (!terminal) return "";
  const buffer = terminal.buffer.active;
  const row = number => buffer.getLine(number)?.translateToString(true, 0, terminal.cols) ?? "";
  return [...Array(terminal.rows).keys()].map(row).join("\\n");
})()
"""
_COLOURS = """
(async () => {
  const picture = await createImageBitmap(await (await fetch("data:image/png;base64,%s")).blob());
  const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  context.drawImage(picture, 0, 0);
  return new Set(new Uint32Array(context.getImageData(0, 0, picture.width, picture.height).data.buffer)).size;
})()
"""
WAIT_S = 60.0


class Tab:
    """One tab. `text` is what its terminal shows."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self.target = target
        self.answers: list[tuple[str, int]] = []

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        return await self._browser.call(method, params, self._session)

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """The script's value; a promise is waited for."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self) -> str:
        return str(await self.evaluate(ROWS))

    async def until(self, script: str) -> None:
        """Wait until the script's value is true; a page that is about to go has no value."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while True:
                    with suppress(RuntimeError):
                        if await self.evaluate(script):
                            return
                    await asyncio.sleep(0.05)
        shown, page = await self.text(), await self.evaluate("document.body?.innerText")
        raise AssertionError(f"never true: {script}\nthe terminal:\n{shown}\nthe page:\n{page}\n{self.answers}")

    async def wait_for(self, words: str) -> str:
        """What the terminal shows once the words are there."""
        await self.until(f"{ROWS}.includes({json.dumps(words)})")
        return await self.text()

    async def wait_for_page(self, words: str) -> None:
        """Wait for words of the page itself."""
        await self.until(f"document.body?.innerText.includes({json.dumps(words)})")

    async def press(self, key: str) -> None:
        """Press and release a key that is a printable character."""
        await self.call("Page.bringToFront")
        await self.evaluate("document.querySelector('.xterm-helper-textarea').focus()")
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def resize(self, width: int, height: int) -> None:
        """Give the page so many pixels. A tab behind another one would not be told."""
        await self.call("Page.bringToFront")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self) -> bytes:
        """What a person would see, as a PNG file."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    async def colours(self, png: bytes) -> int:
        """How many colours a picture has; asked in an empty tab, where no policy forbids to look."""
        return int(await self.evaluate(_COLOURS % base64.b64encode(png).decode()))

    async def close(self) -> None:
        await self._browser.call("Target.closeTarget", {"targetId": self.target})


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def tab(self) -> Tab:
        """A new empty tab."""
        target = (await self.call("Target.createTarget", {"url": "about:blank"}))["targetId"]
        session = (await self.call("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Network", "Runtime"):
            await tab.call(f"{domain}.enable")
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_TAP)
        return tab

    async def call(self, method: str, params: dict[str, object], session: str | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(
            {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        )
        return await answer

    async def listen(self) -> None:
        """Hand answers to who waits for them; note the status of every answer that a tab gets."""
        async for message in self._socket:
            told = message.json()
            waiting = self._waiting.pop(told.get("id", 0), None)
            if waiting is not None and not waiting.done():
                if "error" in told:
                    waiting.set_exception(RuntimeError(str(told["error"])))
                else:
                    waiting.set_result(told["result"])
            elif told.get("method") == "Network.responseReceived":
                response = told["params"]["response"]
                self._tabs[told["sessionId"]].answers.append((response["url"], response["status"]))


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Browser]:
    """A Chromium with an empty profile in `folder`; ends with the context."""
    program = shutil.which("chromium")
    assert program, "these tests need Chromium: make test-web installs it"
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(WAIT_S):
            while b"DevTools listening on " not in (line := await process.stderr.readline()):
                said += line
                assert line, said.decode()
        address = line.decode().split()[-1]
        drained = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            browser = Browser(socket)
            listening = asyncio.create_task(browser.listen())
            yield browser
            listening.cancel()
        drained.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
