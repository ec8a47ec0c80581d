"""The two kinds of work in a turn: one chunk of one prompt, and one decode round over every slot that decodes.

Both go through `runner.forward`. What goes wrong in one slot's share ends that request alone.
"""

from __future__ import annotations

from engine.core.lifecycle import Lifecycle
from engine.core.scheduling.deadlines import MEMORY_RETRY_S
from engine.core.scheduling.prefill import PrefillCandidate, choose_prefill, chunk_end
from engine.core.state import EngineState
from engine.execution.rows import SlotRows, pack
from engine.execution.runner import StepOutput
from engine.execution.sampling import NonFiniteLogits
from engine.memory.kv.pool import CommitRefused
from engine.protocol import LaneState
from engine.request import Ending, FinishReason, PrefillProgress, RequestError
from engine.sequence.request_state import Sequence


class Rounds:
    """Computes rows and turns their logits into tokens."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle

    def prefill_chunk(self) -> bool:
        """Read at most one chunk of one prompt; none while decoding is owed its time. Whether one was read."""
        state = self._state
        candidates = state.prefilling()
        if not candidates:
            return False
        decoding = len(state.decoding())
        if not state.share.may_read(decoding=decoding):
            return False
        seq = self._choose(candidates)
        started = state.clock()
        self._read(seq)
        now = state.clock()
        state.share.chunk_ran(now - started, decoding=decoding)
        state.counters.last_progress = now
        return True

    def decode_round(self) -> bool:
        """One row of every decoding slot in one pass. Whether anything decoded."""
        state = self._state
        seqs = [c for c in state.decoding() if self._commit(c, c.slot.state.rows + 1)]
        # A commit that failed ended its request, and with it the request's other sequences.
        seqs = [c for c in seqs if c.slot.running is c]
        if not seqs:
            return False
        started = state.clock()
        rows = self._forward_round(seqs)
        ended: list[tuple[Sequence, FinishReason]] = []
        tokens = 0
        for seq, row in rows:
            if seq.slot.running is seq:
                seq.slot.state.extend(1)
                seq.rounds += 1
                held = seq.generated
                reason = self._take_token(seq, row)
                tokens += seq.generated - held
                if reason is not None:
                    ended.append((seq, reason))
        for seq, reason in ended:
            self._lifecycle.finish(seq, reason)
        now = state.clock()
        state.share.round_ran(now - started)
        state.counters.last_progress = now
        state.meters.round_ran(len(seqs), now - started, tokens)
        return True

    def _choose(self, candidates: list[Sequence]) -> Sequence:
        """Whose chunk is next. Marks who gave way, and why the others stand still."""
        state = self._state
        views = tuple(PrefillCandidate(c.slot.id, c.remaining_prompt, c.req.order, c.yields) for c in candidates)
        pick = choose_prefill(views, state.prefilling_slot)
        assert pick is not None
        chosen = next(c for c in candidates if c.slot.id == pick.slot)
        for seq in candidates:
            if seq.slot.id == pick.gave_way:
                seq.yields += 1
                seq.phase = LaneState.YIELDED
        chosen.phase = LaneState.PREFILLING
        state.prefilling_slot = pick.slot
        return chosen

    def _read(self, seq: Sequence) -> None:
        slot = seq.slot
        if not self._copy_from_sibling(seq):
            return
        start = slot.state.rows
        end = chunk_end(start, seq.prompt_len, self._state.chunk)
        last = end == seq.prompt_len
        if not self._commit(seq, end):
            return
        if not last:
            self._state.pool.ahead(slot.id, chunk_end(end, seq.prompt_len, self._state.chunk))
        share = SlotRows(slot.id, start, seq.token_ids[start:end], logits=(end - start - 1,) if last else ())
        specs = [seq.sampler.draw(len(seq.token_ids))] if last else []
        try:
            outcomes = self._state.model.runner.forward_and_sample(pack((share,)), specs)
        except Exception as error:  # noqa: BLE001 - whatever the pass raises ends this request alone
            self._broke(seq, error)
            return
        slot.state.extend(end - start)
        if seq.index == 0:
            seq.req.sink.put(PrefillProgress(end, seq.prompt_len))
        if not last:
            return
        self._state.prefilling_slot = None
        seq.phase = LaneState.DECODING
        reason = self._take_token(seq, outcomes[0])
        if reason is not None:
            self._lifecycle.finish(seq, reason)

    def _copy_from_sibling(self, seq: Sequence) -> bool:
        """Take over what another sequence of the request has read of their prompt; whether the request still runs.

        A row's bits are those of its path, so a copy is what reading would give. The last token is read in any case:
        its logits are not kept.
        """
        slot = seq.slot
        siblings = [c.slot for c in seq.req.running if c is not seq]
        source = max(siblings, key=lambda s: s.state.rows, default=None)
        if source is None:
            return True
        start, end = slot.state.rows, min(source.state.rows, seq.prompt_len - 1)
        if end <= start:
            return True
        if not self._commit(seq, end):
            return False
        try:
            self._state.model.runner.copy_rows(source.id, slot.id, start, end)
        except Exception as error:  # noqa: BLE001 - whatever the copy raises ends this request alone
            self._broke(seq, error)
            return False
        slot.state.extend(end - start)
        seq.cached = end
        return True

    def _forward_round(self, seqs: list[Sequence]) -> list[tuple[Sequence, StepOutput]]:
        """Each sequence's next token, or its row of logits where drawing takes more.

        Where the decode round raises, each slot runs alone, so that the one at fault shows itself; a row's result does
        not depend on its batch neighbours, so the others lose nothing. A sequence that ended with an earlier one of its
        request has no pages to write to any more."""
        batch = pack([_next_row(c) for c in seqs])
        specs = [c.sampler.draw(len(c.token_ids)) for c in seqs]
        try:
            outcomes = self._state.model.runner.forward_and_sample(batch, specs)
        except Exception as error:  # noqa: BLE001 - whatever the pass raises must not end the other requests
            if len(seqs) == 1:
                self._broke(seqs[0], error)
                return []
            alone = (self._forward_round([c]) for c in seqs if c.slot.running is c)
            return [(c, row if isinstance(row, int) else row.copy()) for rows in alone for c, row in rows]
        return list(zip(seqs, outcomes, strict=True))

    def _take_token(self, seq: Sequence, row: StepOutput) -> FinishReason | None:
        """Sample the next token from its row's outcome and send it; why the sequence is complete now, if it is."""
        try:
            sampler = seq.sampler
            sampled = sampler.take(row, seq.token_ids) if isinstance(row, int) else sampler.sample(row, seq.token_ids)
            seq.token_ids.append(sampled.token)
            gap = seq.token_came(self._state.clock())
            if gap is not None:
                self._state.meters.gaps.observe(gap)
            request = seq.req.request
            if sampled.token in request.stop_ids:
                return FinishReason.STOP
            if sampled.token in self._state.served.tokenizer.eos_ids and not request.ignore_eos:
                return FinishReason.STOP
            if seq.stream.push(sampled) is not None:
                return FinishReason.STOP
        except NonFiniteLogits as error:
            self._broke(seq, error)
            return None
        except Exception as error:  # noqa: BLE001 - a defect in one request's sampling or text ends that request
            self._broke(seq, error)
            return None
        return FinishReason.LENGTH if seq.generated >= seq.max_tokens else None

    def _commit(self, seq: Sequence, rows: int) -> bool:
        """Back the slot's rows `[0, rows)` with pages; where they cannot be had, the request ends."""
        state = self._state
        slot = seq.slot.id
        if seq.slot.running is not seq:
            return False
        try:
            taken = state.pool.commit(slot, rows)
        except CommitRefused as refusal:
            error = RequestError(str(refusal), status=503, code="out_of_memory", retry_after=MEMORY_RETRY_S)
            self._lifecycle.fail(seq.req, error, Ending.ERROR)
            return False
        if taken:
            state.memory.reservations.credit(slot, taken)
        return True

    def _broke(self, seq: Sequence, cause: Exception) -> None:
        what = str(cause) if isinstance(cause, NonFiniteLogits) else f"{type(cause).__name__} while computing"
        error = RequestError(f"this request failed in the engine: {what}", status=500, code="engine_error")
        self._lifecycle.fail(seq.req, error, Ending.ERROR, cause)


def _next_row(seq: Sequence) -> SlotRows:
    """The pass's share of a decoding sequence: the token drawn last, whose row is not computed yet."""
    return SlotRows(seq.slot.id, seq.slot.state.rows, seq.token_ids[-1:], logits=(0,))
