"""The last log lines of this process, for whoever cannot read its standard error: a ring that `/admin/log` shows.

A line is made where it is logged, so that nothing of a record (frames, arguments) is kept alive.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from engine.protocol import LogLine, LogPage

LINES = 2000
TEXT_LIMIT = 4000
"""Characters kept of one line."""

_ELSEWHERE = frozenset({"event", "level", "logger", "timestamp", "id", "request", "traceback"})
"""What stands in a field of its own, or last."""


@dataclass(frozen=True, slots=True)
class LogSearch:
    """Lines after `after`, at most `limit`; `q` stands in the event or the text, in either case; `request` is equal."""

    after: int = 0
    limit: int = 500
    q: str | None = None
    request: str | None = None


class LogRing(logging.Handler):
    """Keeps the last `lines` lines. Any thread may log and read."""

    def __init__(self, lines: int = LINES) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=lines)
        self._seq = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event, text, request = _said(record)
            # Under the handler's own lock, which `handle` holds.
            self._seq += 1
            self._lines.append(
                LogLine(
                    seq=self._seq,
                    at=record.created,
                    level=record.levelname.lower(),
                    event=event,
                    text=text[:TEXT_LIMIT],
                    request=request,
                )
            )
        except Exception:  # noqa: BLE001 - a line that cannot be shown must not end what it is about
            self.handleError(record)

    def page(self, search: LogSearch) -> LogPage:
        """The oldest lines that fit, after `search.after`. A number that was never given (it is from before a restart)
        begins anew."""
        self.acquire()
        try:
            lines, newest = list(self._lines), self._seq
        finally:
            self.release()
        after = search.after if search.after <= newest else 0
        q = None if search.q is None else search.q.lower()
        fits = (
            line
            for line in lines
            if line.seq > after
            and (search.request is None or line.request == search.request)
            and (q is None or q in f"{line.event} {line.text}".lower())
        )
        found = list(islice(fits, search.limit))
        return LogPage(lines=found, next=found[-1].seq if len(found) == search.limit else newest)


def _said(record: logging.LogRecord) -> tuple[str, str, str | None]:
    """Event, text and request id of a record: a structured one's fields, or another's sentence under its logger's
    name."""
    name = record.name.rpartition(".")[2]
    if not isinstance(record.msg, Mapping):
        words = record.getMessage()
        if record.exc_info:
            words += "\n" + "".join(traceback.format_exception(*record.exc_info))
        return name, words, getattr(record, "request", None)
    fields = {str(key): value for key, value in record.msg.items()}
    event = str(fields.get("event", ""))
    tag, closed, rest = event.partition("]")
    if event.startswith("[") and closed:
        event, parts = f"{tag}]", [rest.strip()] if rest else []
    else:
        event, parts = name, [event]
    parts += [f"{key}={value}" for key, value in fields.items() if key not in _ELSEWHERE and not key.startswith("_")]
    text = " ".join(parts)
    if "traceback" in fields:
        text += f"\n{fields['traceback']}"
    request = fields.get("id", fields.get("request"))
    return event, text, None if request is None else str(request)
