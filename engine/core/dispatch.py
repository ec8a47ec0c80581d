"""From the queue into a slot: asks routing where, memory whether, and says why a request waits."""

from __future__ import annotations

from engine.core.lifecycle import Lifecycle
from engine.core.scheduling import reasons
from engine.core.scheduling.routing import Place, RouteView, SlotView, Wait, route
from engine.core.state import EngineState
from engine.memory.admission import AdmissionView, Admit, Need, Refuse, WaitForMemory, settle
from engine.memory.pressure import ADMISSION_LEVELS, Level
from engine.protocol import WaitState
from engine.request import Ending, RequestError
from engine.sequence.cache_key import common_prefix
from engine.sequence.request_state import Job, Slot

MEMORY_LOOK_S = 0.25
"""How often a request that waits for memory is looked at again: memory comes free without anything ending here."""


class Dispatcher:
    """Applies routing's and admission's decisions to the queue, oldest request first."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._look_again = 0.0

    def run(self) -> None:
        """Place every waiting choice that can be placed now."""
        state = self._state
        now = state.clock()
        if not state.queue or (state.settled and now < self._look_again):
            return
        state.settled = True
        self._look_again = float("inf")
        memory_waits = 0
        for job in tuple(state.queue):
            while job.pending and job in state.queue:
                if not self._place(job, now, memory_waits):
                    break
            if job.waiting is not None and job.waiting.state is WaitState.MEMORY:
                memory_waits += 1

    def next_look(self) -> float:
        """When the queue must be looked at again (the clock's seconds, or infinity where nothing waits): at once where
        something ended since the last look, else when time alone can change a decision."""
        if not self._state.queue:
            return float("inf")
        return self._look_again if self._state.settled else 0.0

    def _place(self, job: Job, now: float, memory_waits: int) -> bool:
        decision = route(self._view(job, now))
        if isinstance(decision, Wait):
            if decision.limit_s is not None:
                self._look_again = min(self._look_again, job.arrived + decision.limit_s)
            self._waits(job, decision.state, reasons.waiting(decision), decision.home, now)
            return False
        if memory_waits:
            self._waits(job, WaitState.MEMORY, reasons.behind_memory(memory_waits), decision.home, now)
            return False
        return self._admit(job, decision, now)

    def _admit(self, job: Job, place: Place, now: float) -> bool:
        state = self._state
        slot = state.slots[place.slot]
        slot.claimed = True
        try:
            need = Need(workspace=0, kv=self._kv_need(slot, job.prompt_len + place.max_tokens))
            verdict = settle(self._admission(need), state.memory.ladder, self._available, who=job.request.id)
        finally:
            slot.claimed = False
        match verdict:
            case Admit(need):
                return self._begin(job, place, need)
            case WaitForMemory(reason):
                self._look_again = min(self._look_again, now + MEMORY_LOOK_S)
                if not job.waited_for_memory:
                    job.waited_for_memory = True
                    state.counters.waiting_memory += 1
                self._waits(job, WaitState.MEMORY, reason, place.home, now)
                return False
            case Refuse(reason):
                error = RequestError(reason, status=400, code="too_large", param="max_tokens")
                self._lifecycle.fail(job, error, Ending.REFUSED)
                return False

    def _begin(self, job: Job, place: Place, need: Need) -> bool:
        try:
            self._lifecycle.begin(job, place, need)
        except Exception as defect:  # noqa: BLE001 - what one request cannot begin with must not end the others
            error = RequestError("this request could not begin in the engine", status=500, code="engine_error")
            self._lifecycle.fail(job, error, Ending.ERROR, defect)
            return False
        return True

    def _waits(self, job: Job, wait: WaitState, reason: str, home: int | None, now: float) -> None:
        # Further choices of a request that runs already wait unseen.
        if not job.admitted:
            job.wait(wait, reason, home, now)

    def _view(self, job: Job, now: float) -> RouteView:
        config = self._state.config
        # What the first choice was promised, every choice gets: further ones take slots with that much room alone.
        return RouteView(
            prompt=job.prompt_len,
            first_user_end=job.request.first_user_end,
            max_tokens=job.max_tokens if job.admitted else job.request.max_tokens,
            waited_s=now - job.arrived,
            slots=tuple(self._slot_view(job, slot) for slot in self._state.slots),
            min_room=job.max_tokens if job.admitted else self._state.min_room,
            slot0_wait_s=config.side_slot0_wait_s,
            home_wait_s=config.side_home_wait_s,
            prefers_home=not job.admitted,
        )

    def _slot_view(self, job: Job, slot: Slot) -> SlotView:
        seen = job.matches.get(slot.id)
        if seen is None or seen[0] != slot.epoch:
            seen = (slot.epoch, self._match(job, slot))
            job.matches[slot.id] = seen
        running = slot.running
        if running is not None:
            held = held_prompt = running.prompt_len
        else:
            conversation = self._state.resident.of(slot)
            held = 0 if conversation is None else len(conversation.key.tokens)
            held_prompt = 0 if conversation is None else conversation.prompt
        return SlotView(slot.id, slot.window, running is not None, held, held_prompt, seen[1], slot.last_used)

    def _match(self, job: Job, slot: Slot) -> int:
        running = slot.running
        if running is None:
            return self._state.resident.match(slot, job.key)
        if running.job.key.namespace != job.key.namespace:
            return 0
        return common_prefix(running.job.key.tokens, job.key.tokens)

    def _kv_need(self, slot: Slot, tokens: int) -> int:
        return self._state.pool.pages_to_commit(slot.id, min(tokens, slot.window))

    def _available(self) -> int:
        return self._state.memory.probe.read().available

    def _admission(self, need: Need) -> AdmissionView:
        state = self._state
        busy = [s.id for s in state.slots if s.running is not None]
        return AdmissionView(
            need=need,
            available=self._available(),
            floor=state.memory.floors.floor,
            hard_floor=state.memory.floors.hard_floor,
            running=len(busy),
            outstanding=state.memory.ledger.outstanding(),
            held_by_running=sum(state.pool.committed_bytes(slot) for slot in busy),
            idle=state.memory.ladder.held_bytes(ADMISSION_LEVELS),
            caches=state.memory.ladder.held_bytes((Level.CACHE,)),
        )
