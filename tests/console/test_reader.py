"""What a terminal sends: keys, pastes that nothing marks, and reports of the mouse that are cut short."""

from __future__ import annotations

import pytest
from textual import events

from console.app.terminal import BURST, REST_S, Reader
from tests.console.stage import Clock

PASTE, END = b"\x1b[200~", b"\x1b[201~"


def heard(*reads: bytes, reader: Reader | None = None) -> list[str]:
    """The messages of the reads, a key by its name, another by its kind and what matters of it."""
    reader = reader or Reader(Clock())
    said = []
    for data in reads:
        for message in reader.feed(data):
            match message:
                case events.Key():
                    said.append(message.key)
                case events.Paste():
                    said.append(f"paste {message.text}")
                case events.MouseEvent():
                    said.append(f"{type(message).__name__} {message.x:.0f},{message.y:.0f}")
                case _:
                    said.append(type(message).__name__)
    return said


def test_keys_are_keys_also_where_some_come_at_once() -> None:
    assert heard(b"q") == ["q"]
    assert heard(b"jjj\r") == ["j", "j", "j", "enter"]
    assert heard(b"\x1b[A\x1b[B" * BURST) == ["up", "down"] * BURST
    assert heard("日".encode()[:1], "日".encode()[1:]) == ["日"]


def test_many_characters_at_once_are_a_paste() -> None:
    text = "open\nq\n" * 40
    assert heard(text.encode()) == [f"paste {text}"]


def test_the_rest_of_a_paste_belongs_to_it_and_later_keys_do_not() -> None:
    clock = Clock()
    reader = Reader(clock)
    assert heard(b"x" * 4095, b"xyq", reader=reader) == ["paste " + "x" * 4095, "paste xyq"]
    clock.now += REST_S
    assert heard(b"q", reader=reader) == ["q"]


def test_a_marked_paste_is_one_however_it_is_cut() -> None:
    marked = b"\x1b[200~" + b"xy" * BURST + b"\x1b[201~"
    for cut in (1, 3, 5, 6, 7, 20, len(marked) - 20, len(marked) - 3, len(marked) - 1):
        assert heard(marked[:cut], marked[cut:], b"q") == ["paste " + "xy" * BURST, "q"], cut
    assert heard(b"\x1b[200~", b"z" * BURST, b"\x1b[<35;1", b"\x1b[201~")[-1].startswith("paste " + "z" * BURST)


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
@pytest.mark.parametrize("pause", [False, True])
def test_a_mark_of_a_paste_cut_in_two_marks_it_however_long_the_text(
    cut: int, pause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual._parser.get_time", iter(range(1, 9999)).__next__)
    reader = Reader(Clock())
    said = []
    text = "y\nq" * BURST
    for read in (PASTE[:cut], PASTE[cut:] + text.encode(), END[:cut], END[cut:] + b"q"):
        said += heard(read, reader=reader)
        if pause:
            list(reader.tick())  # a key of the first characters, where they may be one
    assert said == ["paste " + text, "q"]


def test_no_character_of_a_marked_paste_is_a_key() -> None:
    assert heard(PASTE + b"a\x1bq\x1b[A\x1b[200~" + b"y" * BURST + END) == ["paste aq[A[200~" + "y" * BURST]


@pytest.mark.parametrize("pause", [False, True])
def test_an_unmarked_paste_after_the_escape_key_is_one(pause: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual._parser.get_time", iter(range(1, 99)).__next__)
    reader = Reader(Clock())
    assert heard(b"\x1b", reader=reader) == []
    if pause:
        assert [message.key for message in reader.tick() if isinstance(message, events.Key)] == ["escape"]
    assert heard(b"y" * BURST, reader=reader) == ["paste " + "y" * BURST]


@pytest.mark.parametrize(
    ("whole", "name"),
    [
        (b"\x1b[2~", "insert"),
        (b"\x1b[97;5u", "ctrl+a"),
        (b"\x1b[1;5A", "ctrl+up"),
        (b"\x1b[48;24;80;480;800t", "Resize"),
        (b"\x1b[?2026;2$y", "TerminalSupportsSynchronizedOutput"),
    ],
)
def test_a_sequence_with_numbers_cut_short_waits_for_its_rest(
    whole: bytes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual._parser.get_time", iter(range(1, 9999)).__next__)
    for cut in range(3, len(whole)):
        reader = Reader(Clock())
        assert heard(whole[:cut], reader=reader) == []
        assert list(reader.tick()) == []
        assert heard(whole[cut:] + b"q", reader=reader) == [name, "q"], cut


REPORT = b"\x1b[<0;12;5M"


@pytest.mark.parametrize("cut", range(1, len(REPORT)))
def test_a_report_in_two_reads_is_one(cut: int) -> None:
    assert heard(REPORT[:cut], REPORT[cut:] + b"q") == ["MouseDown 11,4", "q"]


@pytest.mark.parametrize("cut", range(3, len(REPORT)))
def test_a_report_cut_short_waits_for_its_rest_and_is_no_keys(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the rest takes, also longer than a lone escape character has time to be more than a key.
    monkeypatch.setattr("textual._parser.get_time", iter(range(1, 99)).__next__)
    reader = Reader(Clock())
    assert heard(REPORT[:cut], reader=reader) == []
    assert list(reader.tick()) == []
    assert heard(REPORT[cut:] + b"q", reader=reader) == ["MouseDown 11,4", "q"]


def test_a_report_without_an_end_or_a_beginning_is_dropped() -> None:
    assert heard(b"\x1b[<0;12", b"q") == ["q"]
    assert heard(b"\x1b[<0;1", b"2;", b"5M") == ["MouseDown 11,4"]
    assert heard(b"j\x1b[<0;1", REPORT) == ["j", "MouseDown 11,4"]


@pytest.mark.parametrize(("cut", "key"), [(1, "escape"), (2, "left_square_bracket")])
def test_the_rest_of_a_report_whose_beginning_became_a_key_is_dropped(
    cut: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual._parser.get_time", iter(range(1, 99)).__next__)
    reader = Reader(Clock())
    assert heard(REPORT[:cut], reader=reader) == []
    assert [message.key for message in reader.tick() if isinstance(message, events.Key)] == [key]
    assert heard(REPORT[cut:] + b"q", reader=reader) == ["q"]


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert heard(b"\xff\xfe", b"q")[-1] == "q"
