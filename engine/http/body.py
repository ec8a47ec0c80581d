"""Bodies on their way in: received within one budget of memory, then read on a thread where that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.http.limits import BODIES_BYTES, FREE_BODY_BYTES
from engine.http.wire import ClientGone, Receive, Scope, header
from engine.memory.trim import return_free_memory
from engine.request import RequestError

READ_ASIDE_BYTES = 4 << 10
"""Bodies over this are decoded, rendered and tokenised on a thread, so that `/health` and streams do not wait."""

HEAVY_BYTES = 64 << 10
"""Bodies over this are read one at a time. They leave so much freed memory behind, up to a thousand bytes for each of a
text, that it is given back."""

WAITING_READERS = 4
"""Threads for bodies whose reading waits for the template's process. A hostile template keeps it busy for seconds: such
bodies are never read on the loop, nor on the threads that others need."""

RETRY_S = 2

T = TypeVar("T")


class Body:
    """One body. Its bytes are let go by whoever takes them, and its part of the budget by `release`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._charged = 0
        self._data = bytearray()
        self.size = 0

    def add(self, part: bytes) -> None:
        """Raises RequestError(503) where all bodies together would be over the budget."""
        self.size += len(part)
        charge = max(0, self.size - FREE_BODY_BYTES) - self._charged
        self._budget.take(charge)
        self._charged += charge
        self._data += part

    def take(self) -> bytearray:
        """The bytes, once: an answer may run for an hour, and must not keep the megabytes that it was asked with."""
        data, self._data = self._data, bytearray()
        return data

    def release(self) -> None:
        """Give up the bytes and their part of the budget. Idempotent."""
        self._data = bytearray()
        self._budget.give_back(self._charged)
        self._charged = 0


class Budget:
    """The bytes that all bodies together may have."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Raises RequestError(503) where there is no room for `size` more bytes."""
        self.check(size)
        self.held += size

    def check(self, size: int) -> None:
        """Raises RequestError(503) where there is no room for `size` more bytes now."""
        if self.held + size > self.limit:
            raise RequestError(
                f"all request bodies together may have {self.limit:,} bytes here and others have {self.held:,} of them",
                status=503,
                code="bodies_full",
                retry_after=RETRY_S,
            )

    def give_back(self, size: int) -> None:
        self.held -= size


class Bodies:
    """Receives and reads the bodies of one application. Event loop only."""

    def __init__(self, limit: int) -> None:
        """`limit` is the bytes of one body. The budget is never so small that such a body could not come alone."""
        self._limit = limit
        self.budget = Budget(max(BODIES_BYTES, limit))
        self._heavy = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tandem-heavy-body")
        self._waiting = ThreadPoolExecutor(WAITING_READERS, thread_name_prefix="tandem-chat")

    async def receive(self, scope: Scope, receive: Receive) -> Body:
        """The body, never more than its limit in memory. Raises RequestError (415 for an encoding, 413 over the limit,
        503 over the budget) and ClientGone."""
        encoding = header(scope, b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in ("", "identity"):
            raise RequestError(
                f"the body has the Content-Encoding {encoding[:60]!r}; send it without one",
                status=415,
                code="unsupported_encoding",
            )
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdigit():
            if int(declared) > self._limit:
                raise self._too_large(f"{int(declared):,}")
            # Before any of it is read: it would only be read to be refused.
            self.budget.check(max(0, int(declared) - FREE_BODY_BYTES))
        body = Body(self.budget)
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                if body.size + len(part) > self._limit:
                    raise self._too_large(f"over {self._limit:,}")
                body.add(part)
                if not message.get("more_body", False):
                    return body
        except BaseException:
            body.release()
            raise

    async def read(
        self, body: Body, work: Callable[[bytearray], T], wanted: Callable[[], bool], *, waits: bool = False
    ) -> T:
        """What `work` makes of the body's bytes; `waits` where it waits for the template's process.

        A heavy body waits for the ones before it. A body that waited is dropped with ClientGone where it is not
        `wanted` any more when its turn comes. The body is released.
        """
        try:
            loop = asyncio.get_running_loop()
            if body.size > HEAVY_BYTES:
                return await loop.run_in_executor(self._heavy, lambda: _heavily(body, work, wanted))
            if waits:
                return await loop.run_in_executor(self._waiting, lambda: _if_wanted(body, work, wanted))
            if body.size > READ_ASIDE_BYTES:
                return await asyncio.to_thread(lambda: work(body.take()))
            return work(body.take())
        finally:
            body.release()

    def _too_large(self, size: str) -> RequestError:
        message = f"the body has {size} bytes, the limit is {self._limit:,}"
        return RequestError(message, status=413, code="body_too_large")


def _if_wanted(body: Body, work: Callable[[bytearray], T], wanted: Callable[[], bool]) -> T:
    if not wanted():
        raise ClientGone
    return work(body.take())


def _heavily(body: Body, work: Callable[[bytearray], T], wanted: Callable[[], bool]) -> T:
    try:
        return _if_wanted(body, work, wanted)
    finally:
        return_free_memory()
