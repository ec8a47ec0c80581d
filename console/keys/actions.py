"""The one registry of what keys do: bindings, footer, help and the palette of commands are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from console.keys.views import VIEWS, ViewName

_WITH_REQUESTS = (ViewName.LANES, ViewName.QUEUE, ViewName.REQUESTS)


@dataclass(frozen=True)
class Action:
    """One thing a person can do. `name` is the app's action, `keys` as Textual names them, `help` one sentence;
    empty where another action's sentence speaks for it too.

    `always` keys work before anything that has the focus sees them; `views` are those in which it does something, empty
    for all. What only a key makes sense for is not `in_palette`.
    """

    name: str
    keys: str
    shown_key: str
    label: str
    help: str
    in_footer: bool = False
    in_palette: bool = False
    always: bool = False
    views: tuple[ViewName, ...] = ()


def _key(name: str, keys: str, shown_key: str, label: str, help: str = "") -> Action:
    return Action(name, keys, shown_key, label, help)


def _command(name: str, keys: str, shown_key: str, label: str, help: str) -> Action:
    return Action(name, keys, shown_key, label, help, in_palette=True)


VIEW_ACTIONS: tuple[Action, ...] = tuple(
    Action(f"view('{spec.name}')", spec.key, spec.key, spec.name.value, spec.help, in_palette=True) for spec in VIEWS
)
ACTIONS: tuple[Action, ...] = (
    *VIEW_ACTIONS,
    Action("help", "question_mark,f1", "?", "help", "Show this page, or close it.", True, True),
    Action("command_palette", "ctrl+p,colon", "^p", "commands", "Find any of these by name.", True),
    Action("filter", "slash", "/", "filter", "Keep what matches: a client, a request id or a state.", True, True),
    Action("pause", "p,space", "p", "pause", "Hold the picture still, or let it go on.", True, True),
    _command("step(-1)", "left,left_square_bracket", "← [", "back a second", "Go a second back in the last half hour."),
    _command("step(1)", "right,right_square_bracket", "→ ]", "on a second", "Go a second on."),
    _command("step(-60)", "shift+left,left_curly_bracket", "⇧← {", "back a minute", "Go a minute back."),
    _command("step(60)", "shift+right,right_curly_bracket", "⇧→ }", "on a minute", "Go a minute on."),
    _command("live", "g", "g", "live", "Go to what is now."),
    _command("next_engine", "e", "e", "next engine", "Show the next engine of those that are watched."),
    _command("next_theme", "t", "t", "next theme", "Change the colours: dark, light, ascii, colour-blind."),
    Action("next_panel", "tab", "tab", "panel", "Give the arrow keys to the next panel.", always=True),
    Action("previous_panel", "shift+tab", "⇧tab", "back", "Give them to the one before.", always=True),
    _key("move(-1)", "up,k", "↑ ↓", "move", "Move by a row; scroll the chosen panel."),
    _key("move(1)", "down,j", "", "down"),
    _key("page(-1)", "pageup", "PgUp", "page", "Move by a page; PgDn the other way."),
    _key("page(1)", "pagedown", "", "page"),
    _key("move_to_end(False)", "home", "home", "top", "Go to the first row; end to the last."),
    _key("move_to_end(True)", "end", "", "end"),
    _key("open", "enter", "enter", "open", "Open the chosen row, or the chosen panel as a view."),
    _key("back", "escape", "esc", "back", "Close what is open: a filter, a detail, a view."),
    _key("view('overview')", "o", "o", "overview"),
    Action("quit", "q", "q", "quit", "Leave the console; the engine goes on.", True, True),
    Action("quit", "ctrl+c", "^c", "quit", "Leave it from anywhere.", always=True),
    *(
        # Each view names these in its own border.
        Action(name, key, key, label, sentence, in_palette=True, views=views)
        for name, key, label, sentence, views in (
            ("act('cancel')", "x", "cancel", "Cancel the chosen request, after a question.", _WITH_REQUESTS),
            ("log_of_request", "L", "its log", "Show what the log says of the chosen request.", _WITH_REQUESTS),
            ("act('drain')", "D", "drain", "Drain the engine, or let it serve again, after a question.", ()),
            ("act('load')", "l", "load", "Load the chosen role, after a question.", (ViewName.ROLES,)),
            ("act('unload')", "u", "unload", "Unload it, after a question.", (ViewName.ROLES,)),
        )
    ),
)

REPLAY_ACTIONS: tuple[Action, ...] = (
    Action("pause", "p,space", "p", "play", "Play on, or stand still; at the end, from the beginning."),
    Action("step(-1)", "left", "← →", "second", "Go a second back or on; with shift, a minute."),
    Action("faster(1)", "plus,equals_sign", "+ -", "speed", "Play at 1, 4 or 16 times the speed."),
    Action("faster(-1)", "minus", "", "slower", ""),
    Action("ask_time", "g", "g", "time", "Go to a time of day."),
    Action("go_to_end(False)", "home", "home", "beginning", "Go to the beginning; end to the end."),
    Action("go_to_end(True)", "end", "", "end", ""),
)
"""What keys do in a recording, beside or in place of what they do otherwise."""


def groups() -> list[tuple[str, list[Action]]]:
    """The actions that have a sentence, under a title for where they work: everywhere, each view's key, some views."""
    titled: dict[str, list[Action]] = {"everywhere": [], "views": []}
    for action in ACTIONS:
        if action.help:
            where = "views" if action.name.startswith("view(") else "everywhere"
            titled.setdefault(" · ".join(action.views) or where, []).append(action)
    return list(titled.items())


def acts_in(name: str, parameters: tuple[object, ...], view: ViewName) -> bool:
    """Whether an action does anything while the view is open; one that is not in the registry does."""
    called = f"{name}({', '.join(map(repr, parameters))})" if parameters else name
    named = [action for action in ACTIONS if action.name == called]
    return not named or any(not action.views or view in action.views for action in named)
