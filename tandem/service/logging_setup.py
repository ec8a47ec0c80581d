"""Sets up logging of an engine: text at a terminal, JSON lines otherwise.

Log lines go to stderr through a queue and a thread of their own. A paused terminal, a pipe that nobody reads or a
stopped supervisor therefore loses lines and never blocks a thread that logs.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog

from engine.process.line_writer import LineHandler, LineStream, LineWriter, set_nonblocking, to_descriptor

STDOUT, STDERR = 1, 2


def configure(log_format: str) -> LineWriter:
    """Have every log line of this process made as `text`, `json`, or what fits stderr (`auto`). Log lines, and whatever
    else is written to stdout and stderr from here on, go to stderr through the writer that is returned; its `close`
    belongs to the end of the process."""
    stream, formatter = sys.stderr, configure_structlog(log_format)
    encoding = stream.encoding or "utf-8"

    def encode(text: str) -> bytes:
        return text.encode(encoding, "backslashreplace")

    def gap(count: int) -> bytes:
        words = "%d log lines are missing here: nobody read them, or stderr took no more"
        record = logging.LogRecord(
            name="tandem.log",
            level=logging.WARNING,
            pathname=__file__,
            lineno=0,
            msg=words,
            args=(count,),
            exc_info=None,
        )
        return encode(formatter.format(record) + "\n")

    terminal = stream.isatty()
    stream.flush()
    set_nonblocking(STDERR)
    # There is no data to print while serving: whatever a library prints is a log line.
    os.dup2(STDERR, STDOUT)
    writer = LineWriter(to_descriptor(STDERR), gap=gap)
    handler = LineHandler(writer, encode)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # The server's own chatter repeats what the service says.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.stdout = sys.stderr = LineStream(writer, encode, STDERR, terminal=terminal)
    return writer


def configure_structlog(log_format: str) -> logging.Formatter:
    """Set structlog up to log through `logging`. Returns what formats both kinds of records for stderr."""
    terminal = sys.stderr.isatty()
    as_text = log_format == "text" or (log_format == "auto" and terminal)
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=terminal, pad_event_to=0, sort_keys=False)]
        if as_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )
