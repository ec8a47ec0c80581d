"""What a dialect must be able to write, and a whole answer gathered from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.request import Done, Event, Finished, FinishReason, RequestError, Text, TokenLogprob


@dataclass(slots=True)
class ChoiceAnswer:
    """One choice as gathered so far."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Answer:
    """Everything that a request has said, by choice."""

    def __init__(self, n: int) -> None:
        self.choices = [ChoiceAnswer() for _ in range(n)]

    def add(self, event: Event) -> None:
        if isinstance(event, Text):
            choice = self.choices[event.choice]
            choice.texts.append(event.text)
            choice.logprobs.extend(event.logprobs)
        elif isinstance(event, Finished):
            self.choices[event.choice].reason = event.reason


class Renderer(Protocol):
    """A dialect's way to write one request's answer. Each stream method returns whole server-sent events."""

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
