"""How a request begins in a slot and how it ends, every way: the only place where slots change hands.

Whatever ends a request, its slot is idle afterwards, its reservation is gone, the pages past the rows that stay are
given back, and it is counted once.
"""

from __future__ import annotations

import numpy as np

from engine.core import log_lines as records
from engine.core.scheduling import reasons
from engine.core.scheduling.routing import Place
from engine.core.state import EngineState
from engine.execution.sampling import Sampler
from engine.memory.admission import Need
from engine.models.text.detokenizer import Detokenizer
from engine.process.ledger.entry import ended_row
from engine.protocol import Finish
from engine.request import Admitted, Done, Ending, Event, Failed, FinishReason, RequestError
from engine.sequence.cache_key import CacheKey
from engine.sequence.request_state import Choice, Job, Slot
from engine.sequence.text_stream import TextStream

_FINISH = {
    Ending.REFUSED: Finish.REFUSED,
    Ending.ERROR: Finish.ERROR,
    Ending.TIMEOUT: Finish.TIMEOUT,
    Ending.CANCELLED: Finish.CANCELLED,
}
"""How a request ended that got an error."""


class Lifecycle:
    """Begins and ends requests on the engine's slots."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def begin(self, job: Job, place: Place, need: Need) -> Choice:
        """Start the job's next choice where `place` says, on top of the rows that the slot already holds for it, with
        `need` reserved. Where what the request brings makes that impossible, nothing has changed."""
        state = self._state
        request = job.request
        now = state.clock()
        slot = state.slots[place.slot]
        holder = state.slots[0].running
        index = job.pending[0]
        sampler = Sampler(request.sampling, choice=index, prompt_len=job.prompt_len, logprobs=request.logprobs)
        stream = TextStream(job.sink, index, Detokenizer(state.served.tokenizer, request.stop))
        state.memory.ledger.reserve(slot.id, need)
        job.pending.popleft()
        cached = state.resident.restore(slot, job.key, job.prompt_len - 1)
        choice = Choice(
            job=job,
            index=index,
            slot=slot,
            path=list(request.prompt),
            prompt_len=job.prompt_len,
            cached=cached,
            max_tokens=place.max_tokens,
            sampler=sampler,
            stream=stream,
            started=now,
        )
        slot.running = choice
        job.running.append(choice)
        state.inbox.slot_taken()
        if not job.pending:
            state.queue.remove(job)
        if place.gave_up == 0:
            state.counters.slot0_gave_up += 1
        records.routed(
            job,
            place,
            cached=cached,
            waited_s=now - job.arrived,
            slot0_holder=None if holder is None else holder.job.request.id,
        )
        if not job.admitted:
            self._admit(job, place, cached, now)
        return choice

    def _admit(self, job: Job, place: Place, cached: int, now: float) -> None:
        job.admitted = True
        job.admitted_at = now
        job.slot = place.slot
        job.route = str(place.rule)
        self._state.meters.queue.observe(now - job.arrived)
        job.waiting = None
        job.cached_tokens = cached
        job.max_tokens = place.max_tokens
        self._state.inbox.request_runs(job.request.id)
        asked = job.request.max_tokens
        cut_from = asked if asked is not None and asked > place.max_tokens else None
        job.sink.put(Admitted(place.slot, cached, place.max_tokens, cut_from))

    def finish(self, choice: Choice, reason: FinishReason) -> None:
        """`choice` is complete. Its slot keeps the conversation; the request is done with its last choice."""
        job = choice.job
        job.choice_ended(choice)
        self._vacate(choice, keep=True)
        choice.stream.finish(reason, choice.generated)
        if not job.running and not job.pending:
            done = Done(job.prompt_len, job.cached_tokens, job.completion_tokens)
            self._close(job, choice, Ending.SERVED, Finish(reason), None, done)

    def fail(self, job: Job, error: RequestError, ending: Ending, cause: BaseException | None = None) -> None:
        """End `job` with `error`. After a defect nothing that its slots hold is trusted."""
        if cause is not None:
            records.failed(job, error, cause)
        last = self._stop_all(job, keep=cause is None)
        self._close(job, last, ending, _FINISH[ending], error, Failed(error))

    def abandon(self, job: Job) -> None:
        """The client left. What was read stays as the slot's conversation; nobody hears of it."""
        last = self._stop_all(job, keep=True)
        self._close(job, last, Ending.ABANDONED, Finish.ABANDONED, None, None)

    def _stop_all(self, job: Job, *, keep: bool) -> Choice | None:
        last = job.running[-1] if job.running else None
        for choice in tuple(job.running):
            job.choice_ended(choice)
            self._vacate(choice, keep=keep)
        return last

    def _vacate(self, choice: Choice, *, keep: bool) -> None:
        state = self._state
        slot = choice.slot
        slot.running = None
        slot.last_used = state.clock()
        choice.job.running.remove(choice)
        if keep:
            state.resident.keep(slot, _held_key(choice, slot), choice.prompt_len)
        else:
            state.resident.drop(slot)
        state.memory.ledger.release(slot.id)
        state.pool.release(slot.id, slot.state.rows)
        if state.reading == slot.id:
            state.reading = None
        state.settled = False
        state.inbox.slot_freed()

    def _close(
        self,
        job: Job,
        last: Choice | None,
        ending: Ending,
        finish: Finish,
        error: RequestError | None,
        event: Event | None,
    ) -> None:
        state = self._state
        del state.jobs[job.request.id]
        if job in state.queue:
            state.queue.remove(job)
        state.settled = False
        state.counters.endings[ending] += 1
        state.inbox.request_ended(job.request.id)
        if event is not None:
            job.sink.put(event)
        now = state.clock()
        records.ended(job, last, ending, str(finish) if error is None else error.code, now)
        if state.ledger is not None:
            read = None if last is None else last.prompt_len - last.unread
            reason = reasons.left(job.completion_tokens, read, job.prompt_len) if error is None else error.message
            kept = None if ending is Ending.SERVED else reason
            state.ledger.add(ended_row(job, finish, kept, now=now, wall=state.wall()))


def _held_key(choice: Choice, slot: Slot) -> CacheKey:
    """The tokens of the slot's valid rows."""
    rows = slot.state.rows
    prompt = choice.job.key
    generated = np.array(choice.path[choice.prompt_len : rows], np.int32)
    tokens = prompt.tokens[:rows] if rows <= choice.prompt_len else np.concatenate((prompt.tokens, generated))
    return CacheKey(prompt.namespace, tokens)
