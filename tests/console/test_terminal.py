"""The console on a real terminal: modes are restored however it ends, and it stays readable on plain ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pexpect
import pyte
import pytest

from tests.support import fake_health
from tests.support.fake_health import FakeHealth
from tests.support.patience import LONG_S

PROGRAM = (
    "import sys; from console.main import Options, run\n"
    "code = run(Options(tuple(sys.argv[1:])))\n"
    "print('left with', code)\n"
    "sys.exit(code)"
)
WITHOUT_MOUSE = PROGRAM.replace("1:])", "1:]), mouse=False")
CRASHING = (
    "import sys, console.app.app as app\n"
    "def broken(*_): raise RuntimeError('broken on purpose')\n"
    "app.ConsoleApp.action_pause = broken\n" + PROGRAM
)
# What a terminal must be told again for each mode that was switched on: alternate screen, cursor, paste, focus.
PAIRS = {
    "\x1b[?1049h": "\x1b[?1049l",
    "\x1b[?25l": "\x1b[?25h",
    "\x1b[?2004h": "\x1b[?2004l",
    "\x1b[?1004h": "\x1b[?1004l",
}
MOUSE = ("\x1b[?1000h", "\x1b[?1002h", "\x1b[?1003h", "\x1b[?1006h", "\x1b[?1015h")

# Sizes among them, which would stay what they are when this one is resized.
OF_ANOTHER_TERMINAL = ("NO_COLOR", "COLORTERM", "TMUX", "COLUMNS", "LINES")


@dataclass
class Terminal:
    """A child on a pseudo terminal, all that it wrote, and the picture that makes."""

    child: pexpect.spawn
    screen: pyte.Screen
    stream: pyte.Stream = field(init=False)
    written: str = ""
    heard: bool = False

    def __post_init__(self) -> None:
        self.stream = pyte.Stream(self.screen)

    def read(self, timeout: float) -> bool:
        """Take in what is there; False at the end."""
        self.heard = False
        try:
            text = self.child.read_nonblocking(1 << 16, timeout)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.heard = True
        self.written += text
        self.stream.feed(text.replace("\x1b[?2048$p", ""))
        return True

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + LONG_S
        while time.monotonic() < deadline:
            if words in "\n".join(self.screen.display):
                return
            assert self.read(0.1), self.written
        raise AssertionError(f"{words!r} never showed:\n" + "\n".join(self.screen.display))

    def press(self, keys: str, *, until: str) -> None:
        """Send the keys until the words show."""
        for _ in range(int(LONG_S)):
            self.child.send(keys)
            for _ in range(10):
                if until in "\n".join(self.screen.display):
                    return
                assert self.read(0.1), self.written
        raise AssertionError(f"{until!r} never showed:\n" + "\n".join(self.screen.display))

    def end(self) -> None:
        """Read to the end and reap; a child that does not end is killed, and that is a failure."""
        silent = 0
        while self.read(1.0):
            silent = 0 if self.heard else silent + 1
            if silent >= LONG_S:
                self.child.close(force=True)
                raise AssertionError("it did not end:\n" + "\n".join(self.screen.display))
        self.child.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeHealth]:
    with FakeHealth(fake_health.yielded) as server:
        yield server


def start(url: str, program: str = PROGRAM, **environment: str) -> Terminal:
    kept = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_TERMINAL}
    child = pexpect.spawn(
        sys.executable,
        ["-c", program, url],
        env=kept | {"TERM": "xterm-256color"} | environment,
        dimensions=(24, 80),
        encoding="utf-8",
        codec_errors="replace",
    )
    # Before each send it would sleep for a prompt that asks for a password to stop echoing.
    child.delaybeforesend = None
    return Terminal(child, pyte.Screen(80, 24))


def assert_restored(terminal: Terminal) -> None:
    for on, off in PAIRS.items():
        if on in terminal.written:
            assert terminal.written.rindex(off) > terminal.written.rindex(on), repr(off)
    for mode in MOUSE:
        if mode in terminal.written:
            off = mode.replace("h", "l")
            assert terminal.written.rindex(off) > terminal.written.rindex(mode), repr(off)


def test_q_restores_the_terminal(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    # A mouse that moves meanwhile, on a terminal that reports it all the same.
    moves = "".join(f"\x1b[<35;{column};9M" for column in range(1, 60))
    terminal.child.send(moves + "q" + moves)
    terminal.end()
    assert_restored(terminal)
    assert "left with 0" in terminal.written
    assert terminal.child.exitstatus == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_signals_restore_the_terminal(engine: FakeHealth, signum: signal.Signals) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    terminal.child.kill(signum)
    terminal.end()
    assert_restored(terminal)
    assert terminal.child.exitstatus == 128 + signum


def test_an_exception_restores_the_terminal_and_is_told(engine: FakeHealth) -> None:
    terminal = start(engine.url, CRASHING)
    terminal.wait_for("Yielded")
    terminal.child.send("p")
    terminal.end()
    assert_restored(terminal)
    assert "broken on purpose" in terminal.written
    assert terminal.child.exitstatus == 1


def test_a_bracketed_paste_of_20_kb_stays_in_the_filter(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    terminal.child.send("/")
    terminal.wait_for("Escape clears")
    terminal.child.send("\x1b[200~" + "open\nq\n" * 3000 + "\x1b[201~")
    terminal.wait_for("no lane matches")
    terminal.child.send("\x1b")
    terminal.wait_for("Writing")
    terminal.child.send("q")
    terminal.end()
    assert terminal.child.exitstatus == 0


def test_a_paste_of_20_kb_that_nothing_marks_is_no_keys(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    terminal.child.send("quit 3\n" * 3000)
    # What comes right behind it passes for the rest of it.
    terminal.press("3", until="▸queue")
    terminal.child.send("q")
    terminal.end()
    assert terminal.child.exitstatus == 0


@pytest.mark.parametrize("around", [{}, {"TERM": "tmux-256color", "TMUX": "/tmp/tmux-0/default,1,0"}])
def test_no_color_sends_no_colour_and_every_state_has_a_word(engine: FakeHealth, around: dict[str, str]) -> None:
    terminal = start(engine.url, NO_COLOR="1", **around)
    for sign in ("● ok", "▶ Writing", "‖ Yielded", "○ Idle", "● decider loaded", "◉ live"):
        terminal.wait_for(sign)
    cells = [cell for row in terminal.screen.buffer.values() for cell in row.values()]
    assert {cell.fg for cell in cells} | {cell.bg for cell in cells} == {"default"}
    terminal.child.send("q")
    terminal.end()


def test_a_storm_of_resizes_and_stray_mouse_bytes_leaves_a_whole_picture(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    # Reports of modes never asked for, cut short, and out of range; the last is one of the old kind.
    strays = ("\x1b[<35;1", "\x1b[<64;9999;9999M", "\x1b[<0;0;0m", "\x1b[<;;M", "\x1b[M !!")
    for turn in range(300):
        terminal.child.setwinsize(10 + turn % 30, 40 + turn % 90)
        if turn % 10 == 0:
            terminal.child.send(strays[turn // 10 % len(strays)])
            terminal.read(0.0)
    terminal.screen.reset()
    terminal.screen.resize(30, 100)
    terminal.child.setwinsize(30, 100)
    terminal.wait_for("● ok")
    terminal.wait_for("reserved 720 MiB of addresses ─╯")
    # From anywhere: what a cut report left may have acted as keys.
    terminal.child.send("\x03")
    terminal.end()
    assert_restored(terminal)
    assert terminal.child.exitstatus == 0


def test_without_the_mouse_no_report_is_asked_for(engine: FakeHealth) -> None:
    terminal = start(engine.url, WITHOUT_MOUSE)
    terminal.wait_for("Yielded")
    terminal.child.send("q")
    terminal.end()
    assert_restored(terminal)
    assert not any(mode in terminal.written for mode in MOUSE)


def test_a_click_and_a_turn_of_the_wheel_reach_the_console(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    terminal.wait_for("2 lanes")
    assert MOUSE[0] in terminal.written
    tab = terminal.screen.display[23].index("2 lanes")
    terminal.child.send(f"\x1b[<0;{tab + 2};24M\x1b[<0;{tab + 2};24m")
    terminal.wait_for("▸lanes")
    terminal.child.send("\x1b[<65;20;9M" * 3)
    terminal.child.kill(signal.SIGTERM)
    terminal.end()
    assert_restored(terminal)
    assert terminal.child.exitstatus == 128 + signal.SIGTERM


def test_a_stop_without_warning_leaves_one_reader_of_the_keyboard(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Writing")
    for times in (2, 3, 4):
        os.kill(terminal.child.pid, signal.SIGSTOP)
        os.kill(terminal.child.pid, signal.SIGCONT)
        # Each time the screen is taken over anew.
        while terminal.written.count("\x1b[?1049h") < times:
            assert terminal.read(0.1), terminal.written
    # What is typed while the terminal is taken over is dropped.
    terminal.press("/", until="Escape clears")
    terminal.child.send("all of these words")
    terminal.wait_for("all of these words")
    terminal.child.send("\x03")
    terminal.end()
    assert terminal.child.exitstatus == 0


def test_256_colours_without_colorterm(engine: FakeHealth) -> None:
    terminal = start(engine.url)
    terminal.wait_for("Yielded")
    assert "\x1b[38;5;" in terminal.written or ";38;5;" in terminal.written
    assert "38;2;" not in terminal.written
    terminal.child.send("q")
    terminal.end()
