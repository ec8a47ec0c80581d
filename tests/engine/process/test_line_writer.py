"""Log lines behind a stream that takes none: nobody waits, what is lost is counted and said."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from engine.process.line_writer import LineHandler, LineStream, LineWriter, set_nonblocking, to_descriptor
from tests.support.patience import LONG_S
from tests.support.scripted_engine import wait_until


def gap(count: int) -> bytes:
    return b"%d missing\n" % count


def fill(descriptor: int) -> None:
    while True:
        os.write(descriptor, b"x" * 4096)


class Reader:
    """A stream that takes nothing until `open` is set, and nothing but errors while `full` is."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.full = False
        self.got: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        self.waiting.set()
        assert self.open.wait(LONG_S)
        if self.full:
            raise OSError(28, "No space left on device")
        self.got.append(line)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.open.set()


def test_what_nobody_reads_is_dropped_and_counted_at_the_next_line(reader: Reader) -> None:
    writer = LineWriter(reader, gap=gap, limit_bytes=30)
    for number in range(10):
        writer.put(b"line %04d\n" % number)
    assert (writer.dropped, writer.state().dropped) == (7, 7)
    reader.open.set()
    assert wait_until(lambda: len(reader.got) == 3)
    assert wait_until(lambda: writer._held == 0)
    writer.put(b"after\n")
    writer.close(LONG_S)
    assert reader.got == [b"line 0000\n", b"line 0001\n", b"line 0002\n", b"7 missing\n", b"after\n"]
    assert writer.dropped == 7


def test_a_full_disk_costs_lines(reader: Reader) -> None:
    reader.full = True
    reader.open.set()
    writer = LineWriter(reader, gap=gap)
    for _ in range(3):
        writer.put(b"lost\n")
    assert wait_until(lambda: writer.dropped == 3)
    reader.full = False
    writer.put(b"after\n")
    writer.close(LONG_S)
    assert reader.got == [b"3 missing\n", b"after\n"]


def test_the_end_does_not_wait_for_a_stream_that_takes_nothing(reader: Reader) -> None:
    writer = LineWriter(reader, gap=gap)
    writer.put(b"stuck\n")
    assert reader.waiting.wait(LONG_S)
    writer.close(0.01)
    assert not reader.open.is_set(), "it came back before anybody read"
    writer.put(b"too late\n")
    assert writer.dropped == 1


def test_what_libraries_write_goes_the_same_way_in_whole_lines(reader: Reader) -> None:
    reader.open.set()
    writer = LineWriter(reader, gap=gap)
    stream = LineStream(writer, str.encode, 2, terminal=False)
    print("a warning", "of a library", file=stream)
    stream.write("two\nlines and ")
    stream.write("a part")
    stream.flush()
    writer.close(LONG_S)
    assert reader.got == [b"a warning of a library\n", b"two\n", b"lines and a part"]
    assert (stream.fileno(), stream.isatty(), stream.writable()) == (2, False, True)


def test_records_are_formatted_where_they_are_logged(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.open.set()
    writer = LineWriter(reader, gap=gap)
    handler = LineHandler(writer, str.encode)
    handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "%d requests", (3,), None))
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "%d requests", ("three",), None))
    writer.close(LONG_S)
    assert reader.got == [b"3 requests\n"]


def test_a_full_pipe_fails_for_this_process_and_still_blocks_for_others() -> None:
    """C libraries write past the queue. The other holder of the pipe keeps its own setting."""
    reading, writing = os.pipe()
    others = os.dup(writing)
    try:
        set_nonblocking(writing)
        with pytest.raises(BlockingIOError):
            fill(writing)
        assert os.get_blocking(others)
        done = threading.Event()
        line = b"y" * 10_000 + b"\n"
        threading.Thread(target=lambda: (to_descriptor(writing)(line), done.set()), daemon=True).start()
        got = b""
        while not got.endswith(line):
            got += os.read(reading, 1 << 16)
        assert done.wait(LONG_S)
    finally:
        for descriptor in (reading, writing, others):
            os.close(descriptor)
