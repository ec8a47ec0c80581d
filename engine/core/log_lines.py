"""The engine's log lines: one for each ended request, one for each routing decision. None carries a client's text."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

import structlog

from engine.core.scheduling.routing import Place
from engine.request import Ending, RequestError
from engine.sequence.request_state import Choice, Job

_log: structlog.stdlib.BoundLogger = structlog.wrap_logger(logging.getLogger("tandem.engine"))


def routed(job: Job, place: Place, *, cached: int, waited_s: float, slot0_holder: str | None) -> None:
    """One request got a slot: by which rule and figures, and who held slot 0."""
    asked = job.request.max_tokens
    cut = f"{asked} -> {place.max_tokens}" if asked is not None and asked > place.max_tokens else None
    _log.info(
        "[parallel]",
        id=job.request.id,
        slot=place.slot,
        rule=str(place.rule),
        prompt=job.prompt_len,
        cached=cached,
        home=place.home,
        slot0_holder=slot0_holder,
        slot0_wait=round(waited_s, 1) if place.gave_up == 0 else 0.0,
        spill_head=0,
        shared_head=place.shared_head,
        max_tokens=cut or place.max_tokens,
    )


def few_threads(threads: int, reason: str) -> None:
    """The engine computes with fewer threads than there are cores, or with more than a quota has time for."""
    _log.info("[device] threads", threads=threads, reason=reason)


def ended(job: Job, last: Choice | None, ending: Ending, finish: str, now: float) -> None:
    """One request ended, however it did. `last` is the choice that ran last, if one ran."""
    first = None if last is None else last.first_token
    seconds = 0.0 if last is None or first is None else now - first
    _log.info(
        "[req]",
        id=job.request.id,
        client=job.request.client,
        slot=None if last is None else last.slot.id,
        prompt=job.prompt_len,
        cached=job.cached_tokens,
        completion=job.completion_tokens,
        ending=ending.name.lower(),
        finish=finish,
        ttft=None if first is None else round(first - job.arrived, 3),
        tok_s=round((last.generated - 1) / seconds, 1)
        if last is not None and last.generated > 1 and seconds > 0
        else None,
        cache="resident" if job.cached_tokens else "none",
        age=round(now - job.arrived, 3),
    )


def on_cpu(reason: str) -> None:
    """The device is "auto" and the CPU runs the model."""
    _log.info("[device] the CPU runs the model", no_gpu=reason)


def questionable(model: str, warnings: Sequence[str]) -> None:
    """A model was loaded although something is wrong with its file."""
    for warning in warnings:
        _log.warning("[model] " + warning, model=model)


def failed(job: Job, error: RequestError, cause: BaseException) -> None:
    """A request ended for a defect of ours: with its traceback, which shows no values."""
    _log.error("[req] failed", id=job.request.id, code=error.code, error=error.message, traceback=_trace(cause))


def turn_failed(cause: BaseException) -> None:
    """A turn of the loop raised outside any request's work."""
    _log.critical("a turn of the engine loop failed; every request in it was ended", traceback=_trace(cause))


def books_disagree(defect: str) -> None:
    """The engine fell idle and its books do not add up."""
    _log.critical("the books do not add up; please report this", defect=defect)


def _trace(cause: BaseException) -> str:
    return "".join(traceback.format_exception(cause))
