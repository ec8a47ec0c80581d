"""From drawn tokens to what a client may see: text pieces with the log-probabilities of the tokens they account for.

A token whose text is held back (half a character, the possible beginning of a stop string) is held back with its
log-probability, so neither ever shows a part of a stop string.
"""

from __future__ import annotations

from collections import deque

from engine.execution.sampling import Sampled
from engine.models.text.detokenizer import Detokenizer, Piece
from engine.request import EventSink, Finished, FinishReason, Text, TokenLogprob


class TextStream:
    """One choice's way out."""

    def __init__(self, sink: EventSink, choice: int, detokenizer: Detokenizer) -> None:
        self._sink = sink
        self._choice = choice
        self._detokenizer = detokenizer
        self._logprobs: deque[TokenLogprob] = deque()

    def push(self, sampled: Sampled) -> str | None:
        """Take a drawn token and send what may be sent; return the stop string that it completed, if one."""
        if sampled.logprob is not None:
            self._logprobs.append(sampled.logprob)
        piece = self._detokenizer.push(sampled.token)
        self._send(piece)
        return piece.stop

    def finish(self, reason: FinishReason, completion_tokens: int) -> None:
        """Send what is held back and end the choice. A stop string that ended the text outranks `reason`."""
        piece = self._detokenizer.flush()
        self._send(piece)
        if piece.stop is not None:
            reason = FinishReason.STOP
        self._sink.put(Finished(self._choice, reason, completion_tokens, piece.stop))

    def _send(self, piece: Piece) -> None:
        if not piece.text and not piece.tokens:
            return
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._logprobs:
            logprobs = tuple(self._logprobs.popleft() for _ in range(piece.tokens))
        self._sink.put(Text(self._choice, piece.text, piece.tokens, logprobs))
