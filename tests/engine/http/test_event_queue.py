"""Mailboxes: order, merging for a slow reader, one wake-up for many, and nothing lost in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from engine.http.event_queue import MERGE_ABOVE, EventQueue, LoopWaker
from engine.http.sse import HeartbeatTimer
from engine.protocol import WaitState
from engine.request import Done, Event, Finished, FinishReason, PrefillProgress, Text, TokenLogprob, Waiting
from tests.support.patience import LONG_S


def with_mailbox(*events: Event) -> tuple[EventQueue, LoopWaker]:
    waker = LoopWaker(asyncio.new_event_loop())
    queue = EventQueue(waker)
    for event in events:
        queue.put(event)
    waker._loop.close()
    return queue, waker


def test_events_come_in_order_and_apart_for_a_quick_reader() -> None:
    sent: list[Event] = [
        PrefillProgress(1, 1),
        Text(0, "a", 1),
        Text(0, "b", 1),
        Finished(0, FinishReason.STOP, 2),
        Done(1, 0, 2),
    ]
    queue, _ = with_mailbox(*sent)
    assert queue.take() == sent
    assert queue.take() == []


def test_only_the_newest_progress_is_kept() -> None:
    queue, _ = with_mailbox(
        Waiting(WaitState.SLOT, "a"),
        Waiting(WaitState.MEMORY, "b"),
        PrefillProgress(1, 9),
        PrefillProgress(2, 9),
        PrefillProgress(3, 9),
    )
    assert queue.take() == [Waiting(WaitState.MEMORY, "b"), PrefillProgress(3, 9)]


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), max_size=4 * MERGE_ABOVE))
def test_merging_loses_nothing(pieces: list[tuple[int, str]]) -> None:
    """Whatever the mix, each choice's text, token count and log-probabilities arrive whole and in order, bounded."""
    queue, _ = with_mailbox(*(Text(c, text, 1, (TokenLogprob(i, -1.0),)) for i, (c, text) in enumerate(pieces)))
    taken = [event for event in queue.take() if isinstance(event, Text)]
    assert len(taken) <= MERGE_ABOVE + 4
    for choice in range(4):
        mine = [event for event in taken if event.choice == choice]
        assert "".join(event.text for event in mine) == "".join(text for c, text in pieces if c == choice)
        assert sum(event.tokens for event in mine) == sum(c == choice for c, _ in pieces)
        tokens = [entry.token for event in mine for entry in event.logprobs]
        assert tokens == [i for i, (c, _) in enumerate(pieces) if c == choice]


def test_the_end_follows_merged_text() -> None:
    texts = [Text(0, "x", 1) for _ in range(MERGE_ABOVE + 10)]
    queue, _ = with_mailbox(*texts, Finished(0, FinishReason.LENGTH, 3), Done(1, 0, 3))
    *head, finished, done = queue.take()
    assert "".join(event.text for event in head if isinstance(event, Text)) == "x" * len(texts)
    assert isinstance(finished, Finished)
    assert isinstance(done, Done)


def test_one_wakeup_for_many_mailboxes() -> None:
    """A round's worth of events in several mailboxes costs one call into the loop; the next round costs one more."""

    async def scenario() -> None:
        waker = LoopWaker(asyncio.get_running_loop())
        boxes = [EventQueue(waker) for _ in range(4)]
        for expected in (1, 2):
            waits = [asyncio.create_task(box.wait()) for box in boxes]
            await asyncio.sleep(0)
            for box in boxes:
                box.put(Text(0, "a", 1))
                box.put(Text(0, "b", 1))
            await asyncio.wait_for(asyncio.gather(*waits), LONG_S)
            assert waker.wakeups == expected
            assert [len(box.take()) for box in boxes] == [2, 2, 2, 2]

    asyncio.run(scenario())


def test_nothing_is_lost_between_threads() -> None:
    """A writer that never pauses and a reader that sleeps only when there is nothing: every token arrives."""
    count = 20_000

    async def scenario() -> int:
        waker = LoopWaker(asyncio.get_running_loop())
        queue = EventQueue(waker)

        def write() -> None:
            for _ in range(count):
                queue.put(Text(0, "a", 1))
            queue.put(Done(1, 0, count))

        writer = threading.Thread(target=write)
        writer.start()
        tokens, done = 0, False
        while not done:
            for event in queue.take():
                if isinstance(event, Text):
                    tokens += event.tokens
                done = done or isinstance(event, Done)
            if not done:
                await asyncio.wait_for(queue.wait(), LONG_S)
        writer.join()
        return tokens

    assert asyncio.run(scenario()) == count


def test_a_nudge_wakes_without_an_event() -> None:
    async def scenario() -> None:
        queue = EventQueue(LoopWaker(asyncio.get_running_loop()))
        queue.interrupt()
        await asyncio.wait_for(queue.wait(), LONG_S)
        waiting = asyncio.create_task(queue.wait())
        await asyncio.sleep(0)
        assert not waiting.done(), "a nudge is used up by the wait that it ended"
        queue.interrupt()
        await asyncio.wait_for(waiting, LONG_S)
        assert queue.take() == []

    asyncio.run(scenario())


def test_a_closed_mailbox_keeps_nothing() -> None:
    queue, _ = with_mailbox(Text(0, "a", 1))
    queue.close()
    queue.put(Text(0, "b", 1))
    assert queue.take() == []


def test_a_loop_that_ended_does_not_hurt_the_writer() -> None:
    queue, waker = with_mailbox()
    queue.put(Text(0, "a", 1))
    assert waker.wakeups == 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_alarm_that_is_due_at_once_can_be_restarted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A busy loop comes late: the alarm is due before its timer has run."""

    async def scenario() -> None:
        queue = EventQueue(LoopWaker(asyncio.get_running_loop()))
        heartbeat = HeartbeatTimer(queue, 0.0)
        heartbeat.restart(LONG_S)
        heartbeat.restart(0.0)
        await asyncio.wait_for(queue.wait(), LONG_S)
        assert heartbeat.due()
        heartbeat.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
