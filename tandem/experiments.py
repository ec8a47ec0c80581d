"""The experiments behind `tandem check`: bring about a situation, compare what clients hear digit by digit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.protocol import Health, LaneState
from tandem.bench.load import read_prompts
from tandem.client.chat_stream import Ask, End, Message, Piece, Wait, ask
from tandem.client.wire import Address, health
from tandem.exits import CommandError, Exit

CLIENT = "tandem-check"
SEED = 20
LONG_SHARE = 0.6
LONG_TOKENS = 1500
"""A long prompt fills this share of the window, and is no longer than this: many chunks, and still read in seconds."""
SETTLE_S = 30.0


class Finding(msgspec.Struct, frozen=True):
    """One comparison: what was compared, whether it held, and where it did not."""

    what: str
    held: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer as its client hears it: tokens with their log-probabilities, and how much of the prompt was kept."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    cached_tokens: int


class NotBroughtAbout(CommandError):
    """The situation that a check needs did not come about, so it proves nothing."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the check could not be made: {why}", Exit.REFUSED)


async def hear(address: Address, question: Ask, started: asyncio.Event | None = None) -> Heard:
    """Send a request and listen to its end. Sets `started` with the first text."""
    pieces: list[str] = []
    tokens: list[tuple[str, float]] = []
    cached = 0
    async with ask(address, question) as answers:
        async for answer in answers:
            match answer:
                case Piece(text, logprobs):
                    if started is not None:
                        started.set()
                    pieces.append(text)
                    tokens += [(one.token, one.logprob) for one in logprobs]
                case End(_, usage, _):
                    cached = usage.cached_tokens if usage else 0
                case Wait():
                    pass
    return Heard("".join(pieces), tuple(tokens), cached)


def compare(what: str, alone: Heard, here: Heard) -> Finding:
    """Equal in text, tokens and log-probabilities, or the first place where not."""
    for at, (one, other) in enumerate(zip(alone.tokens, here.tokens, strict=False)):
        if one != other:
            return Finding(what, False, f"token {at}: {one[0]!r} {one[1]!r} alone, {other[0]!r} {other[1]!r} here")
    if len(alone.tokens) != len(here.tokens) or alone.text != here.text:
        return Finding(what, False, f"{len(alone.tokens)} tokens alone, {len(here.tokens)} here")
    return Finding(what, True, f"{len(here.tokens)} tokens and their log-probabilities are equal")


def greedy(prompt: str, tokens: int) -> Ask:
    messages = (Message("user", prompt),)
    return Ask(messages, max_tokens=tokens, temperature=0.0, top_logprobs=0, client=CLIENT)


async def batch(address: Address, tokens: int) -> list[Finding]:
    """Greedy and seeded requests alone, then as many at once as there are slots."""
    slots = _slots(health(address), least=2)
    asked = [greedy(prompt, tokens) for prompt in read_prompts(None, 2 * slots)]
    asked[1::2] = [replace(one, temperature=0.8, seed=SEED + at) for at, one in enumerate(asked[1::2])]
    alone = [await hear(address, one) for one in asked]
    findings = []
    for at in range(0, len(asked), slots):
        together = await _together([hear(address, one) for one in asked[at : at + slots]])
        for offset, here in enumerate(together):
            index = at + offset
            kind = "seeded" if index % 2 else "greedy"
            findings.append(compare(f"prompt {index}, {kind}, {slots} at once", alone[index], here))
    return findings


async def interleave(address: Address, tokens: int) -> list[Finding]:
    """An answer while a long prompt is read beside it, and the long prompt's own answer."""
    before = health(address)
    _slots(before, least=2)
    short, long = greedy(read_prompts(None, 1)[0], tokens), greedy(_long_prompt(before, "tide"), tokens)
    alone_short, alone_long = await hear(address, short), await hear(address, long)
    # Other words at the head, so that no slot holds the long prompt's rows any more and it is read again.
    await _overwrite(address, before)
    started = asyncio.Event()

    async def read_beside() -> Heard:
        await started.wait()
        return await hear(address, long)

    here_short, here_long = await _together([hear(address, short, started), read_beside()])
    findings = [compare("a short answer while a long prompt is read", alone_short, here_short)]
    return [*findings, compare("the long prompt's answer", alone_long, here_long)]


async def early_close(address: Address, tokens: int) -> list[Finding]:
    """A client that leaves in each phase: its neighbour's answer stays the same and its slot comes free."""
    before = health(address)
    _slots(before, least=2)
    asked = greedy(read_prompts(None, 1)[0], tokens)
    alone = await hear(address, asked)
    leavers: list[tuple[str, Ask, Callable[[Wait | Piece | End], bool]]] = [
        ("while its prompt is read", greedy(_long_prompt(before, "harbour"), tokens), lambda _: True),
        ("while it is answered", greedy(read_prompts(None, 2)[1], 4096), lambda heard: isinstance(heard, Piece)),
    ]
    findings = []
    for when, question, enough in leavers:
        abandoned = health(address).parallel.totals.abandoned
        beside = asyncio.create_task(hear(address, asked))
        await _leave(address, question, enough)
        findings.append(compare(f"an answer beside a client that leaves {when}", alone, await beside))
        findings.append(await _freed(address, when, abandoned))
    return findings


async def parking(address: Address, tokens: int) -> list[Finding]:
    """The second turn of a conversation, resumed in its slot and then read cold."""
    before = health(address)
    first = greedy(read_prompts(None, 1)[0], tokens)
    opening = await hear(address, first)
    turns = (*first.messages, Message("assistant", opening.text), Message("user", "Go on, and be brief."))
    second = replace(first, messages=turns)
    resumed = await hear(address, second)
    if not resumed.cached_tokens:
        raise NotBroughtAbout("the second turn resumed nothing")
    await _overwrite(address, before)
    cold = await hear(address, second)
    if cold.cached_tokens >= resumed.cached_tokens:
        raise NotBroughtAbout(f"the cold read still found {cold.cached_tokens} tokens in a slot")
    finding = compare("a second turn, resumed against cold", cold, resumed)
    kept = f"{resumed.cached_tokens} tokens kept against {cold.cached_tokens}: "
    return [Finding(finding.what, finding.held, kept + finding.detail)]


def _slots(snapshot: Health, *, least: int) -> int:
    slots = min(snapshot.parallel.slots, snapshot.parallel.max_running)
    if slots < least:
        raise NotBroughtAbout(f"it needs {least} slots and the engine runs {slots}; add --own, or --parallel {least}")
    return slots


def _long_prompt(snapshot: Health, word: str) -> str:
    """A prompt that fills a good part of the shortest window, by a cautious count of four tokens an entry."""
    window = min(lane.window for lane in snapshot.lanes)
    words = [f"{word} {number % 97}" for number in range(min(int(window * LONG_SHARE), LONG_TOKENS) // 4)]
    return f"Say which number comes most often: {', '.join(words)}."


async def _overwrite(address: Address, snapshot: Health) -> None:
    """Take every slot with another conversation, so that none keeps rows of what ran before."""
    slots = min(snapshot.parallel.slots, snapshot.parallel.max_running)
    fillers = [greedy(f"Filler {at}: describe the number {at} in one sentence.", 24) for at in range(slots)]
    await _together([hear(address, one) for one in fillers])


async def _together(waiting: Sequence[Coroutine[Any, Any, Heard]]) -> list[Heard]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in waiting]
    except* CommandError as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _leave(address: Address, question: Ask, enough: Callable[[Wait | Piece | End], bool]) -> None:
    """Ask, and close the connection once what was heard is `enough`."""
    async with ask(address, question) as answers:
        async for answer in answers:
            if enough(answer):
                return


async def _freed(address: Address, when: str, abandoned: int) -> Finding:
    """Whether the slot of a client that left comes free, and is counted as abandoned."""
    what = f"the slot of a client that leaves {when}"
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        snapshot = await asyncio.to_thread(health, address)
        idle = all(lane.state == LaneState.IDLE for lane in snapshot.lanes)
        if idle and snapshot.parallel.totals.abandoned > abandoned:
            return Finding(what, True, "came free, and is counted as abandoned")
        await asyncio.sleep(0.05)
    busy = [f"slot {lane.slot} is {lane.state.value}" for lane in snapshot.lanes if lane.state != LaneState.IDLE]
    return Finding(what, False, f"after {SETTLE_S:g} s: {', '.join(busy) or 'not counted as abandoned'}")
