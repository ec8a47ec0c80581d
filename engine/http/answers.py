"""A whole answer, gathered from its request's events."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Event, Finished, FinishReason, Text, TokenLogprob


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
