"""The ring of log lines: bounded, in order, searchable, and with the request that a line is about."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import structlog

from engine.process.log_ring import TEXT_LIMIT, LogRing, LogSearch
from tandem.service import logging_setup as logs


@pytest.fixture
def ring() -> Iterator[LogRing]:
    """A ring of five lines behind the logger `tandem.test`, configured as a service configures it."""
    logger = logging.getLogger("tandem.test")
    made = LogRing(lines=5)
    logger.addHandler(made)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield made
    logger.removeHandler(made)
    logger.setLevel(before[0])
    logger.propagate = before[1]


@pytest.fixture
def structured() -> Iterator[structlog.stdlib.BoundLogger]:
    """A structured logger, configured as a service configures it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    logs.configure_structlog("json")
    root.setLevel(logging.INFO)
    yield structlog.wrap_logger(logging.getLogger("tandem.test"))
    structlog.reset_defaults()
    root.handlers[:], root.level = before[0], before[1]


def test_plain_lines_stand_under_their_loggers_name(ring: LogRing) -> None:
    log = logging.getLogger("tandem.test")
    log.info("ready at %s", "http://x")
    log.warning("request %s failed", "req-1", extra={"request": "req-1"})
    log.debug("not kept")
    first, second = ring.page(LogSearch()).lines
    assert (first.seq, first.level, first.event, first.text, first.request) == (
        1,
        "info",
        "test",
        "ready at http://x",
        None,
    )
    assert (second.seq, second.level, second.request) == (2, "warning", "req-1")
    assert second.at >= first.at > 1_700_000_000


def test_structured_lines_are_taken_apart(ring: LogRing, structured: structlog.stdlib.BoundLogger) -> None:
    structured.info("[req]", id="req-7", client="curl", slot=None, finish="stop")
    structured.info("[device] the CPU runs the model", no_gpu="none found")
    structured.critical("the books do not add up", defect="slot 1")
    structured.error("[req] failed", id="req-8", traceback="Traceback:\n  here")
    req, device, books, failed = ring.page(LogSearch()).lines
    assert (req.event, req.text, req.request, req.level) == (
        "[req]",
        "client=curl slot=None finish=stop",
        "req-7",
        "info",
    )
    assert (device.event, device.text) == ("[device]", "the CPU runs the model no_gpu=none found")
    assert (books.event, books.text, books.level) == ("test", "the books do not add up defect=slot 1", "critical")
    assert (failed.event, failed.text, failed.request) == ("[req]", "failed\nTraceback:\n  here", "req-8")


def test_only_the_newest_are_kept_and_a_long_one_is_cut(ring: LogRing) -> None:
    log = logging.getLogger("tandem.test")
    for number in range(9):
        log.info("line %d %s", number, "x" * 2 * TEXT_LIMIT)
    page = ring.page(LogSearch())
    assert [line.seq for line in page.lines] == [5, 6, 7, 8, 9]
    assert page.next == 9
    assert all(len(line.text) == TEXT_LIMIT for line in page.lines)


def test_pages_follow_each_other(ring: LogRing) -> None:
    log = logging.getLogger("tandem.test")
    for number in range(5):
        log.info("about %s", "lanes" if number % 2 else "Queue", extra={"request": f"req-{number}"})
    first = ring.page(LogSearch(limit=2))
    assert ([line.seq for line in first.lines], first.next) == ([1, 2], 2)
    rest = ring.page(LogSearch(after=first.next))
    assert ([line.seq for line in rest.lines], rest.next) == ([3, 4, 5], 5)
    assert ring.page(LogSearch(after=5)).lines == []
    found = ring.page(LogSearch(q="qUEUE"))
    assert ([line.seq for line in found.lines], found.next) == ([1, 3, 5], 5)
    assert [line.seq for line in ring.page(LogSearch(request="req-3")).lines] == [4]
    assert ring.page(LogSearch(q="no such words")).next == 5
    # A reader that outlived a restart asks for more than was ever written.
    assert [line.seq for line in ring.page(LogSearch(after=1000)).lines] == [1, 2, 3, 4, 5]


def test_an_exceptions_trace_is_kept_as_text_alone(ring: LogRing) -> None:
    log = logging.getLogger("tandem.test")
    try:
        raise ValueError("wrong")
    except ValueError as error:
        log.error("it failed", exc_info=error)
    (line,) = ring.page(LogSearch()).lines
    assert line.text.startswith("it failed\nTraceback")
    assert line.text.rstrip().endswith("ValueError: wrong")


def test_many_threads_log_and_read(ring: LogRing) -> None:
    log = logging.getLogger("tandem.test")

    def write() -> None:
        for _ in range(200):
            log.info("x")
            ring.page(LogSearch(limit=1))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.seq for line in ring.page(LogSearch()).lines] == [796, 797, 798, 799, 800]
