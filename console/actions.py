"""The one registry of what keys do: bindings, footer and help are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from console.arrange import PANELS


@dataclass(frozen=True)
class Action:
    """One thing a person can do. `name` is the app's action, `keys` as Textual names them, `help` one sentence;
    empty where another action's sentence speaks for it too.

    `always` keys work before anything that has the focus sees them.
    """

    name: str
    keys: str
    shown_key: str
    label: str
    help: str
    in_footer: bool = True
    always: bool = False


ACTIONS: tuple[Action, ...] = (
    Action("quit", "q", "q", "quit", "Leave the console; the engine goes on."),
    Action("quit", "ctrl+c", "^c", "quit", "Leave it from anywhere.", in_footer=False, always=True),
    Action("help", "question_mark,f1", "?", "help", "Show this page, or close it."),
    Action("filter", "slash", "/", "filter", "Keep what matches: a client, a request id or a state."),
    Action("pause", "p,space", "p", "pause", "Hold the picture still, or let it go on."),
    Action("next_panel", "tab", "tab", "panel", "Give the arrow keys to the next panel.", always=True),
    Action("previous_panel", "shift+tab", "⇧tab", "back", "Give them to the one before.", in_footer=False, always=True),
    Action("scroll(-1)", "up,k", "↑ ↓", "scroll", "Scroll the chosen panel by a row."),
    Action("scroll(1)", "down,j", "", "down", "", in_footer=False),
    Action("scroll(-8)", "pageup", "PgUp", "page", "Scroll it by a page; PgDn the other way.", in_footer=False),
    Action("scroll(8)", "pagedown", "", "page", "", in_footer=False),
    Action("zoom('lanes')", "1", "1-5", "alone", "Show one panel alone, or all again."),
    *(Action(f"zoom('{panel}')", str(digit), "", panel, "", False) for digit, panel in enumerate(PANELS[1:], 2)),
    Action("back", "escape", "esc", "back", "Close what is open: the filter, a panel shown alone.", in_footer=False),
)
