"""Tokens to text as it may be sent: whole characters, and nothing that could still become a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.text.interfaces import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be sent now. `tokens` more tokens, in order, are accounted for; `stop` is the string that ended the
    text, if one did."""

    text: str
    tokens: int
    stop: str | None = None


class Detokenizer:
    """The text of one choice as its tokens arrive. What it releases does not depend on where tokens part the text.

    A token is accounted for once all of its text has been released; where a stop string cuts the text, the tokens that
    start before the cut are. The stop that is complete first wins, among those the longest. Bytes that are not UTF-8
    become U+FFFD, as `bytes.decode(errors="replace")` does it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("stop strings must not be empty")
        self._token_bytes = tokenizer.token_bytes
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._released = 0
        self._decoded = 0
        # (first character, character after the last) of each token not yet accounted for, counted in decoded text.
        self._spans: deque[tuple[int, int]] = deque()
        self._stop: str | None = None

    def push(self, token: int) -> Piece:
        """Take one generated token. After a stop, further tokens release nothing."""
        if self._stop is not None:
            return Piece("", 0, self._stop)
        start = self._decoded
        text = self._decoder.decode(self._token_bytes(token))
        self._decoded += len(text)
        # A character begun but not complete becomes at least one character later.
        unfinished = 1 if self._decoder.getstate()[0] else 0
        self._spans.append((start, self._decoded + unfinished))
        if not self._stops:
            return self._release(text)
        self._held += text
        cut = self._first_stop()
        if cut is not None:
            return cut
        keep = self._may_begin_stop()
        text, self._held = self._held[:keep], self._held[keep:]
        return self._release(text)

    def flush(self) -> Piece:
        """The generation is over: release what is held back, and account for every token."""
        if self._stop is not None:
            return Piece("", 0, self._stop)
        rest = self._decoder.decode(b"", final=True)
        self._decoded += len(rest)
        self._held += rest
        cut = self._first_stop()
        if cut is not None:
            return cut
        text, self._held = self._held, ""
        tokens = len(self._spans)
        self._spans.clear()
        return Piece(text, tokens)

    def _release(self, text: str) -> Piece:
        self._released += len(text)
        spans, released, tokens = self._spans, self._released, 0
        while spans and spans[0][1] <= released:
            spans.popleft()
            tokens += 1
        return Piece(text, tokens)

    def _first_stop(self) -> Piece | None:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        _, at, self._stop = min(found)
        text = self._held[:at]
        self._released += at
        tokens = sum(start < self._released for start, _ in self._spans)
        self._held = ""
        self._spans.clear()
        return Piece(text, tokens, self._stop)

    def _may_begin_stop(self) -> int:
        """Where the earliest suffix starts that is the beginning of a stop string; the length where none does."""
        held = self._held
        earliest = len(held)
        for stop in self._stops:
            at = held.find(stop[0], max(0, len(held) - len(stop) + 1))
            while 0 <= at < earliest:
                if stop.startswith(held[at:]):
                    earliest = at
                    break
                at = held.find(stop[0], at + 1)
        return earliest
