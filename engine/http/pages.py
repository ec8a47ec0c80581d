"""What is read and not asked: models, status, slots, health and metrics, all from the newest snapshot."""

from __future__ import annotations

from urllib.parse import parse_qs

import msgspec

from engine.api import EnginePort, ServedModel
from engine.core.scheduling.inbox import loading
from engine.http.guard import Guard
from engine.http.metrics import CONTENT_TYPE, Metrics
from engine.http.openai.shapes import ModelCard, ModelList
from engine.http.wire import Answer, Header, Receive, Scope, Send, respond
from engine.process.process_state import ProcessState
from engine.protocol import Health, Lane, LaneState, SlotView, Status, encode
from engine.request import RequestError

_NO_STORE: list[Header] = [(b"cache-control", b"no-store")]


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """`serving` is the slots, `running` the requests in one, `waiting` the queue."""

    serving: int
    running: int
    waiting: int


class StatusPage(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /v1/status`."""

    status: Status
    concurrency: Concurrency
    model: str | None


class Pages:
    """The read-only routes. None waits for the engine."""

    def __init__(self, engine: EnginePort, guard: Guard, metrics: Metrics, process: ProcessState) -> None:
        self._engine = engine
        self._process = process
        self._guard = guard
        self._metrics = metrics

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(scope, send, 200, msgspec.json.encode(ModelList(data=[_card(self._model())])))

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["name"]
        model = self._model()
        if name != model.name:
            raise RequestError(
                f"no model {str(name)[:100]!r} here; {model.name!r} is served", status=404, code="model_not_found"
            )
        await respond(scope, send, 200, msgspec.json.encode(_card(model)))

    def _model(self) -> ServedModel:
        model = self._engine.model
        if model is None:
            raise loading()
        return model

    async def status(self, scope: Scope, receive: Receive, send: Send) -> None:
        health = self._engine.health()
        parallel = health.parallel
        page = StatusPage(
            status=health.status,
            concurrency=Concurrency(serving=parallel.slots, running=parallel.running, waiting=parallel.waiting),
            model=health.model.name if health.model is not None else None,
        )
        await respond(scope, send, 200, msgspec.json.encode(page), headers=_NO_STORE)

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The status for everyone, the body for those who may see inside."""
        answer = self._health(inside=self._guard.may_see_inside(scope))
        await respond(scope, send, answer.status, answer.body, headers=answer.headers)

    def _health(self, *, inside: bool) -> Answer:
        health = self._process.added_to(self._engine.health())
        ok = health.status is Status.OK
        headers = _NO_STORE if ok else [*_NO_STORE, (b"retry-after", b"2")]
        return Answer(200 if ok else 503, encode(health) if inside else b"", headers)

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_inside(scope)
        await respond(scope, send, 200, self._metrics.text(), content_type=CONTENT_TYPE, headers=_NO_STORE)

    async def slots(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard.require_inside(scope)
        health = self._engine.health()
        wants_free = parse_qs(scope["query_string"].decode("latin-1")).get("fail_on_no_slot", ["0"])[-1]
        free = any(lane.state is LaneState.IDLE for lane in health.lanes)
        status = 503 if wants_free in ("1", "true") and not free else 200
        await respond(scope, send, status, encode(slot_views(health)), headers=_NO_STORE)


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.name, created=model.created, max_model_len=model.max_len)


def slot_views(health: Health) -> list[SlotView]:
    return [_slot_view(lane) for lane in health.lanes]


def _slot_view(lane: Lane) -> SlotView:
    return SlotView(
        id=lane.slot,
        state=lane.state,
        is_processing=lane.state is not LaneState.IDLE,
        n_ctx=lane.window,
        n_past=lane.rows,
        client=lane.request.client if lane.request is not None else None,
        reason=lane.reason,
    )
