"""Runs the levels and turns what was measured into the bench report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol import Health
from engine.protocol.reports import BenchEngine, BenchLevel, BenchReport, Proof, Spread, TokenDifference
from tandem import output
from tandem.bench.differences import locate
from tandem.bench.load import LevelRun, measure, question, run_level
from tandem.bench.proof import sampling, why_unproven
from tandem.client.chat_stream import ChatRequest
from tandem.client.wire import Address, health
from tandem.exits import CommandError, Exit

WARM_UP = "Say hello."
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: levels in the order given, the prompts, and the tokens of each answer at most."""

    levels: tuple[int, ...]
    prompts: tuple[str, ...]
    tokens: int


async def run_plan(address: Address, plan: Plan) -> BenchReport:
    """Measure every level. The alone texts come first: level c1's own where it is asked for.

    Raises CommandError where the engine cannot be measured at all; a level that fails is invalid with its reason.
    """
    engine = _engine(health(address))
    asked = [question(prompt, plan.tokens) for prompt in plan.prompts]
    await measure(address, question(WARM_UP, WARM_UP_TOKENS))
    alone, alone_proof = await _run_level(address, asked, 1)
    levels = []
    for c in plan.levels:
        why = _why_impossible(c, engine.parallel, len(asked))
        if why is not None:
            levels.append(_empty(c, why, len(asked)))
            continue
        if c == 1:
            run, proof = alone, alone_proof
        else:
            try:
                run, proof = await _run_level(address, asked, c)
            except CommandError as failed:
                levels.append(_empty(c, failed.message, len(asked)))
                continue
        differences = [
            await locate(address, at, question(prompt, plan.tokens, top_logprobs=2), alone=before.text, here=now.text)
            for at, (prompt, before, now) in enumerate(zip(plan.prompts, alone.answers, run.answers, strict=True))
            if before.text != now.text
        ]
        levels.append(_level(c, run, alone, proof, differences))
    return BenchReport(
        valid=all(level.valid for level in levels),
        engine=engine,
        prompts=len(plan.prompts),
        tokens=plan.tokens,
        levels=levels,
    )


async def _run_level(address: Address, asked: Sequence[ChatRequest], c: int) -> tuple[LevelRun, Proof]:
    async with sampling(address) as watch:
        with output.counting(f"c{c}", len(asked)) as done:
            run = await run_level(address, asked, c, done)
    return run, watch.proof


def _engine(snapshot: Health) -> BenchEngine:
    if snapshot.model is None:
        raise CommandError("the engine has no model yet; `tandem status` tells how far it is", Exit.NOT_READY)
    slots = min(snapshot.parallel.slots, snapshot.parallel.max_running)
    return BenchEngine(
        model=snapshot.model.name, device=snapshot.model.device, parallel=slots, version=snapshot.version
    )


def _why_impossible(c: int, slots: int, prompts: int) -> str | None:
    if c > slots:
        return f"c{c} needs {c} slots and the engine runs {slots}; start it with --parallel {c}, or add --own"
    if c > prompts:
        return f"c{c} needs {c} prompts and there are {prompts}"
    return None


def _level(c: int, run: LevelRun, alone: LevelRun, proof: Proof, differences: list[TokenDifference]) -> BenchLevel:
    why = why_unproven(c, proof)
    total, alone_total = run.tokens / run.wall_s, alone.tokens / alone.wall_s
    rates = [answer.tok_s for answer in run.answers]
    waits = [answer.ttft_s for answer in run.answers]
    return BenchLevel(
        c=c,
        valid=why is None,
        why_invalid=why,
        requests=len(run.answers),
        total_tok_s=round(total, 2),
        ratio_to_c1=round(total / alone_total, 3) if alone_total else None,
        per_request_tok_s=Spread(median=round(statistics.median(rates), 2), min=round(min(rates), 2)),
        ttft_s=Spread(median=round(statistics.median(waits), 4), last=round(max(waits), 4)),
        worst_gap_s=round(max(answer.worst_gap_s for answer in run.answers), 4),
        identical=len(run.answers) - len(differences),
        of=len(run.answers),
        differences=differences,
        proof=proof,
    )


def _empty(c: int, why: str, requests: int) -> BenchLevel:
    """A level that did not run."""
    return BenchLevel(
        c=c,
        valid=False,
        why_invalid=why,
        requests=0,
        total_tok_s=0.0,
        ratio_to_c1=None,
        per_request_tok_s=Spread(median=0.0, min=0.0),
        ttft_s=Spread(median=0.0, last=0.0),
        worst_gap_s=0.0,
        identical=0,
        of=requests,
        differences=[],
        proof=Proof(peak_decoding=0, rounds={}),
    )
