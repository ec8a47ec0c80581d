"""Proves from /health that a level ran as many requests at once as it claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.protocol import Health, Parallel
from engine.protocol.reports import Proof
from tandem.client.wire import Address, health

SAMPLE_S = 0.1


class ParallelSampler:
    """Samples of one level: the snapshot before it, those during it, and the one after."""

    def __init__(self, before: Health) -> None:
        self._before = before.parallel
        self._last = before.parallel
        self._peak = 0

    def add(self, snapshot: Health) -> None:
        self._peak = max(self._peak, snapshot.parallel.decoding)
        self._last = snapshot.parallel

    @property
    def proof(self) -> Proof:
        return Proof(peak_decoding=self._peak, rounds=rounds_between(self._before, self._last))


def rounds_between(before: Parallel, after: Parallel) -> dict[str, int]:
    """The decode rounds between two snapshots, by how many slots shared them; sizes that did not occur are left out."""
    grown = {size: count - before.rounds.get(size, 0) for size, count in after.rounds.items()}
    return {size: grown[size] for size in sorted(grown, key=int) if grown[size] > 0}


def why_unproven(c: int, proof: Proof) -> str | None:
    """Why a level's proof does not hold, None where it does."""
    most = max([proof.peak_decoding, *map(int, proof.rounds)])
    if most > c:
        return f"up to {most} slots wrote at once, more than this level's {c}: another client uses the engine"
    if proof.peak_decoding < c:
        return f"no health snapshot shows {c} slots writing at once (at most {proof.peak_decoding})"
    return None


@asynccontextmanager
async def sampling(address: Address) -> AsyncIterator[ParallelSampler]:
    """Watch the engine's health for as long as the block runs."""
    watch = ParallelSampler(await asyncio.to_thread(health, address))

    async def sample() -> None:
        while True:
            watch.add(await asyncio.to_thread(health, address))
            await asyncio.sleep(SAMPLE_S)

    sampler = asyncio.create_task(sample())
    try:
        yield watch
    finally:
        sampler.cancel()
        await asyncio.wait([sampler])
    watch.add(await asyncio.to_thread(health, address))
