"""A scripted engine that counts its slots as a real one does, and whose texts depend on the prompt alone, or not."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from engine.protocol import Health
from engine.request import Admitted, Done, Finished, FinishReason, PrefillProgress, Text, TokenLogprob
from tandem.bench.levels import WARM_UP_TOKENS
from tests.support.patience import LONG_S
from tests.support.scripted_engine import ScriptedEngine, Ticket, idle_health

WORDS = ("reed", "salt", "lamp", "oar", "fog", "stone", "gull", "rope")
LOOKS = 3
"""Health snapshots that an answer lasts: those who started together are seen together."""
GAP = 0.05


def text_of(prompt: tuple[int, ...], tokens: int) -> str:
    """A text of `tokens` letters that follows from the prompt."""
    seed = sum(i * t for i, t in enumerate(prompt, start=1))
    words = (WORDS[(seed >> (3 * i)) % len(WORDS)] for i in range(tokens))
    return " ".join(words)[:tokens]


@dataclass(eq=False)
class Answering:
    """An answer that is being written, and the most that ever were beside it, itself included."""

    neighbours: int = 1


class BusyEngine(ScriptedEngine):
    """`slots` slots; an answer ends once `LOOKS` snapshots were taken while it ran. `flawed` answers change their
    fourth letter when another one runs beside them."""

    def __init__(self, slots: int = 4, *, flawed: bool = False) -> None:
        super().__init__(self._answer)
        self.flawed = flawed
        self._free = threading.Semaphore(slots)
        self._turn = threading.Condition()
        self._looks = 0
        self._now: list[Answering] = []
        self._peak = 0
        self._rounds: dict[str, int] = {}
        self._idle = idle_health(slots)

    def health(self) -> Health:
        with self._turn:
            self._looks += 1
            self._turn.notify_all()
            parallel = msgspec.structs.replace(
                self._idle.parallel,
                decoding=len(self._now),
                running=len(self._now),
                peak_decoding=self._peak,
                rounds=dict(self._rounds),
            )
            return msgspec.structs.replace(self._idle, parallel=parallel)

    def _answer(self, ticket: Ticket) -> None:
        request = ticket.request
        tokens = request.max_tokens or 8
        with self._free:
            ticket.put(Admitted(0, 0, tokens), PrefillProgress(len(request.prompt), len(request.prompt)))
            this = Answering()
            # A bench watches its levels alone: neither its warm-up nor its search for a difference.
            watched = request.logprobs is None and tokens > WARM_UP_TOKENS
            with self._turn:
                self._now.append(this)
                for other in self._now:
                    other.neighbours = max(other.neighbours, len(self._now))
                self._peak = max(self._peak, len(self._now))
                until = self._looks + LOOKS
                if watched:
                    self._turn.wait_for(lambda: self._looks >= until or ticket.cancelled.is_set(), timeout=LONG_S)
                size = str(this.neighbours)
                self._rounds[size] = self._rounds.get(size, 0) + tokens
            text = text_of(request.prompt, tokens)
            if self.flawed and this.neighbours > 1:
                text = text[:3] + "#" + text[4:]
            for letter in text:
                ticket.put(Text(0, letter, 1, self._logprobs(letter, request.logprobs)))
            with self._turn:
                self._now.remove(this)
        ticket.put(Finished(0, FinishReason.LENGTH, tokens), Done(len(request.prompt), 0, tokens))

    @staticmethod
    def _logprobs(letter: str, wanted: int | None) -> tuple[TokenLogprob, ...]:
        if wanted is None:
            return ()
        top = ((ord(letter), -0.25), (ord("#"), -0.25 - GAP))
        return (TokenLogprob(ord(letter), -0.25, top[:wanted]),)
