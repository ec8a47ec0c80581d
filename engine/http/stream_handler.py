"""One request's life on the wire, in any dialect: handed over, streamed or answered whole, or left by its client."""

from __future__ import annotations

import asyncio
import logging
import time

from engine.api import EnginePort
from engine.config import ServiceConfig
from engine.http.answers import Answer
from engine.http.dialect import Renderer
from engine.http.errors import internal
from engine.http.event_queue import EventQueue, LoopWaker
from engine.http.metrics import Metrics
from engine.http.sse import HeartbeatTimer, Progress, stream_headers
from engine.http.wire import Receive, Scope, Send, context_of, refuse, respond, start
from engine.request import Admitted, Done, Ending, Event, Failed, Finished, FinishReason, Request, RequestError, Text

log = logging.getLogger("tandem.http")


class OpenStreams:
    """The requests on the wire now, and what they share."""

    def __init__(self, engine: EnginePort, service: ServiceConfig, metrics: Metrics) -> None:
        self.engine = engine
        self.service = service
        self.metrics = metrics
        self._waker: LoopWaker | None = None
        self._open: dict[str, EventQueue] = {}
        self._submitted: dict[str, tuple[str, ...]] = {}

    def waker(self) -> LoopWaker:
        if self._waker is None:
            self._waker = LoopWaker(asyncio.get_running_loop())
        return self._waker

    def enter(self, request_id: str) -> EventQueue:
        queue = self._open[request_id] = EventQueue(self.waker())
        return queue

    def submit(self, request: Request, queue: EventQueue, names: tuple[str, ...]) -> None:
        """Hand a request to the engine; `names` are what its client knows it by. Raises RequestError where it is
        refused."""
        self.engine.submit(request, queue)
        self._submitted[request.id] = names

    def find(self, name: str) -> list[str]:
        """The requests that the engine has, running or waiting, under that id or name. Several clients, or a client
        that asks again, may use one name."""
        if name in self._submitted:
            return [name]
        return [request_id for request_id, names in self._submitted.items() if name in names]

    def ended(self, request_id: str) -> None:
        """The engine is done with it."""
        self._submitted.pop(request_id, None)

    def leave(self, request_id: str) -> None:
        self.ended(request_id)
        self._open.pop(request_id).close()

    @property
    def count(self) -> int:
        return len(self._open)

    def end_all(self, error: RequestError, ending: Ending) -> None:
        """End every open request with `error`: a final event on a stream, a status before headers. They hear it also
        where the engine does not turn any more."""
        for request_id, queue in list(self._open.items()):
            self.engine.end(request_id, error, ending)
            queue.put(Failed(error))


class StreamHandler:
    """One request. The client's leaving is watched for in every phase, from before the hand-over to the last byte."""

    def __init__(self, streams: OpenStreams, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id = request_id
        self._queue = streams.enter(request_id)
        self._started = time.monotonic()
        self._first_text: float | None = None
        self._reason = FinishReason.STOP
        self._submitted = False
        self._ended = False
        self._headers_sent = False
        self._watcher: asyncio.Task[None] | None = None
        self.gone = False

    def watch(self) -> None:
        """Watch for the client's leaving; the body must have been read."""
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.gone = True
        if self._submitted and not self._ended:
            self._engine.cancel(self._id)
        self._queue.interrupt()

    def close(self) -> None:
        """Nothing of the request stays behind, however it ended."""
        if self._watcher is not None:
            self._watcher.cancel()
            # Its end keeps the frame that names this handler: a reference cycle, were it not let go here.
            self._watcher = None
        if self._submitted and not self._ended:
            self._engine.cancel(self._id)
        self._streams.leave(self._id)

    async def serve(self, renderer: Renderer) -> None:
        """Answer the renderer's request. Refusals before headers are answered here too, in its dialect."""
        if self.gone:
            return
        request = renderer.request
        try:
            if request.max_tokens == 0:
                self._answer_prompt_only(request)
            else:
                names = (renderer.id, context_of(self._scope).request_id)
                self._streams.submit(request, self._queue, names)
                self._submitted = True
            await (self._stream(renderer) if request.stream else self._whole(renderer))
        except RequestError as error:
            await refuse(self._scope, self._send, error, body=renderer.refusal(error))
        except Exception as error:
            if not self._headers_sent:
                raise
            what = type(error).__name__
            extra = {"request": self._id}
            log.error("request %s failed in its stream: %s", self._id, what, exc_info=error, extra=extra)
            last = renderer.failed(internal("writing the stream"))
            await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def _answer_prompt_only(self, request: Request) -> None:
        """Nothing is to be generated, so the engine is not needed."""
        for choice in range(request.n):
            self._queue.put(Finished(choice, FinishReason.LENGTH, 0))
        self._queue.put(Done(len(request.prompt), 0, 0))

    async def _whole(self, renderer: Renderer) -> None:
        answer = Answer(renderer.request.n)
        progress = Progress()
        while not self.gone:
            for event in self._queue.take():
                if isinstance(event, Failed):
                    self._ended = True
                    raise event.error
                if isinstance(event, Done):
                    self._end(event)
                    body = renderer.answer(answer, event)
                    await respond(self._scope, self._send, 200, body, headers=progress.headers())
                    return
                answer.add(event)
                progress.note(event)
                if isinstance(event, Text):
                    self._note_text()
                elif isinstance(event, Finished):
                    self._reason = event.reason
            await self._queue.wait()

    async def _stream(self, renderer: Renderer) -> None:
        """Headers at admission or after `headers_after_s`; then chunks as they come, a comment in each silence."""
        service = self._streams.service
        progress = Progress()
        opened = False
        heartbeat = HeartbeatTimer(self._queue, service.headers_after_s)
        try:
            while not self.gone:
                chunks = []
                for event in self._queue.take():
                    if isinstance(event, Failed) and not self._headers_sent:
                        self._ended = True
                        raise event.error
                    chunks.append(self._written(event, renderer, progress))
                    if self._ended:
                        break
                if not self._headers_sent and (progress.admitted or self._ended or heartbeat.due()):
                    self._headers_sent = True
                    await start(self._scope, self._send, 200, stream_headers(progress))
                    chunks.append(b"" if progress.admitted else self._said(renderer, progress))
                if not opened and (progress.admitted or (self._headers_sent and service.visible_status)):
                    opened = True
                    chunks.insert(0, renderer.opening())
                body = b"".join(chunks)
                if self._headers_sent and not body and not self._ended and heartbeat.due():
                    body = self._said(renderer, progress)
                if body or self._ended:
                    await self._send({"type": "http.response.body", "body": body, "more_body": not self._ended})
                    heartbeat.restart(service.heartbeat_s)
                if self._ended:
                    return
                await self._queue.wait()
        finally:
            heartbeat.close()

    def _said(self, renderer: Renderer, progress: Progress) -> bytes:
        """What breaks a silence: a comment, and before the first text a visible line where that is asked for."""
        visible = self._streams.service.visible_status and self._first_text is None
        return progress.comment() + (renderer.status(progress.words()) if visible else b"")

    def _written(self, event: Event, renderer: Renderer, progress: Progress) -> bytes:
        if isinstance(event, Text):
            self._note_text()
            progress.admitted = True
            return renderer.text(event)
        if isinstance(event, Finished):
            progress.admitted = True
            self._reason = event.reason
            return renderer.finished(event)
        if isinstance(event, Done):
            self._end(event)
            return renderer.done(event)
        if isinstance(event, Failed):
            self._ended = True
            return renderer.failed(event.error)
        progress.note(event)
        return progress.cut_comment() if isinstance(event, Admitted) and self._headers_sent else b""

    def _note_text(self) -> None:
        if self._first_text is None:
            self._first_text = time.monotonic()

    def _end(self, done: Done) -> None:
        self._ended = True
        self._streams.ended(self._id)
        ttft = None if self._first_text is None else self._first_text - self._started
        self._streams.metrics.finished(done, self._reason, ttft_s=ttft, duration_s=time.monotonic() - self._started)
