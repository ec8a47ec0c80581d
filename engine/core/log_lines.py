"""The engine's log lines: one for each ended request, one for each routing decision. None carries a client's text."""

from __future__ import annotations

import logging
import traceback

import structlog

from engine.core.scheduling.routing import Place
from engine.request import Ending, RequestError
from engine.sequence.request_state import RequestState, Sequence

_log: structlog.stdlib.BoundLogger = structlog.wrap_logger(logging.getLogger("tandem.engine"))


def routed(req: RequestState, place: Place, *, cached: int, waited_s: float, slot0_holder: str | None) -> None:
    """One request got a slot: by which rule and figures, and who held slot 0."""
    asked = req.request.max_tokens
    cut = f"{asked} -> {place.max_tokens}" if asked is not None and asked > place.max_tokens else None
    _log.info(
        "[parallel]",
        id=req.request.id,
        slot=place.slot,
        rule=str(place.rule),
        prompt=req.prompt_len,
        cached=cached,
        home=place.home,
        slot0_holder=slot0_holder,
        slot0_wait=round(waited_s, 1) if place.preference_expired == 0 else 0.0,
        spill_head=0,
        shared_head=place.shared_head,
        max_tokens=cut or place.max_tokens,
    )


def few_threads(threads: int, reason: str) -> None:
    """The engine computes with fewer threads than there are cores, or with more than a quota has time for."""
    _log.info("[device] threads", threads=threads, reason=reason)


def ended(req: RequestState, last: Sequence | None, ending: Ending, finish: str, now: float) -> None:
    """One request ended, however it did. `last` is the sequence that ran last, if one ran."""
    first = None if last is None else last.first_token
    seconds = 0.0 if last is None or first is None else now - first
    _log.info(
        "[req]",
        id=req.request.id,
        client=req.request.client,
        slot=None if last is None else last.slot.id,
        prompt=req.prompt_len,
        cached=req.cached_tokens,
        completion=req.completion_tokens,
        ending=ending.name.lower(),
        finish=finish,
        ttft=None if first is None else round(first - req.arrived, 3),
        tok_s=round((last.generated - 1) / seconds, 1)
        if last is not None and last.generated > 1 and seconds > 0
        else None,
        cache="resident" if req.cached_tokens else "none",
        age=round(now - req.arrived, 3),
    )


def on_cpu(reason: str) -> None:
    """The device is "auto" and the CPU runs the model."""
    _log.info("[device] the CPU runs the model", no_gpu=reason)


def questionable(model: str, warnings: tuple[str, ...]) -> None:
    """A model was loaded although something is wrong with its file."""
    for warning in warnings:
        _log.warning("[model] " + warning, model=model)


def failed(req: RequestState, error: RequestError, cause: BaseException) -> None:
    """A request ended for a defect of ours: with its traceback, which shows no values."""
    _log.error("[req] failed", id=req.request.id, code=error.code, error=error.message, traceback=_trace(cause))


def turn_failed(cause: BaseException) -> None:
    """A turn of the loop raised outside any request's work."""
    _log.critical("a turn of the engine loop failed; every request in it was ended", traceback=_trace(cause))


def integrity_failed(defect: str) -> None:
    """The engine fell idle and its books do not add up."""
    _log.critical("the books do not add up; please report this", defect=defect)


def _trace(cause: BaseException) -> str:
    return "".join(traceback.format_exception(cause))
