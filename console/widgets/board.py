"""The board: every region as a widget of plain lines, placed by the arrangement, repainted by the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.geometry import Offset, Size, Spacing
from textual.geometry import Region as Area
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from console.draw import regions
from console.draw.arrange import PANELS, Arrangement, Facts, Region, arrange
from console.draw.cursor import settled
from console.draw.frame import Frame, PanelContent, framed, scroll_limit
from console.draw.theme import Theme, faded
from console.keys.views import DIGITS, ViewName, ViewState
from console.text.spans import Line, StyleRole, width_of
from console.viewmodel.rows import ScreenView

_EMPTY = Arrangement({}, 1)
_WHEEL_ROWS = 3


@dataclass
class Touched(Message):
    """The mouse was pressed on a cell of a region, or turned over it by `rows`."""

    region: Region
    x: int
    y: int
    rows: int = 0


class RegionWidget(Widget):
    """One region. Keeps the lines last drawn and repaints only rows that differ."""

    DEFAULT_CSS = """
    RegionWidget {
        width: auto;
        height: auto;
        background: transparent;
    }
    """

    def __init__(self, region: Region, theme: Theme) -> None:
        super().__init__(id=region.value)
        self.region_name = region
        self.offset_rows = 0
        self.content: PanelContent | None = None
        self._rows: tuple[Line, ...] = ()
        self._strips: list[Strip] = []
        self._live = True
        self._drawn: tuple[object, ...] = ()
        self._theme = theme
        self._faded = faded(theme)

    def set_theme(self, theme: Theme) -> None:
        """Draw with another theme from now on."""
        self._theme, self._faded = theme, faded(theme)
        self._strips = [self._strip(row) for row in self._rows]
        self.refresh()

    def draw_view(self, name: ViewName, view: ScreenView, state: ViewState, arrangement: Arrangement) -> ViewState:
        """Draw a frame of a whole view; returns the state with its cursor and offset on this frame."""
        box = arrangement.boxes[self.region_name]
        content = regions.view_content(name, view, state, box)
        state = settled(self.content, content, state, box.height)
        self.content = content
        frame = Frame(box.width, box.height, state.offset, DIGITS[name], True, state.cursor)
        self._repaint(framed(content, frame), not (view.link.stale and view.lanes is not None))
        return state

    def draw(self, view: ScreenView, arrangement: Arrangement, focused: Region | None, open_view: ViewName) -> None:
        """Draw a frame and repaint only the rows that changed."""
        if self.region_name not in arrangement.boxes:
            return
        name = self.region_name
        box = arrangement.boxes[name]
        shown = regions.parts_shown(name, view)
        drawn = (shown, box, arrangement.lane_form, self.offset_rows, focused is name, open_view)
        if drawn == self._drawn:
            rows = self._rows
        elif name not in PANELS:
            rows = regions.bar(name, view, arrangement, open_view)
        else:
            content = regions.panel_content(name, view, arrangement)
            self.offset_rows = min(self.offset_rows, scroll_limit(content, box.height))
            frame = Frame(box.width, box.height, self.offset_rows, DIGITS[regions.OPENS[name]], focused is name)
            rows = framed(content, frame)
        self._drawn = drawn
        self._repaint(rows, not (view.link.stale and view.lanes is not None) or self.region_name not in PANELS)

    def _repaint(self, rows: tuple[Line, ...], live: bool) -> None:
        before, self._rows = self._rows, rows
        if live is not self._live or len(before) != len(rows):
            self._live = live
            self._strips = [self._strip(row) for row in rows]
            self.refresh()
            return
        changed = [y for y, (old, new) in enumerate(zip(before, rows, strict=True)) if old != new]
        for y in changed:
            self._strips[y] = self._strip(rows[y])
        if changed:
            self.refresh(*_runs(changed, self.size.width))

    def _strip(self, row: Line) -> Strip:
        return Strip((self._theme if self._live else self._faded).segments(row), width_of(row))

    def render_lines(self, crop: Area) -> list[Strip]:
        width = self.size.width
        if self._strips and crop == (0, 0, width, len(self._strips)) and self._strips[0].cell_length == width:
            return self._strips
        blank = Strip.blank(width, self._theme.styles[StyleRole.TEXT])
        strips = [self._strips[y] if y < len(self._strips) else blank for y in range(crop.y, crop.bottom)]
        return [strip.crop_extend(crop.x, crop.right, None) for strip in strips]

    def on_click(self, event: events.Click) -> None:
        self.post_message(Touched(self.region_name, event.x, event.y))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(Touched(self.region_name, event.x, event.y, -_WHEEL_ROWS))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(Touched(self.region_name, event.x, event.y, _WHEEL_ROWS))


def _runs(rows: Sequence[int], width: int) -> Iterator[Area]:
    """The areas of the rows, given in order: those under one another are one area."""
    first = last = rows[0]
    for row in rows[1:]:
        if row != last + 1:
            yield Area(0, first, width, last + 1 - first)
            first = row
        last = row
    yield Area(0, first, width, last + 1 - first)


class BoardLayout(Layout):
    """Places each region in its box; a region without one is not shown."""

    name = "board"

    def __init__(self) -> None:
        self.arrangement = _EMPTY

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        return [
            WidgetPlacement(Area(*box), Offset(0, 0), Spacing(), child)
            for child in children
            if isinstance(child, RegionWidget) and (box := self.arrangement.boxes.get(child.region_name)) is not None
        ]


class Board(Widget):
    """Holds all regions; `show` draws a frame."""

    DEFAULT_CSS = """
    Board {
        width: 1fr;
        height: 1fr;
    }
    """

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._placing = BoardLayout()
        self._facts: Facts | None = None
        self._view: ScreenView | None = None
        self._open = ViewName.OVERVIEW
        self._state = ViewState()
        self.regions: Sequence[RegionWidget] = [RegionWidget(region, theme) for region in Region]
        self.chosen: Region = Region.LANES

    @property
    def layout(self) -> Layout:
        return self._placing

    def compose(self) -> ComposeResult:
        yield from self.regions

    @property
    def shown_panels(self) -> list[Region]:
        """The panels that have a box now, in digit order."""
        return [panel for panel in PANELS if panel in self._placing.arrangement.boxes]

    @property
    def content(self) -> PanelContent | None:
        """The content of the open view; None on the overview."""
        if self._open is ViewName.OVERVIEW:
            return None
        return self._widget(Region.VIEW).content

    @property
    def view_height(self) -> int:
        """The rows of a view's frame."""
        box = self._placing.arrangement.boxes.get(Region.VIEW)
        return box.height if box else 0

    @property
    def at_end(self) -> bool:
        """Whether the last lines of the view that is open are in sight, or within one more screen."""
        content = self.content
        return content is not None and self._state.offset + self.view_height >= scroll_limit(content, self.view_height)

    def show(self, view: ScreenView, name: ViewName, state: ViewState) -> ViewState:
        """Draw a frame, moving regions only where its facts ask for another arrangement.

        Returns the state with its cursor and offset as they stand on this frame.
        """
        if name is not self._open:
            self._widget(Region.VIEW).content = None
        self._view, self._open, self._state = view, name, state
        self._redraw()
        return self._state

    def set_theme(self, theme: Theme) -> None:
        """Draw with another theme from now on."""
        self._theme = theme
        for widget in self.regions:
            widget.set_theme(theme)

    def choose(self, panel: Region) -> None:
        """Give the arrow keys to a panel."""
        self.chosen = panel
        self._redraw()

    def scroll_chosen(self, rows: int) -> None:
        """Scroll the chosen panel; its own limits hold."""
        widget = self._widget(self.chosen)
        widget.offset_rows = max(0, widget.offset_rows + rows)
        self._redraw()

    def on_resize(self) -> None:
        self._facts = None
        self._redraw()

    def _widget(self, region: Region) -> RegionWidget:
        return next(widget for widget in self.regions if widget.region_name is region)

    def _redraw(self) -> None:
        if self._view is None or not self.size.width:
            return
        alone = self._open is not ViewName.OVERVIEW
        facts = regions.facts(self._view, self.size.width, alone=alone)
        if facts != self._facts:
            self._facts = facts
            self._placing.arrangement = arrange(self.size.width, self.size.height, facts)
            # Called on a child: Textual drops a cached arrangement only for the ancestors of the widget that asks.
            self.regions[0].refresh(layout=True)
        arrangement = self._placing.arrangement
        if self.chosen not in arrangement.boxes and not alone:
            self.chosen = self.shown_panels[0] if self.shown_panels else Region.LANES
        for widget in self.regions:
            if widget.region_name is Region.VIEW:
                if alone:
                    self._state = widget.draw_view(self._open, self._view, self._state, arrangement)
            else:
                widget.draw(self._view, arrangement, None if alone else self.chosen, self._open)
