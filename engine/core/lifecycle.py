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
from engine.models.text.detokenizer import Detokenizer
from engine.process.ledger.entry import ended_row
from engine.protocol import Finish
from engine.request import Admitted, Done, Ending, Event, Failed, FinishReason, RequestError
from engine.sequence.cache_key import CacheKey
from engine.sequence.request_state import RequestState, Sequence, Slot
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

    def begin(self, req: RequestState, place: Place, need: int) -> Sequence:
        """Start the request's next sequence where `place` says, on top of the rows that the slot already holds for it,
        with `need` reserved. Where what the request brings makes that impossible, nothing has changed."""
        state = self._state
        request = req.request
        now = state.clock()
        slot = state.slots[place.slot]
        holder = state.slots[0].running
        index = req.pending[0]
        sampler = Sampler(request.sampling, choice=index, prompt_len=req.prompt_len, logprobs=request.logprobs)
        stream = TextStream(req.sink, index, Detokenizer(state.served.tokenizer, request.stop))
        state.memory.reservations.reserve(slot.id, need)
        req.pending.popleft()
        cached = state.resident.restore(slot, req.key, req.prompt_len - 1)
        seq = Sequence(
            req=req,
            index=index,
            slot=slot,
            token_ids=list(request.prompt),
            prompt_len=req.prompt_len,
            cached=cached,
            max_tokens=place.max_tokens,
            sampler=sampler,
            stream=stream,
            started=now,
        )
        slot.running = seq
        req.running.append(seq)
        state.inbox.slot_taken()
        if not req.pending:
            state.queue.remove(req)
        if place.preference_expired == 0:
            state.counters.slot0_gave_up += 1
        records.routed(
            req,
            place,
            cached=cached,
            waited_s=now - req.arrived,
            slot0_holder=None if holder is None else holder.req.request.id,
        )
        if not req.admitted:
            self._admit(req, place, cached, now)
        return seq

    def _admit(self, req: RequestState, place: Place, cached: int, now: float) -> None:
        req.admitted = True
        req.admitted_at = now
        req.slot = place.slot
        req.route = str(place.rule)
        self._state.meters.queue.observe(now - req.arrived)
        req.waiting = None
        req.cached_tokens = cached
        req.max_tokens = place.max_tokens
        self._state.inbox.request_runs(req.request.id)
        asked = req.request.max_tokens
        cut_from = asked if asked is not None and asked > place.max_tokens else None
        req.sink.put(Admitted(place.slot, cached, place.max_tokens, cut_from))

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """`seq` is complete. Its slot keeps the conversation; the request is done with its last sequence."""
        req = seq.req
        req.sequence_ended(seq)
        self._vacate(seq, keep=True)
        seq.stream.finish(reason, seq.generated)
        if not req.running and not req.pending:
            done = Done(req.prompt_len, req.cached_tokens, req.completion_tokens)
            self._close(req, seq, ending=Ending.SERVED, finish=Finish(reason), error=None, event=done)

    def fail(self, req: RequestState, error: RequestError, ending: Ending, cause: BaseException | None = None) -> None:
        """End `req` with `error`. After a defect nothing that its slots hold is trusted."""
        if cause is not None:
            records.failed(req, error, cause)
        last = self._stop_all(req, keep=cause is None)
        self._close(req, last, ending=ending, finish=_FINISH[ending], error=error, event=Failed(error))

    def abandon(self, req: RequestState) -> None:
        """The client left. What was read stays as the slot's conversation; nobody hears of it."""
        last = self._stop_all(req, keep=True)
        self._close(req, last, ending=Ending.ABANDONED, finish=Finish.ABANDONED, error=None, event=None)

    def _stop_all(self, req: RequestState, *, keep: bool) -> Sequence | None:
        last = req.running[-1] if req.running else None
        for seq in tuple(req.running):
            req.sequence_ended(seq)
            self._vacate(seq, keep=keep)
        return last

    def _vacate(self, seq: Sequence, *, keep: bool) -> None:
        state = self._state
        slot = seq.slot
        slot.running = None
        slot.last_used = state.clock()
        seq.req.running.remove(seq)
        if keep:
            state.resident.keep(slot, _held_key(seq, slot), seq.prompt_len)
        else:
            state.resident.drop(slot)
        state.memory.reservations.release(slot.id)
        state.pool.release(slot.id, slot.state.rows)
        if state.prefilling_slot == slot.id:
            state.prefilling_slot = None
        state.queue_unchanged = False
        state.inbox.slot_freed()

    def _close(
        self,
        req: RequestState,
        last: Sequence | None,
        *,
        ending: Ending,
        finish: Finish,
        error: RequestError | None,
        event: Event | None,
    ) -> None:
        state = self._state
        del state.requests[req.request.id]
        if req in state.queue:
            state.queue.remove(req)
        state.queue_unchanged = False
        state.counters.endings[ending] += 1
        state.inbox.request_ended(req.request.id)
        if event is not None:
            req.sink.put(event)
        now = state.clock()
        records.ended(req, last, ending, str(finish) if error is None else error.code, now)
        if state.ledger is not None:
            read = None if last is None else last.prompt_len - last.remaining_prompt
            reason = reasons.left(req.completion_tokens, read, req.prompt_len) if error is None else error.message
            kept = None if ending is Ending.SERVED else reason
            state.ledger.add(ended_row(req, finish, kept, now=now, wall=state.wall()))


def _held_key(seq: Sequence, slot: Slot) -> CacheKey:
    """The tokens of the slot's valid rows."""
    rows = slot.state.rows
    prompt = seq.req.key
    generated = np.array(seq.token_ids[seq.prompt_len : rows], np.int32)
    tokens = prompt.tokens[:rows] if rows <= seq.prompt_len else np.concatenate((prompt.tokens, generated))
    return CacheKey(prompt.namespace, tokens)
