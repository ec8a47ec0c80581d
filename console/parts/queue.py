"""What each waiting request says."""

from __future__ import annotations

from console.screen import QueueView
from console.spans import literal
from console.words import WAIT_WORDS, Word
from engine.protocol import Queued, WaitState


def queued(entry: Queued) -> QueueView:
    home = f" {entry.home}" if entry.state is WaitState.HOME and entry.home is not None else ""
    word = WAIT_WORDS[entry.state]
    return QueueView(
        id=literal(entry.id),
        client=literal(entry.client),
        word=Word(word.glyph, f"waits for slot{home}, its own", word.tone) if home else word,
        reason=literal(entry.reason),
        prompt_tokens=entry.prompt_tokens,
        max_tokens=entry.max_tokens,
        since_s=entry.since_s,
        home=entry.home,
    )
