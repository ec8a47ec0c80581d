"""The sentence on how a request ended: every ending, with and without the engine's own reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from console.viewmodel.endings import ended
from engine.protocol import Finish, LedgerRow
from tests.engine.process.ledger import rows

ROW = replace(
    rows.ROW,
    finished_at=rows.ROW.arrived_at + 8.2,
    prompt_tokens=301,
    cached_tokens=256,
    completion_tokens=256,
    max_tokens=256,
    decode_s=7.9,
    total_s=8.2,
    tok_s=31.0,
)
UNREAD = replace(ROW, completion_tokens=0, tok_s=None)
WAITING = replace(UNREAD, slot=None)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (ROW, "wrote 256 tokens at 31.0 tok/s and came to its end"),
        (replace(ROW, finish=Finish.LENGTH), "wrote 256 tokens at 31.0 tok/s and reached its limit"),
        (replace(ROW, completion_tokens=1, tok_s=None), "wrote 1 token and came to its end"),
        (
            replace(WAITING, finish=Finish.REFUSED, reason="the queue was full (8 of 8)"),
            "refused: the queue was full (8 of 8)",
        ),
        (replace(WAITING, finish=Finish.REFUSED), "refused: the engine gave no reason"),
        (
            replace(ROW, finish=Finish.ABANDONED, reason="its client left after 61 of at most 256 tokens"),
            "after 8.2 s, its client left after 61 of at most 256 tokens",
        ),
        (replace(WAITING, finish=Finish.ABANDONED), "after 8.2 s, its client left while it waited"),
        (
            replace(UNREAD, finish=Finish.ABANDONED),
            "after 8.2 s, its client left while its prompt of 301 tokens was read",
        ),
        (replace(ROW, finish=Finish.CANCELLED), "after 8.2 s, cancelled after 256 tokens"),
        (
            replace(WAITING, finish=Finish.TIMEOUT, reason="no slot came free within 240 s"),
            "ran out of time: no slot came free within 240 s",
        ),
        (replace(ROW, finish=Finish.TIMEOUT), "ran out of time: 8.2 s, after 256 tokens"),
        (replace(ROW, finish=Finish.ERROR, reason="logits"), "failed after 256 tokens: logits"),
        (replace(ROW, finish=Finish.ERROR), "failed after 256 tokens"),
    ],
)
def test_one_sentence_says_how_it_ended(row: LedgerRow, sentence: str) -> None:
    assert ended(row).sentence == sentence


def test_every_ending_has_a_glyph_and_a_word_of_its_own() -> None:
    labels = [ended(replace(ROW, finish=finish)).label for finish in Finish]
    assert all(label.glyph and label.text for label in labels)
    assert len({label.text for label in labels}) == len(labels)


def test_a_reason_is_literal() -> None:
    assert ended(replace(ROW, finish=Finish.REFUSED, reason="\x1b[2J")).sentence == "refused: ␛[2J"
