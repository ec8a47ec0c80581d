"""From the queue into a slot: asks routing where, memory whether, and says why a request waits."""

from __future__ import annotations

from engine.core.lifecycle import Lifecycle
from engine.core.scheduling import reasons
from engine.core.scheduling.routing import Place, RouteView, SlotView, Wait, route
from engine.core.state import EngineState
from engine.memory.admission import AdmissionView, Admit, Refuse, WaitForMemory, admit_with_reclaim
from engine.memory.pressure import ADMISSION_LEVELS, Level
from engine.protocol import WaitState
from engine.request import Ending, RequestError
from engine.sequence.cache_key import common_prefix
from engine.sequence.request_state import RequestState, Slot

MEMORY_LOOK_S = 0.25
"""How often a request that waits for memory is looked at again: memory comes free without anything ending here."""


class Dispatcher:
    """Applies routing's and admission's decisions to the queue, oldest request first."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._look_again = 0.0

    def run(self) -> None:
        """Place every waiting sequence that can be placed now."""
        state = self._state
        now = state.clock()
        if not state.queue or (state.queue_unchanged and now < self._look_again):
            return
        state.queue_unchanged = True
        self._look_again = float("inf")
        memory_waits = 0
        for req in tuple(state.queue):
            while req.pending and req in state.queue:
                if not self._place(req, now, memory_waits):
                    break
            if req.waiting is not None and req.waiting.state is WaitState.MEMORY:
                memory_waits += 1

    def next_look(self) -> float:
        """When the queue must be looked at again (the clock's seconds, or infinity where nothing waits): at once where
        something ended since the last look, else when time alone can change a decision."""
        if not self._state.queue:
            return float("inf")
        return self._look_again if self._state.queue_unchanged else 0.0

    def _place(self, req: RequestState, now: float, memory_waits: int) -> bool:
        decision = route(self._view(req, now))
        if isinstance(decision, Wait):
            if decision.limit_s is not None:
                self._look_again = min(self._look_again, req.arrived + decision.limit_s)
            self._waits(req, decision.state, reasons.waiting(decision), decision.home, now)
            return False
        if memory_waits:
            self._waits(req, WaitState.MEMORY, reasons.behind_memory(memory_waits), decision.home, now)
            return False
        return self._admit(req, decision, now)

    def _admit(self, req: RequestState, place: Place, now: float) -> bool:
        state = self._state
        slot = state.slots[place.slot]
        slot.claimed = True
        try:
            need = self._kv_need(slot, req.prompt_len + place.max_tokens)
            verdict = admit_with_reclaim(
                self._admission(need), state.memory.ladder, self._available, who=req.request.id
            )
        finally:
            slot.claimed = False
        match verdict:
            case Admit(need):
                return self._begin(req, place, need)
            case WaitForMemory(reason):
                self._look_again = min(self._look_again, now + MEMORY_LOOK_S)
                if not req.waited_for_memory:
                    req.waited_for_memory = True
                    state.counters.waiting_memory += 1
                self._waits(req, WaitState.MEMORY, reason, place.home, now)
                return False
            case Refuse(reason):
                error = RequestError(reason, status=400, code="too_large", param="max_tokens")
                self._lifecycle.fail(req, error, Ending.REFUSED)
                return False

    def _begin(self, req: RequestState, place: Place, need: int) -> bool:
        try:
            self._lifecycle.begin(req, place, need)
        except Exception as defect:  # noqa: BLE001 - what one request cannot begin with must not end the others
            error = RequestError("this request could not begin in the engine", status=500, code="engine_error")
            self._lifecycle.fail(req, error, Ending.ERROR, defect)
            return False
        return True

    def _waits(self, req: RequestState, wait: WaitState, reason: str, home: int | None, now: float) -> None:
        # Further sequences of a request that runs already wait unseen.
        if not req.admitted:
            req.wait(wait, reason, home, now)

    def _view(self, req: RequestState, now: float) -> RouteView:
        config = self._state.config
        # What the first sequence was promised, every sequence gets: further ones take slots with that much room alone.
        return RouteView(
            prompt=req.prompt_len,
            first_user_end=req.request.first_user_end,
            max_tokens=req.max_tokens if req.admitted else req.request.max_tokens,
            waited_s=now - req.arrived,
            slots=tuple(self._slot_view(req, slot) for slot in self._state.slots),
            min_room=req.max_tokens if req.admitted else self._state.min_room,
            slot0_wait_s=config.side_slot0_wait_s,
            home_wait_s=config.side_home_wait_s,
            prefers_home=not req.admitted,
        )

    def _slot_view(self, req: RequestState, slot: Slot) -> SlotView:
        seen = req.matches.get(slot.id)
        if seen is None or seen[0] != slot.epoch:
            seen = (slot.epoch, self._match(req, slot))
            req.matches[slot.id] = seen
        running = slot.running
        if running is not None:
            held = held_prompt = running.prompt_len
        else:
            conversation = self._state.resident.of(slot)
            held = 0 if conversation is None else len(conversation.key.tokens)
            held_prompt = 0 if conversation is None else conversation.prompt
        return SlotView(slot.id, slot.window, running is not None, held, held_prompt, seen[1], slot.last_used)

    def _match(self, req: RequestState, slot: Slot) -> int:
        running = slot.running
        if running is None:
            return self._state.resident.match(slot, req.key)
        if running.req.key.namespace != req.key.namespace:
            return 0
        return common_prefix(running.req.key.tokens, req.key.tokens)

    def _kv_need(self, slot: Slot, tokens: int) -> int:
        return self._state.pool.pages_to_commit(slot.id, min(tokens, slot.window))

    def _available(self) -> int:
        return self._state.memory.probe.read().available

    def _admission(self, need: int) -> AdmissionView:
        state = self._state
        busy = [s.id for s in state.slots if s.running is not None]
        return AdmissionView(
            need=need,
            available=self._available(),
            floor=state.memory.floors.floor,
            hard_floor=state.memory.floors.hard_floor,
            running=len(busy),
            outstanding=state.memory.reservations.outstanding(),
            held_by_running=sum(state.pool.committed_bytes(slot) for slot in busy),
            idle=state.memory.ladder.held_bytes(ADMISSION_LEVELS),
            caches=state.memory.ladder.held_bytes((Level.CACHE,)),
        )
