"""The one registry of what keys do: bindings, footer and help are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from console.views import VIEWS, ViewName

_WITH_REQUESTS = (ViewName.LANES, ViewName.QUEUE, ViewName.REQUESTS)


@dataclass(frozen=True)
class Action:
    """One thing a person can do. `name` is the app's action, `keys` as Textual names them, `help` one sentence;
    empty where another action's sentence speaks for it too.

    `always` keys work before anything that has the focus sees them; `views` are those in which it does something, empty
    for all.
    """

    name: str
    keys: str
    shown_key: str
    label: str
    help: str
    in_footer: bool = True
    always: bool = False
    views: tuple[ViewName, ...] = ()


ACTIONS: tuple[Action, ...] = (
    Action("quit", "q", "q", "quit", "Leave the console; the engine goes on."),
    Action("quit", "ctrl+c", "^c", "quit", "Leave it from anywhere.", in_footer=False, always=True),
    Action("help", "question_mark,f1", "?", "help", "Show this page, or close it."),
    Action("filter", "slash", "/", "filter", "Keep what matches: a client, a request id or a state."),
    Action("pause", "p,space", "p", "pause", "Hold the picture still, or let it go on."),
    Action("next_panel", "tab", "tab", "panel", "Give the arrow keys to the next panel.", always=True),
    Action("previous_panel", "shift+tab", "⇧tab", "back", "Give them to the one before.", in_footer=False, always=True),
    Action("move(-1)", "up,k", "↑ ↓", "move", "Move by a row; scroll the chosen panel."),
    Action("move(1)", "down,j", "", "down", "", in_footer=False),
    Action("page(-1)", "pageup", "PgUp", "page", "Move by a page; PgDn the other way.", in_footer=False),
    Action("page(1)", "pagedown", "", "page", "", in_footer=False),
    Action("move_to_end(False)", "home", "home", "top", "Go to the first row; end to the last.", in_footer=False),
    Action("move_to_end(True)", "end", "", "end", "", in_footer=False),
    Action("open", "enter", "enter", "open", "Open the chosen row, or the chosen panel as a view.", in_footer=False),
    *(Action(f"view('{spec.name}')", spec.key, spec.key, spec.name, spec.help) for spec in VIEWS),
    Action("view('overview')", "o", "o", "overview", "", in_footer=False),
    *(
        # Each view names these in its own border.
        Action(name, key, key, label, sentence, in_footer=False, views=views)
        for name, key, label, sentence, views in (
            ("order('cancel')", "x", "cancel", "Cancel the chosen request, after a question.", _WITH_REQUESTS),
            ("log_of_request", "L", "its log", "Show what the log says of the chosen request.", _WITH_REQUESTS),
            ("order('load')", "l", "load", "Load the chosen role, after a question.", (ViewName.ROLES,)),
            ("order('unload')", "u", "unload", "Unload it, after a question.", (ViewName.ROLES,)),
        )
    ),
    Action("back", "escape", "esc", "back", "Close what is open: a filter, a detail, a view.", in_footer=False),
)


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
