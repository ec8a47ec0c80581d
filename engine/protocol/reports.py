"""The wire types of what is reported once: the bench's levels and the residency planner's decisions.

Like `engine.protocol`, it imports neither torch nor anything else of the engine. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from engine.protocol import Wire


class TokenDifference(Wire, frozen=True, kw_only=True):
    """Where a text parted from its alone text: the token index, both tokens, and the alone run's top-2 gap in nats."""

    prompt: int
    position: int
    alone: str
    here: str
    gap_nats: float | None


class Spread(Wire, frozen=True, kw_only=True):
    median: float
    min: float | None = None
    last: float | None = None


class Proof(Wire, frozen=True, kw_only=True):
    peak_decoding: int
    rounds: dict[str, int]


class BenchLevel(Wire, frozen=True, kw_only=True):
    c: int
    valid: bool
    why_invalid: str | None
    requests: int
    total_tok_s: float
    ratio_to_c1: float | None
    per_request_tok_s: Spread
    ttft_s: Spread
    worst_gap_s: float
    identical: int
    of: int
    differences: list[TokenDifference]
    proof: Proof


class BenchEngine(Wire, frozen=True, kw_only=True):
    model: str
    device: str
    parallel: int
    version: str


class BenchReport(Wire, frozen=True, kw_only=True):
    valid: bool
    engine: BenchEngine
    prompts: int
    tokens: int
    levels: list[BenchLevel]


class PlanMemory(Wire, frozen=True, kw_only=True):
    source: str
    available: int
    floor: int
    margin: int
    engine_growth_to_come: int


class PlanDecision(Wire, frozen=True, kw_only=True):
    role: str
    kind: str
    decision: str
    claim_bytes: int
    claim_source: str
    headroom_after: int
    reason: str
    to_fit: str | None


class PlanReport(Wire, frozen=True, kw_only=True):
    dry_run: bool
    memory: PlanMemory
    decisions: list[PlanDecision]
