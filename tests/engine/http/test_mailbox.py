"""Mailboxes: order, merging for a slow reader, one wake-up for many, and nothing lost in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from engine.http.mailbox import MERGE_ABOVE, Mailbox, Mailroom
from engine.http.sse import Alarm
from engine.protocol import WaitState
from engine.request import Done, Event, Finished, FinishReason, Reading, Text, TokenLogprob, Waiting
from tests.support.patience import LONG_S


def with_mailbox(*events: Event) -> tuple[Mailbox, Mailroom]:
    room = Mailroom(asyncio.new_event_loop())
    mailbox = Mailbox(room)
    for event in events:
        mailbox.put(event)
    room._loop.close()
    return mailbox, room


def test_events_come_in_order_and_apart_for_a_quick_reader() -> None:
    sent: list[Event] = [
        Reading(1, 1),
        Text(0, "a", 1),
        Text(0, "b", 1),
        Finished(0, FinishReason.STOP, 2),
        Done(1, 0, 2),
    ]
    mailbox, _ = with_mailbox(*sent)
    assert mailbox.take() == sent
    assert mailbox.take() == []


def test_only_the_newest_progress_is_kept() -> None:
    mailbox, _ = with_mailbox(
        Waiting(WaitState.SLOT, "a"), Waiting(WaitState.MEMORY, "b"), Reading(1, 9), Reading(2, 9), Reading(3, 9)
    )
    assert mailbox.take() == [Waiting(WaitState.MEMORY, "b"), Reading(3, 9)]


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), max_size=4 * MERGE_ABOVE))
def test_merging_loses_nothing(pieces: list[tuple[int, str]]) -> None:
    """Whatever the mix, each choice's text, token count and log-probabilities arrive whole and in order, bounded."""
    mailbox, _ = with_mailbox(*(Text(c, text, 1, (TokenLogprob(i, -1.0),)) for i, (c, text) in enumerate(pieces)))
    taken = [event for event in mailbox.take() if isinstance(event, Text)]
    assert len(taken) <= MERGE_ABOVE + 4
    for choice in range(4):
        mine = [event for event in taken if event.choice == choice]
        assert "".join(event.text for event in mine) == "".join(text for c, text in pieces if c == choice)
        assert sum(event.tokens for event in mine) == sum(c == choice for c, _ in pieces)
        tokens = [entry.token for event in mine for entry in event.logprobs]
        assert tokens == [i for i, (c, _) in enumerate(pieces) if c == choice]


def test_the_end_follows_merged_text() -> None:
    texts = [Text(0, "x", 1) for _ in range(MERGE_ABOVE + 10)]
    mailbox, _ = with_mailbox(*texts, Finished(0, FinishReason.LENGTH, 3), Done(1, 0, 3))
    *head, finished, done = mailbox.take()
    assert "".join(event.text for event in head if isinstance(event, Text)) == "x" * len(texts)
    assert isinstance(finished, Finished)
    assert isinstance(done, Done)


def test_one_wakeup_for_many_mailboxes() -> None:
    """A round's worth of events in several mailboxes costs one call into the loop; the next round costs one more."""

    async def scenario() -> None:
        room = Mailroom(asyncio.get_running_loop())
        boxes = [Mailbox(room) for _ in range(4)]
        for expected in (1, 2):
            waits = [asyncio.create_task(box.wait()) for box in boxes]
            await asyncio.sleep(0)
            for box in boxes:
                box.put(Text(0, "a", 1))
                box.put(Text(0, "b", 1))
            await asyncio.wait_for(asyncio.gather(*waits), LONG_S)
            assert room.wakeups == expected
            assert [len(box.take()) for box in boxes] == [2, 2, 2, 2]

    asyncio.run(scenario())


def test_nothing_is_lost_between_threads() -> None:
    """A writer that never pauses and a reader that sleeps only when there is nothing: every token arrives."""
    count = 20_000

    async def scenario() -> int:
        room = Mailroom(asyncio.get_running_loop())
        mailbox = Mailbox(room)

        def write() -> None:
            for _ in range(count):
                mailbox.put(Text(0, "a", 1))
            mailbox.put(Done(1, 0, count))

        writer = threading.Thread(target=write)
        writer.start()
        tokens, done = 0, False
        while not done:
            for event in mailbox.take():
                if isinstance(event, Text):
                    tokens += event.tokens
                done = done or isinstance(event, Done)
            if not done:
                await asyncio.wait_for(mailbox.wait(), LONG_S)
        writer.join()
        return tokens

    assert asyncio.run(scenario()) == count


def test_a_nudge_wakes_without_an_event() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(Mailroom(asyncio.get_running_loop()))
        mailbox.nudge()
        await asyncio.wait_for(mailbox.wait(), LONG_S)
        waiting = asyncio.create_task(mailbox.wait())
        await asyncio.sleep(0)
        assert not waiting.done(), "a nudge is used up by the wait that it ended"
        mailbox.nudge()
        await asyncio.wait_for(waiting, LONG_S)
        assert mailbox.take() == []

    asyncio.run(scenario())


def test_a_closed_mailbox_keeps_nothing() -> None:
    mailbox, _ = with_mailbox(Text(0, "a", 1))
    mailbox.close()
    mailbox.put(Text(0, "b", 1))
    assert mailbox.take() == []


def test_a_loop_that_ended_does_not_hurt_the_writer() -> None:
    mailbox, room = with_mailbox()
    mailbox.put(Text(0, "a", 1))
    assert room.wakeups == 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_alarm_that_is_due_at_once_can_be_restarted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A busy loop comes late: the alarm is due before its timer has run."""

    async def scenario() -> None:
        mailbox = Mailbox(Mailroom(asyncio.get_running_loop()))
        alarm = Alarm(mailbox, 0.0)
        alarm.restart(LONG_S)
        alarm.restart(0.0)
        await asyncio.wait_for(mailbox.wait(), LONG_S)
        assert alarm.due()
        alarm.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
