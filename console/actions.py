"""The one registry of what keys do: bindings, footer and help are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from console.arrange import PANELS


@dataclass(frozen=True)
class Action:
    """One thing a person can do. `name` is the app's action, `keys` as Textual names them, `help` one sentence.

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
    Action("quit", "q", "q", "quit", "Leave the console. The engine goes on."),
    Action("quit", "ctrl+c", "^c", "quit", "Leave it from anywhere.", in_footer=False, always=True),
    Action("help", "question_mark,f1", "?", "help", "Show this page; any of its keys or Escape closes it."),
    Action(
        "filter", "slash", "/", "filter", "Keep lanes and waiting requests whose client, id or state contains a text."
    ),
    Action("pause", "p,space", "p", "pause", "Hold the picture still, or let it go on; the engine is not touched."),
    Action("next_panel", "tab", "tab", "next", "Give the arrow keys to the next panel that is shown.", always=True),
    Action(
        "previous_panel", "shift+tab", "⇧tab", "previous", "Give them to the one before.", in_footer=False, always=True
    ),
    Action("scroll(-1)", "up,k", "↑", "up", "Scroll the chosen panel up one row.", in_footer=False),
    Action("scroll(1)", "down,j", "↓", "down", "Scroll it down one row.", in_footer=False),
    Action("scroll(-8)", "pageup", "PgUp", "page up", "Scroll it up a page.", in_footer=False),
    Action("scroll(8)", "pagedown", "PgDn", "page down", "Scroll it down a page.", in_footer=False),
    *(
        Action(
            f"zoom('{panel}')",
            str(digit),
            str(digit),
            panel,
            f"Show {panel} alone on the whole screen; again, or Escape, to go back.",
            in_footer=False,
        )
        for digit, panel in enumerate(PANELS, 1)
    ),
    Action("back", "escape", "esc", "back", "Close what is open: the filter, a panel shown alone.", in_footer=False),
)
