"""The rounds view: the measured figures of each size, what they come to over one stream, and drafts by depth."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from console.draw import rounds_view
from console.history.rates import Track
from console.keys.views import ViewState
from console.viewmodel.build import screen_view
from console.viewmodel.rows import Link, ScreenView
from engine.protocol import Health, RoundStat
from tests.console.films import STATES, Moment, film, seen, text
from tests.support import fake_health


def still(health: Health) -> ScreenView:
    return screen_view(health, Track(), Link("u", age_s=0.1))


def with_stats(*stats: RoundStat) -> ScreenView:
    return still(replace(fake_health.busy(5.0), round_stats=list(stats)))


def stat(rows: int, rounds: int, mean_ms: float, tokens: float) -> RoundStat:
    return RoundStat(
        rows=rows,
        rounds=rounds,
        mean_ms=mean_ms,
        p95_ms=1.5 * mean_ms,
        tokens_per_round=tokens,
        ms_total=rounds * mean_ms,
    )


def page(view: ScreenView, width: int = 116) -> str:
    return text(list(rounds_view.content(view, ViewState(), width, 31).body))


def test_totals_and_ratios_follow_from_the_rounds_own_times() -> None:
    view = with_stats(stat(4, 100, 40.0, 6.0), stat(1, 300, 20.0, 1.5))
    shown = view.rounds
    assert shown is not None
    assert [size.rows for size in shown.sizes] == [1, 4]
    # One slot: 1.5 tokens in 20 ms. Four: 6 in 40 ms. Together 1,050 tokens in 10 s.
    assert [size.tok_s for size in shown.sizes] == pytest.approx([75.0, 150.0])
    assert [size.ratio for size in shown.sizes] == pytest.approx([1.0, 2.0])
    assert [size.share for size in shown.sizes] == pytest.approx([0.6, 0.4])
    assert (shown.tokens, shown.seconds, shown.tok_s, shown.ratio) == pytest.approx((1050.0, 10.0, 105.0, 1.4))
    lines = page(view).splitlines()
    assert lines[1].split()[:8] == ["1", "300", "20.0", "30.0", "1.50", "75.0", "1.00×", "60"]
    assert lines[2].split()[:8] == ["4", "100", "40.0", "60.0", "6.00", "150", "2.00×", "40"]
    assert "all rounds 105 tok/s   1.40× one stream alone   1,050 tok" in page(view)
    assert "measured from the rounds' own times" in page(view)


@pytest.mark.parametrize("alone", [0, 1, 9])
def test_with_few_rounds_of_one_slot_nothing_is_compared(alone: int) -> None:
    view = with_stats(stat(2, 10, 30.0, 2.0), stat(1, alone, 31.0, 1.0))
    assert view.rounds is not None
    assert view.rounds.ratio is None
    assert "×" not in page(view).replace("× one", "")
    assert "too few to compare with one stream" in page(view)


def test_ten_rounds_of_one_slot_are_enough_to_compare() -> None:
    view = with_stats(stat(2, 10, 20.0, 2.0), stat(1, 10, 20.0, 1.0))
    assert view.rounds is not None
    assert [size.ratio for size in view.rounds.sizes] == pytest.approx([1.0, 2.0])


def test_the_histogram_is_as_tall_as_the_counts() -> None:
    lines = page(with_stats(stat(1, 40, 20.0, 1.0), stat(3, 80, 20.0, 3.0))).splitlines()
    first = next(index for index, line in enumerate(lines) if "rounds by the slots" in line)
    # Three columns, the middle one without a round; the third is twice as tall as the first.
    bars = [re.findall(r"[▁▂▃▄▅▆▇█ ]{14}  ", line[8:].ljust(48)) for line in lines[first + 1 : first + 13]]
    heights = [sum(row[column].count("█") for row in bars) // 14 for column in range(3)]
    assert heights == [6, 0, 12]
    assert lines[first + 13].split() == ["1", "2", "3"]
    assert lines[first + 14].split() == ["40", "0", "80"]


def test_drafts_are_shown_by_depth_or_said_to_be_none() -> None:
    shown = page(seen("drafting", 2))
    assert "drafts lookup, suffix   49 % accepted   44,807 of 91,200" in shown
    counts = re.findall(r"depth (\d) +([■·]+) +([\d,]+)", shown)
    assert [int(depth) for depth, *_ in counts] == [1, 2, 3, 4, 5]
    lengths = [bar.count("■") for _, bar, _ in counts]
    assert lengths == sorted(lengths, reverse=True)
    assert "no drafter runs" in page(seen("busy", 2))


def test_before_the_first_round_it_says_so() -> None:
    assert "no round was measured yet" in page(with_stats())


def test_pictures(picture: SnapshotAssertion) -> None:
    for name, svg in film("7", (120, 36), STATES | {"drafting": Moment("drafting", 12)}).items():
        assert svg == picture(name=name)


def test_a_small_screen(picture: SnapshotAssertion) -> None:
    for svg in film("7", (60, 18), {"drafting": Moment("drafting", 12)}).values():
        assert svg == picture
