"""Text primitives: literal text, cell widths, wrapping, figures, bars and sparklines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from console.draw.bars import Part, progress, sparkline, stacked
from console.text import figures
from console.text.spans import Align, Span, StyleRole, clip, column, fit, literal, parts, spread, width_of, wrap

any_text = st.text(max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("opencode", "opencode"),
        ("a\nb\tc\x1b[0m\x7f", "a␊b␉c␛[0m␡"),
        ("\x9b31m", "�31m"),
        ("ab\u202ecd", "ab�cd"),
        ("zero\u200bwidth\u200d", "zero�width�"),
        ("\ud800", "�"),
        ("❤\ufe0f", "❤"),
        ("\U0001f44d\U0001f3fd", "\U0001f44d"),
        ("\u0915\u093f", "\u0915�"),
        ("\u3164", "�"),
        ("日本 é ü", "日本 é ü"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_literal(text: str, shown: str) -> None:
    assert literal(text) == shown


@settings(max_examples=50, deadline=None)
@given(any_text)
def test_literal_text_is_harmless_and_stays_so(text: str) -> None:
    shown = literal(text)
    assert all(ord(character) >= 0x20 and not 0x7F <= ord(character) < 0xA0 for character in shown)
    assert literal(shown) == shown


@settings(max_examples=50, deadline=None)
@given(any_text.map(literal), st.integers(0, 40))
def test_column_is_exactly_its_width(text: str, width: int) -> None:
    assert cell_len(column(text, width)) == width
    assert cell_len(column(text, width, Align.RIGHT)) == width
    assert cell_len(clip(text, width)) <= width


@settings(max_examples=50, deadline=None)
@given(st.lists(any_text.map(literal), max_size=6), st.integers(0, 80))
def test_fit_is_exactly_its_width(texts: list[str], width: int) -> None:
    line = tuple(Span(text) for text in texts)
    assert width_of(fit(line, width)) == width
    assert width_of(spread(line, line, width)) == width
    assert width_of(parts([line, line], width)) <= width


@settings(max_examples=50, deadline=None)
@given(any_text.map(literal), st.integers(2, 30))
def test_wrap_keeps_every_character(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_wrap_breaks_at_spaces() -> None:
    assert wrap("memory is almost full: needs 1.31 GiB", 16) == ["memory is almost", "full: needs 1.31", "GiB"]


def test_parts_leave_out_what_does_not_fit_whole() -> None:
    segments = [(Span("served 41"),), (Span("much too long to show"),), (Span("peak 4"),)]
    assert "".join(span.text for span in parts(segments, 20, " · ")) == "served 41 · peak 4"


@pytest.mark.parametrize(
    ("amount", "shown", "short"),
    [
        (0, "0 B", "0B"),
        (999, "999 B", "999B"),
        (1000, "1.0 KiB", "1.0K"),
        (65536, "64.0 KiB", "64.0K"),
        (1023 * 1024, "1.0 MiB", "1.0M"),
        (47185920, "45.0 MiB", "45.0M"),
        (420 << 20, "420 MiB", "420M"),
        (24 << 30, "24.0 GiB", "24.0G"),
        (5000 << 40, "5000 TiB", "5000T"),
    ],
)
def test_size(amount: int, shown: str, short: str) -> None:
    assert figures.size(amount) == shown
    assert figures.short_size(amount) == short


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (-1.0, "0.00 s"),
        (0.21, "0.21 s"),
        (0.999, "1.0 s"),
        (9.96, "10 s"),
        (59.6, "1 m 00 s"),
        (200, "3 m 20 s"),
        (7500, "2 h 05 m"),
        (356400, "4 d 03 h"),
    ],
)
def test_span(seconds: float | None, shown: str) -> None:
    assert figures.span(seconds) == shown
    assert figures.short_span(seconds) == shown.replace(" ", "")
    assert len(figures.short_span(seconds)) <= 6


@pytest.mark.parametrize(("number", "shown"), [(9999, "9999"), (95131, "95.1k"), (262144, "262k"), (1_200_000, "1.2M")])
def test_brief(number: int, shown: str) -> None:
    assert figures.brief(number) == shown


def test_rate_and_percent() -> None:
    assert [figures.rate(value) for value in (None, 31.24, 99.96, 4100.0)] == ["–", "31.2", "100", "4,100"]
    assert [figures.percent(*pair) for pair in ((1, 0), (0, 5), (83, 1000), (1, 2))] == ["–", "0 %", "8.3 %", "50 %"]


def drawn(line: tuple[Span, ...]) -> str:
    return "".join(span.text for span in line)


@pytest.mark.parametrize(
    ("done", "total", "bar"),
    [(0, 10, "─────"), (1, 1000, "━────"), (5, 10, "━━───"), (999, 1000, "━━━━─"), (10, 10, "━━━━━"), (3, 0, "─────")],
)
def test_progress_tells_begun_and_unfinished(done: int, total: int, bar: str) -> None:
    assert drawn(progress(done, total, 5, StyleRole.GOOD)) == bar


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=6), st.integers(0, 3000), st.integers(0, 60))
def test_stacked_fills_its_width(amounts: list[int], room: int, width: int) -> None:
    line = stacked(
        [Part(amount, StyleRole.KV) for amount in amounts], sum(amounts) + room, width, Part(0, StyleRole.TRACK, "·")
    )
    assert width_of(line) == width


def test_stacked_shows_small_parts_and_rounds_the_whole() -> None:
    line = stacked(
        [Part(1, StyleRole.WEIGHTS, "w"), Part(499, StyleRole.KV, "k")], 1000, 10, Part(0, StyleRole.TRACK, "·")
    )
    assert drawn(line) == "wkkkk·····"


def test_sparkline_shows_the_newest_and_a_base_line() -> None:
    assert drawn(sparkline([9.0, 0.0, 1.0, 2.0, 4.0], 4, StyleRole.GOOD)) == "▁▂▄▇"
    assert drawn(sparkline([1.0], 3, StyleRole.GOOD)) == "▁▁▇"
    assert drawn(sparkline([], 3, StyleRole.GOOD)) == "▁▁▁"
