"""The rounds view: how many slots decode together, how long such a round takes and what it writes, as measured."""

from __future__ import annotations

from dataclasses import replace

from console.draw import lanes
from console.draw.bars import FILL, TRACK
from console.draw.frame import PanelContent
from console.keys.views import ViewState
from console.text import figures
from console.text.spans import Align, Line, Span, StyleRole, column, parts, width_of, wrap
from console.viewmodel.rounds import LEAST_ALONE
from console.viewmodel.rows import RoundSize, RoundsView, ScreenView

_WIDE = 96
_WIDEST_COLUMN = 16
# Rows of the histogram's columns.
_LOWEST, _TALLEST = 4, 12


def content(view: ScreenView, state: ViewState, width: int, height: int) -> PanelContent:
    """A histogram of the rounds by size, their figures, the total over one stream, and drafts by depth."""
    if view.lanes is None or view.loading is not None or view.rounds is None:
        return replace(lanes.lanes(view, width, 1), title="rounds")
    shown = view.rounds
    if not shown.sizes:
        return PanelContent("rounds", body=((), (Span("○ no round was measured yet", StyleRole.DIM),)))
    above = [*_table(shown, width), (), *_total(shown, width), ()]
    below = [(), *_depths(shown, width)]
    tall = max(_LOWEST, min(_TALLEST, height - len(above) - len(below) - 3))
    body = (*above, *_histogram(shown, width, tall), *below)
    summary: Line = (
        Span(figures.plural(shown.rounds, "round"), StyleRole.TEXT),
        Span(f" · {figures.span(shown.seconds)} in them", StyleRole.DIM),
    )
    return PanelContent("rounds", summary, body)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}×" if ratio is not None else figures.NONE


def _table(shown: RoundsView, width: int) -> list[Line]:
    wide = width >= _WIDE
    titles = ("slots", "rounds", "ms a round", "p95", "tok a round", "tok/s", "× one", "time")
    widths = (6, 9, 12, 9, 13, 9, 9, 8) if wide else (5, 8, 11, 8, 6, 7, 7, 6)
    if not wide:
        titles = ("slots", "rounds", "ms/round", "p95", "tok", "tok/s", "× one", "time")
    cells = list(zip(titles, widths, strict=True))
    if width < sum(widths):
        cells = [cell for cell in cells if cell[0] != "tok"]
    head: Line = tuple(Span(column(title, room, Align.RIGHT), StyleRole.FAINT) for title, room in cells)
    lines = [(*head, Span("   share of the time", StyleRole.FAINT)) if wide else head]
    bar = max(0, width - width_of(head) - 3) if wide else 0
    return lines + [_size(size, cells, bar) for size in shown.sizes]


def _size(size: RoundSize, cells: list[tuple[str, int]], bar: int) -> Line:
    figure = {
        "slots": str(size.rows),
        "rounds": figures.count(size.rounds),
        "ms": _ms(size.mean_ms),
        "p95": _ms(size.p95_ms),
        "tok": f"{size.tokens:.2f}",
        "tok/s": figures.rate(size.tok_s),
        "×": _times(size.ratio),
        "time": figures.percent(size.share, 1.0),
    }
    styles = {"slots": StyleRole.STRONG, "p95": StyleRole.DIM, "tok/s": StyleRole.GOOD, "×": StyleRole.STRONG}
    line = []
    for title, room in cells:
        key = title if title in figure else title.split(" ")[0].split("/")[0]
        line.append(Span(column(figure[key], room, Align.RIGHT), styles.get(key, StyleRole.TEXT)))
    if bar:
        line += [Span("   "), *_bar(size.share, bar, StyleRole.KV)]
    return tuple(line)


def _bar(share: float, width: int, style: StyleRole) -> Line:
    filled = min(width, max(1 if share > 0 else 0, round(share * width)))
    return (Span(FILL * filled, style), Span(TRACK * (width - filled), StyleRole.TRACK))


def _total(shown: RoundsView, width: int) -> list[Line]:
    """What all the rounds come to, and what one stream would have."""
    facts: list[Line] = [
        (Span("all rounds ", StyleRole.DIM), Span(f"{figures.rate(shown.tok_s)} tok/s", StyleRole.GOOD_STRONG)),
    ]
    if shown.ratio is not None:
        facts.append((Span(_times(shown.ratio), StyleRole.STRONG), Span(" one stream alone", StyleRole.DIM)))
    facts.append((Span(f"{figures.count(shown.tokens)} tok", StyleRole.TEXT),))
    note = "measured from the rounds' own times; reading prompts and pauses between rounds are not in it"
    if shown.ratio is None:
        note = f"fewer than {LEAST_ALONE} rounds with one slot were measured, too few to compare with one stream"
    return [parts(facts, width, "   "), *((Span(text, StyleRole.FAINT),) for text in wrap(note, width))]


def _histogram(shown: RoundsView, width: int, height: int) -> list[Line]:
    """A column a size, as tall as its number of rounds."""
    most = max(size.rounds for size in shown.sizes)
    # No more columns than have room, however many slots there are.
    sizes = range(1, min(max(size.rows for size in shown.sizes), max(1, width // 3)) + 1)
    counts = {size.rows: size.rounds for size in shown.sizes}
    cell = max(3, min(_WIDEST_COLUMN, (width - 8) // len(sizes)))
    eighths = {rows: _eighths(counts.get(rows, 0), most, height) for rows in sizes}
    lines: list[Line] = [(Span("rounds by the slots that shared them", StyleRole.DIM),)]
    for row in range(height - 1, -1, -1):
        mark = figures.brief(most) if row == height - 1 else "0" if row == 0 else ""
        spans = [Span(column(mark, 6, Align.RIGHT), StyleRole.FAINT), Span("  ")]
        for rows in sizes:
            level = max(0, min(8, eighths[rows] - 8 * row))
            block = " ▁▂▃▄▅▆▇█"[level] * (cell - 2)
            spans += [Span(block, StyleRole.GOOD), Span("  ")]
        lines.append(tuple(spans))
    lines.append((Span(" " * 8), *(Span(column(str(rows).center(cell - 2), cell), StyleRole.STRONG) for rows in sizes)))
    numbers = (column(figures.brief(counts.get(rows, 0)).center(cell - 2), cell) for rows in sizes)
    lines.append((Span(" " * 8), *(Span(number, StyleRole.DIM) for number in numbers)))
    return lines


def _eighths(count: int, most: int, height: int) -> int:
    return max(1, round(count / most * height * 8)) if count else 0


def _depths(shown: RoundsView, width: int) -> list[Line]:
    """How many drafted tokens were accepted at each depth."""
    if not shown.drafters and not shown.drafted:
        return [
            (
                Span("drafts  ", StyleRole.DIM),
                Span("no drafter runs: each round writes one token a slot", StyleRole.FAINT),
            )
        ]
    facts: list[Line] = [
        (Span("drafts ", StyleRole.DIM), Span(", ".join(shown.drafters) or figures.NONE)),
        (Span(figures.percent(shown.accepted, shown.drafted), StyleRole.STRONG), Span(" accepted", StyleRole.DIM)),
        (Span(f"{figures.count(shown.accepted)} of {figures.count(shown.drafted)}", StyleRole.DIM),),
    ]
    lines: list[Line] = [parts(facts, width, "   ")]
    most = max(shown.depths, default=0)
    for depth, accepted in enumerate(shown.depths, 1):
        share = accepted / most if most else 0.0
        bar = _bar(share, max(10, min(60, width - 24)), StyleRole.STATE)
        name = Span(column(f"depth {depth}", 9), StyleRole.DIM)
        lines.append((name, *bar, Span(column(figures.count(accepted), 10, Align.RIGHT))))
    return lines
