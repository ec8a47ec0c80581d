"""The terminal of a console: its input as messages (keys, mouse, pastes), and the signals of its process."""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator

from textual import events
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

# This many characters in one read are a paste. Read as keys they would act, and take seconds.
BURST = 64
# Input within this time after a paste belongs to the paste.
REST_S = 0.1
_READ_BYTES = 1 << 14
_TICK_S = 0.1
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_MARKS = re.compile(f"({re.escape(_PASTE_BEGINS)}|{re.escape(_PASTE_ENDS)})")
_MAY_END_PASTE = re.compile(r"\x1b(\[(20?1?)?)?\Z")
# The start of a sequence that may also be a key: Escape, or Alt with a bracket. A pause decides.
_MAY_BE_KEY = re.compile(r"\x1b\[?\Z")
# The beginning of a report that is not yet complete: of the mouse, a size, a mode, or a key with its modifiers.
_HEAD = re.compile(r"\x1b\[(<[0-9;-]{0,24}|\??[0-9][0-9;:]{0,30}\$?|\?)\Z")
_REPORT = re.compile(r"\x1b\[(<-?[0-9]+;-?[0-9]+;-?[0-9]+[Mm]|\??[0-9][0-9;:]*(\$y|[A-HP-SZctu~]))")
# The rest of a paste's mark or report whose first characters were read as a key, because the rest came late.
_ORPHAN = re.compile(r"\[?(?:(200~)|<-?[0-9]+;-?[0-9]+;-?[0-9]+[Mm])")


class Reader:
    """Turns input bytes into messages. `clock` gives monotonic seconds.

    Beyond what Textual's parser does: many characters at once are a paste, no character of a paste is a key, a report
    that is cut short waits for its rest and never becomes keys, and bytes that are no text do no harm.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._parser = XTermParser()
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._clock = clock
        self._pasted_at: float | None = None
        self._head = ""
        # The sequence that the parser has begun, and that may be a key.
        self._open = ""
        self._in_paste = False
        self._gave_up = False

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages of the bytes of one read."""
        text = self._decode(data)
        if not text:
            return
        text, self._head = self._joined(text), ""
        if self._is_burst(text):
            self._pasted_at = self._clock()
            yield events.Paste(text.replace("\x00", ""))
            return
        opened, self._open = self._open, ""
        if opened and (opened + text).startswith(_PASTE_BEGINS):
            self._in_paste = True
            yield from self._parser.feed(_PASTE_BEGINS[len(opened) :])
            opened, text = "", (opened + text)[len(_PASTE_BEGINS) :]
        *marked, last = _MARKS.split(text)
        for part in marked:
            yield from self._parsed(part)
        cut = (_MAY_END_PASTE if self._in_paste else _HEAD).search(last)
        if cut is not None:
            last, self._head = last[: cut.start()], cut[0]
        key = None if self._in_paste else _MAY_BE_KEY.search(last if marked else opened + last)
        self._open = "" if key is None else key[0]
        yield from self._parsed(last)

    def tick(self) -> Iterable[Message]:
        """The messages after a pause: an escape character that nothing followed is the Escape key."""
        messages = list(self._parser.tick())
        if messages:
            self._gave_up, self._open = True, ""
        return messages

    def _joined(self, text: str) -> str:
        """The text after the report that began before it, or without the rest of a report that lost its beginning."""
        gave_up, self._gave_up = self._gave_up, False
        if self._head:
            whole = self._head + text
            return whole if self._in_paste or _REPORT.match(whole) or _HEAD.match(whole) else text
        orphan = _ORPHAN.match(text) if gave_up else None
        return text if orphan is None else (_PASTE_BEGINS if orphan[1] else "") + text[orphan.end() :]

    def _parsed(self, part: str) -> Iterable[Message]:
        """The messages of a paste's mark, or of the text between marks."""
        if part == (_PASTE_ENDS if self._in_paste else _PASTE_BEGINS):
            self._in_paste = not self._in_paste
        elif self._in_paste:
            # The parser would read the characters after an escape as keys.
            part = part.replace("\x1b", "")
        return self._parser.feed(part) if part else ()

    def _is_burst(self, text: str) -> bool:
        if self._in_paste or "\x1b" in text or (self._open + text).startswith("\x1b["):
            return False
        rest = self._pasted_at is not None and self._clock() - self._pasted_at < REST_S
        return rest or len(text) >= BURST


class TerminalDriver(LinuxDriver):
    """Textual's driver with this module's reader of the input."""

    def run_input_thread(self) -> None:
        reader = Reader()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_TICK_S):
                    data = os.read(self.fileno, _READ_BYTES)
                    if not data:
                        return
                    for message in reader.feed(data):
                        self.process_message(message)
                for message in reader.tick():
                    self.process_message(message)


def hear_signals(leave: Callable[[int], None], driver: Driver | None) -> None:
    """Answer signals from now on, in the running loop. `leave` ends the app with an exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, 128 + number)
    if driver is not None and driver.can_suspend and signal.getsignal(signal.SIGCONT) != signal.SIG_DFL:
        loop.add_signal_handler(signal.SIGCONT, _continued, driver)
    _resized_by_the_loop()


def _continued(driver: Driver) -> None:
    """Take the terminal back after a stop. SIGSTOP comes without warning: the keyboard reader from before still runs,
    and a second one beside it would take some of the keys and never end. Called by the loop, so never within itself."""
    if not getattr(driver, "_must_signal_resume", False):
        driver.suspend_application_mode()
    driver.resume_application_mode()
    _resized_by_the_loop()


def _resized_by_the_loop() -> None:
    """Have the driver's handler of a resize called by the loop. Where one interrupts another, the outer would tell the
    size that it read before last, and the picture would keep it."""
    handler = signal.getsignal(signal.SIGWINCH)
    if callable(handler):
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, handler, signal.SIGWINCH, None)
