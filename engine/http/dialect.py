"""What a dialect is to the routes: a way to read its bodies into requests, and to write their answers.

A dialect is a folder: its bodies as Structs with bounds, one `Reader` a route that maps such a Struct to the one
neutral `Request`, and one `Renderer` a route that writes the answer's events. Everything else is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.api import ServedModel
from engine.http.answers import Answer
from engine.request import Done, Finished, Request, RequestError, Text


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks: the request's id, the client's label, and the namespace of its caches."""

    id: str
    client: str
    namespace: str = ""


class Renderer(Protocol):
    """One request, and a dialect's way to write its answer. Each stream method returns whole server-sent events.

    A request of no tokens (`max_tokens` 0) never reaches the engine: its answer is what the renderer has of the prompt.
    """

    @property
    def request(self) -> Request: ...

    @property
    def id(self) -> str:
        """The answer's id in its body."""
        ...

    def opening(self) -> bytes: ...

    def status(self, words: str) -> bytes:
        """What the stream waits for, where the dialect can show it apart from the answer; else nothing."""
        ...

    def text(self, event: Text) -> bytes: ...

    def finished(self, event: Finished) -> bytes: ...

    def done(self, event: Done) -> bytes: ...

    def failed(self, error: RequestError) -> bytes: ...

    def refusal(self, error: RequestError) -> bytes:
        """The JSON body of a refusal before any header."""
        ...

    def answer(self, answer: Answer, done: Done) -> bytes:
        """The JSON body of an answer that is not streamed."""
        ...


Reader = Callable[[bytearray, ServedModel, Origin, str], Renderer]
"""A body's bytes, the model that is served, who asks and the program's version: the request in them. Raises
RequestError(400) naming the field, the limit and the value."""
