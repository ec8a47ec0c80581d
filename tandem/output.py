"""The one owner of stdout (data) and of stderr (everything else) for all commands.

A command calls `own_streams` when it starts and `finish` when it ends. Characters that a terminal's encoding lacks are
shown in ASCII. A stdout that cannot be written ends the command with one line; a stderr that cannot is ignored.

rich and msgspec are imported only where they are used, so that help and one-line answers stay quick.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Progress = Callable[[int, int], None]
"""Told (done, total) in bytes, any number of times."""

_UNBOUNDED = 1000
"""Columns in which everything that is drawn has room."""


class _Closable(Protocol):
    def close(self) -> None: ...


_Writer = TypeVar("_Writer", bound=_Closable)
_writer: _Closable | None = None


def own_streams() -> None:
    """Set up the standard streams of this process. Call it once, before anything is written."""
    codecs.register_error(_SPELLED, _spell)
    # The next file or socket would take a closed descriptor, and then receive what is written to the stream.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Opened for reading, so that a write fails as on a closed stream.
            os.open(os.devnull, os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = _Stdout(sys.stdout, 1)
    sys.stderr = _Stderr(sys.stderr, 2)


def hand_over(writer: _Writer) -> _Writer:
    """Give stderr to `writer`, which `finish` closes."""
    global _writer
    _writer = writer
    return writer


def finish() -> None:
    """Flush what is buffered. Data that a stream does not accept is dropped, so that the interpreter prints no error
    for it when it exits."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
    if _writer is not None:
        _writer.close()


class _Stream(io.TextIOWrapper):
    """A standard stream that replaces characters its encoding lacks by ASCII."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        encoding = (stream.encoding if stream is not None else None) or "utf-8"
        at_once = stream is not None and stream.isatty()
        raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
        super().__init__(raw, encoding=encoding, errors=_SPELLED, line_buffering=at_once)


class _Stdout(_Stream):
    """Raises OSError with the name of the stream where data cannot be written, and BrokenPipeError as it is."""

    def write(self, text: str) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


class _Stderr(_Stream):
    """Drops text that cannot be written: nobody reads it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OSError(error.errno, error.strerror, "standard output") from None


_SPELLED = "tandem-ascii"


def _spell(error: UnicodeError) -> tuple[str, int]:
    """An error handler for codecs: replaces a character by ASCII of the same width, else by its escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from console.text.ascii import likeness

    def one(character: str) -> str:
        like = likeness(character)
        return character.encode("ascii", "backslashreplace").decode() if like is None else like

    return "".join(map(one, error.object[error.start : error.end])), error.end


def emit(text: str, *, end: str = "\n") -> None:
    """Write data to stdout."""
    _write(sys.stdout, text + end)


def emit_json(value: object) -> None:
    """Write `value` (anything msgspec encodes) to stdout as indented JSON."""
    import msgspec

    emit(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def note(text: str, *, end: str = "\n") -> None:
    """Write a message to stderr."""
    _write(sys.stderr, text + end)


def warn(text: str) -> None:
    note(f"tandem: warning: {text}")


def error(text: str) -> None:
    note(f"tandem: {text}")


def draw(renderable: RenderableType) -> None:
    """Draw a rich renderable on stdout. A terminal that is narrower than its narrowest form wraps its lines."""
    console = _console(sys.stdout)
    unbounded = console.options.update(max_width=_UNBOUNDED)
    console.width = max(console.width, console.measure(renderable, options=unbounded).minimum)
    console.print(renderable)


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """A byte progress bar on stderr, silent when stderr is not a terminal. Drawn from the first report on."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, visible=True)

        yield report


@contextmanager
def counting(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar over `total` steps on stderr, silent when stderr is not a terminal; call what it yields once a step."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - set(b"\n\t\r"), "\N{REPLACEMENT CHARACTER}")


def printable(text: str) -> str:
    """Text of a client, a model file or a log on one line: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _write(stream: TextIO, text: str) -> None:
    """Write and flush. At a terminal control characters are replaced: text may come from models, clients and logs."""
    if stream.isatty():
        text = text.translate(_CONTROLS)
    stream.write(text)
    stream.flush()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False)
