"""The two kinds of work in a turn: one chunk of one prompt, and one joint round over every slot that decodes.

Both go through `runner.forward`. What goes wrong in one slot's share ends that request alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.lifecycle import Lifecycle
from engine.core.scheduling.deadlines import MEMORY_RETRY_S
from engine.core.scheduling.prefill import Reader, choose_reader, chunk_end
from engine.core.state import EngineState
from engine.execution.rows import SlotRows, pack
from engine.execution.runner import StepOutput
from engine.execution.sampling import NonFiniteLogits
from engine.memory.kv.pool import CommitRefused
from engine.protocol import LaneState
from engine.request import Ending, FinishReason, Reading, RequestError
from engine.sequence.request_state import Choice


class Rounds:
    """Computes rows and turns their logits into tokens."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle

    def read_chunk(self) -> bool:
        """Read at most one chunk of one prompt; none while decoding is owed its time. Whether one was read."""
        state = self._state
        readers = state.reading_choices()
        if not readers:
            return False
        decoding = len(state.decoding())
        if not state.share.may_read(decoding=decoding):
            return False
        choice = self._choose(readers)
        started = state.clock()
        self._read(choice)
        now = state.clock()
        state.share.chunk_ran(now - started, decoding=decoding)
        state.counters.last_progress = now
        return True

    def joint_round(self) -> bool:
        """One row of every decoding slot in one pass. Whether anything decoded."""
        state = self._state
        calm = state.pool.calm
        choices = [
            c for c in state.decoding() if c.slot.state.rows < calm[c.slot.id] or self._commit(c, c.slot.state.rows + 1)
        ]
        choices = [c for c in choices if c.slot.running is c]
        if not choices:
            return False
        started = state.clock()
        rows = self._forward_round(choices)
        ended: list[tuple[Choice, FinishReason]] = []
        tokens = 0
        for choice, row in rows:
            if choice.slot.running is choice:
                choice.slot.state.extend(1)
                choice.rounds += 1
                held = choice.generated
                reason = self._take_token(choice, row)
                tokens += choice.generated - held
                if reason is not None:
                    ended.append((choice, reason))
        for choice, reason in ended:
            self._lifecycle.finish(choice, reason)
        now = state.clock()
        state.share.round_ran(now - started)
        state.counters.round_ran(len(choices), now)
        state.meters.round_ran(len(choices), now - started, tokens)
        return True

    def _choose(self, readers: Sequence[Choice]) -> Choice:
        """Whose chunk is next. Marks who gave way, and why the others stand still."""
        state = self._state
        views = tuple(Reader(c.slot.id, c.unread, c.job.order, c.yields) for c in readers)
        pick = choose_reader(views, state.reading)
        assert pick is not None
        chosen = next(c for c in readers if c.slot.id == pick.slot)
        for choice in readers:
            if choice.slot.id == pick.gave_way:
                choice.yields += 1
                choice.phase = LaneState.YIELDED
        chosen.phase = LaneState.PREFILLING
        state.reading = pick.slot
        return chosen

    def _read(self, choice: Choice) -> None:
        slot = choice.slot
        if not self._copy_from_sibling(choice):
            return
        start = slot.state.rows
        end = chunk_end(start, choice.prompt_len, self._state.chunk)
        last = end == choice.prompt_len
        if not self._commit(choice, end):
            return
        if not last:
            self._state.pool.ahead(slot.id, chunk_end(end, choice.prompt_len, self._state.chunk))
        share = SlotRows(slot.id, start, choice.path[start:end], logits=(end - start - 1,) if last else ())
        specs = [choice.sampler.draw(len(choice.path))] if last else []
        try:
            outcomes = self._state.model.runner.forward_and_sample(pack((share,)), specs)
        except Exception as error:  # noqa: BLE001 - whatever the pass raises ends this request alone
            self._broke(choice, error)
            return
        slot.state.extend(end - start)
        if choice.index == 0:
            choice.job.sink.put(Reading(end, choice.prompt_len))
        if not last:
            return
        self._state.reading = None
        self._state.memory.ledger.credit_workspace(slot.id)
        choice.phase = LaneState.DECODING
        reason = self._take_token(choice, outcomes[0])
        if reason is not None:
            self._lifecycle.finish(choice, reason)

    def _copy_from_sibling(self, choice: Choice) -> bool:
        """Take over what another choice of the request has read of their prompt; whether the request still runs.

        A row's bits are those of its path, so a copy is what reading would give. The last token is read in any case:
        its logits are not kept.
        """
        slot = choice.slot
        siblings = [c.slot for c in choice.job.running if c is not choice]
        source = max(siblings, key=lambda s: s.state.rows, default=None)
        if source is None:
            return True
        start, end = slot.state.rows, min(source.state.rows, choice.prompt_len - 1)
        if end <= start:
            return True
        if not self._commit(choice, end):
            return False
        try:
            self._state.model.runner.copy_rows(source.id, slot.id, start, end)
        except Exception as error:  # noqa: BLE001 - whatever the copy raises ends this request alone
            self._broke(choice, error)
            return False
        slot.state.extend(end - start)
        choice.cached = end
        return True

    def _forward_round(self, choices: Sequence[Choice]) -> list[tuple[Choice, StepOutput]]:
        """Each choice's next token, or its row of logits where drawing takes more.

        Where the joint pass raises, each slot runs alone, so that the one at fault shows itself; a row's result does
        not depend on its company, so the others lose nothing. A choice that ended with an earlier one of its request
        has no pages to write to any more.
        """
        batch = pack([_next_row(c) for c in choices])
        specs = [c.sampler.draw(len(c.path)) for c in choices]
        try:
            outcomes = self._state.model.runner.forward_and_sample(batch, specs)
        except Exception as error:  # noqa: BLE001 - whatever the pass raises must not end the other requests
            if len(choices) == 1:
                self._broke(choices[0], error)
                return []
            alone = (self._forward_round([c]) for c in choices if c.slot.running is c)
            return [(c, row if isinstance(row, int) else row.copy()) for rows in alone for c, row in rows]
        return list(zip(choices, outcomes, strict=True))

    def _take_token(self, choice: Choice, row: StepOutput) -> FinishReason | None:
        """SamplingSpec the next token from its row's outcome and send it; why the choice is complete now, if it is."""
        try:
            sampler = choice.sampler
            drawn = sampler.take(row, choice.path) if isinstance(row, int) else sampler.sample(row, choice.path)
            choice.path.append(drawn.token)
            gap = choice.token_came(self._state.clock())
            if gap is not None:
                self._state.meters.gaps.observe(gap)
            request = choice.job.request
            if drawn.token in self._state.served.tokenizer.eos_ids and not request.ignore_eos:
                return FinishReason.STOP
            if choice.stream.push(drawn) is not None:
                return FinishReason.STOP
        except NonFiniteLogits as error:
            self._broke(choice, error)
            return None
        except Exception as error:  # noqa: BLE001 - a defect in one request's sampling or text ends that request
            self._broke(choice, error)
            return None
        return FinishReason.LENGTH if choice.generated >= choice.max_tokens else None

    def _commit(self, choice: Choice, rows: int) -> bool:
        """Back the slot's rows `[0, rows)` with pages; where they cannot be had, the request ends."""
        state = self._state
        slot = choice.slot.id
        if choice.slot.running is not choice:
            return False
        try:
            taken = state.pool.commit(slot, rows)
        except CommitRefused as refusal:
            error = RequestError(str(refusal), status=503, code="out_of_memory", retry_after=MEMORY_RETRY_S)
            self._lifecycle.fail(choice.job, error, Ending.ERROR)
            return False
        if taken:
            state.memory.ledger.credit(slot, taken)
        return True

    def _broke(self, choice: Choice, cause: Exception) -> None:
        what = str(cause) if isinstance(cause, NonFiniteLogits) else f"{type(cause).__name__} while computing"
        error = RequestError(f"this request failed in the engine: {what}", status=500, code="engine_error")
        self._lifecycle.fail(choice.job, error, Ending.ERROR, cause)


def _next_row(choice: Choice) -> SlotRows:
    """The pass's share of a decoding choice: the token drawn last, whose row is not computed yet."""
    return SlotRows(choice.slot.id, choice.slot.state.rows, choice.path[-1:], logits=(0,))
