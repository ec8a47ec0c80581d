"""Log lines for a person and for a script."""

from __future__ import annotations

import json

import pytest

from tandem.service.lines import as_json, as_text

LINE = (
    '{"event": "[req]", "level": "info", "logger": "tandem", "id": "req-1", "finish": "stop", "ttft": 0.2, '
    '"client": "open webui", "timestamp": "2026-01-02T10:20:30Z"}\n'
)


def test_a_line_in_words() -> None:
    words = as_text(LINE)
    assert words.endswith(' [req] id=req-1 finish=stop ttft=0.2 client="open webui"')
    assert "[info]" not in words
    assert "[error]" in as_text(LINE.replace('"info"', '"error"'))


def test_a_traceback_stands_below() -> None:
    assert as_text('{"event": "failed", "level": "error", "exception": "Traceback\\n  here"}') == (
        "[error] failed\nTraceback\n  here"
    )


@pytest.mark.parametrize("line", ["Fatal Python error: Aborted\n", "{not json\n", "[1, 2]\n", '"text"\n'])
def test_what_is_no_json_stays_as_it_is(line: str) -> None:
    assert as_text(line) == line.rstrip("\n")
    assert json.loads(as_json(line)) == {"text": line.rstrip("\n")}


def test_json_stays_json() -> None:
    assert json.loads(as_json(LINE)) == json.loads(LINE)
