"""The one owner of stdout (data) and of stderr (everything else) for all commands.

rich and msgspec are imported only where they are used, so that help and one-line answers stay quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Progress = Callable[[int, int], None]
"""Told (done, total) in bytes, any number of times."""

_UNBOUNDED = 1000
"""Columns in which everything that is drawn has room."""


def emit(text: str, *, end: str = "\n") -> None:
    """Write data to stdout."""
    _write(sys.stdout, text + end)


def emit_json(value: object) -> None:
    """Write `value` (anything msgspec encodes) to stdout as indented JSON."""
    import msgspec

    emit(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def note(text: str, *, end: str = "\n") -> None:
    """Tell the person something on stderr."""
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


def _write(stream: TextIO, text: str) -> None:
    """Write through; at a terminal without control characters, since models, clients and logs put words into it."""
    if stream.isatty():
        text = text.translate(_CONTROLS)
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
    stream.flush()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False)
