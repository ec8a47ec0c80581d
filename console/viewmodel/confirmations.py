"""The questions that confirm actions on an engine: each says exactly what the action does."""

from __future__ import annotations

from dataclasses import dataclass

from console.session.api import EngineAction, Verb
from console.text import figures
from console.text.spans import literal
from console.viewmodel.queue import QueueView
from console.viewmodel.rows import LaneView, RoleView, ScreenView


@dataclass(frozen=True)
class Question:
    """What a person confirms: a title, what will happen, and the word for yes."""

    title: str
    text: str
    yes: str


def question(action: EngineAction, view: ScreenView) -> Question | str:
    """The question for an action on what the screen shows; or a sentence that says why there is nothing to do."""
    if action.verb is Verb.CANCEL:
        return _cancel(action, view)
    if action.verb in (Verb.DRAIN, Verb.RESUME):
        return _drain(view) if action.verb is Verb.DRAIN else _RESUME
    role = next((role for role in view.roles if role.id == action.target), None)
    if role is None:
        return f"no role {literal(action.target)!r} is planned here"
    return _load(role, view) if action.verb is Verb.LOAD else _unload(role)


_RESUME = Question(
    "serve again?", "Ends the draining: the engine accepts new requests again. Who was refused is not told.", "serve"
)


def _drain(view: ScreenView) -> Question | str:
    if view.lanes is None:
        return "there is no snapshot yet"
    running = figures.plural(view.header.running, "running request")
    waiting = f"; {view.queue_total} that wait for a slot are refused" if view.queue_total else ""
    text = f"Lets {running} end{waiting}. New requests get the error “draining” until it serves again"
    return Question("drain the engine?", f"{text}, which the same key asks for.", "drain it")


def _cancel(action: EngineAction, view: ScreenView) -> Question | str:
    title = f"cancel {literal(action.target)}?"
    for lane in view.lanes.lanes if view.lanes is not None else ():
        if lane.busy and lane.request == action.target:
            return Question(title, _cancel_running(lane), "cancel it")
    for entry in view.queue:
        if entry.id == action.target:
            return Question(title, _cancel_waiting(entry), "cancel it")
    return f"{literal(action.target)} neither runs nor waits"


def _cancel_running(lane: LaneView) -> str:
    if lane.reading:
        far = f"{figures.count(lane.read_done)} of {figures.plural(lane.read_total, 'prompt token')} are read"
    else:
        far = f"{figures.count(lane.done)} of at most {figures.plural(lane.limit, 'token')} are written"
    return (
        f"Ends the request of {lane.client} in slot {lane.slot}: {far}. Its client gets the error “cancelled”, after "
        "what was streamed to it so far; the slot is free for the next one."
    )


def _cancel_waiting(entry: QueueView) -> str:
    return (
        f"Takes the request of {entry.client} out of the queue, where it has waited for {entry.since}. Its client "
        "gets the error “cancelled”."
    )


def _load(role: RoleView, view: ScreenView) -> Question:
    text = f"Asks the engine to load {role.name}, which claims {figures.size(role.claim_bytes)}"
    text += f" ({role.claim_source})." if role.claim_source else "."
    if role.headroom_after is not None:
        text += f" The plan expects {figures.size(role.headroom_after)} to stay free"
        floor = view.memory.floor if view.memory is not None else 0
        text += f"; requests keep {figures.size(floor)} as the floor." if floor else "."
    return Question(f"load {role.name}?", f"{text} The engine decides again at that moment and may refuse.", "load it")


def _unload(role: RoleView) -> Question:
    held = f" and give {figures.size(role.measured_bytes)} back" if role.measured_bytes is not None else ""
    text = (
        f"Asks the engine to unload {role.name}{held}. What it does beside the engine stops; clients are not affected."
    )
    return Question(f"unload {role.name}?", text, "unload it")
