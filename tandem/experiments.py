"""The experiments of `tandem check`: bring about a situation and compare the answers, log-probabilities included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.protocol import Health, LaneState
from tandem.bench.load import read_prompts
from tandem.client.chat_stream import AnswerEnd, AnswerEvent, ChatMessage, ChatRequest, TextPart, WaitNote, open_chat
from tandem.client.wire import Address, health
from tandem.exits import CommandError, Exit

CLIENT = "tandem-check"
SEED = 20
LONG_SHARE = 0.6
LONG_TOKENS = 1500
"""A long prompt fills this share of the window and has at most this many tokens: many chunks, read within seconds."""
SETTLE_S = 30.0


class Finding(msgspec.Struct, frozen=True):
    """One comparison: what was compared, whether it held, and where it did not."""

    what: str
    held: bool
    detail: str


@dataclass(frozen=True, slots=True)
class FullAnswer:
    """A whole answer: its text, its tokens with their log-probabilities, and how many prompt tokens were cached."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    cached_tokens: int


class SituationMissing(CommandError):
    """The situation that a check needs did not occur, so the check proves nothing."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the check could not be made: {why}", Exit.REFUSED)


async def full_answer(address: Address, question: ChatRequest, started: asyncio.Event | None = None) -> FullAnswer:
    """Send a request and read its answer to the end. Sets `started` with the first text."""
    pieces: list[str] = []
    tokens: list[tuple[str, float]] = []
    cached = 0
    async with open_chat(address, question) as answers:
        async for answer in answers:
            match answer:
                case TextPart(text, logprobs):
                    if started is not None:
                        started.set()
                    pieces.append(text)
                    tokens += [(one.token, one.logprob) for one in logprobs]
                case AnswerEnd(_, usage, _):
                    cached = usage.cached_tokens if usage else 0
                case WaitNote():
                    pass
    return FullAnswer("".join(pieces), tuple(tokens), cached)


def compare(what: str, alone: FullAnswer, here: FullAnswer) -> Finding:
    """Compare text, tokens and log-probabilities; the finding names the first difference."""
    for at, (one, other) in enumerate(zip(alone.tokens, here.tokens, strict=False)):
        if one != other:
            return Finding(what, False, f"token {at}: {one[0]!r} {one[1]!r} alone, {other[0]!r} {other[1]!r} here")
    if len(alone.tokens) != len(here.tokens) or alone.text != here.text:
        return Finding(what, False, f"{len(alone.tokens)} tokens alone, {len(here.tokens)} here")
    return Finding(what, True, f"{len(here.tokens)} tokens and their log-probabilities are equal")


def greedy_request(prompt: str, tokens: int) -> ChatRequest:
    messages = (ChatMessage("user", prompt),)
    return ChatRequest(messages, max_tokens=tokens, temperature=0.0, top_logprobs=0, client=CLIENT)


async def batch(address: Address, tokens: int) -> list[Finding]:
    """Greedy and seeded requests alone, then as many at once as there are slots."""
    slots = _slots(health(address), least=2)
    asked = [greedy_request(prompt, tokens) for prompt in read_prompts(None, 2 * slots)]
    asked[1::2] = [replace(one, temperature=0.8, seed=SEED + at) for at, one in enumerate(asked[1::2])]
    alone = [await full_answer(address, one) for one in asked]
    findings = []
    for at in range(0, len(asked), slots):
        together = await _all_at_once([full_answer(address, one) for one in asked[at : at + slots]])
        for offset, here in enumerate(together):
            index = at + offset
            kind = "seeded" if index % 2 else "greedy"
            findings.append(compare(f"prompt {index}, {kind}, {slots} at once", alone[index], here))
    return findings


async def interleave(address: Address, tokens: int) -> list[Finding]:
    """An answer while another slot reads a long prompt, and the long prompt's own answer."""
    before = health(address)
    _slots(before, least=2)
    short, long = greedy_request(read_prompts(None, 1)[0], tokens), greedy_request(_long_prompt(before, "tide"), tokens)
    alone_short, alone_long = await full_answer(address, short), await full_answer(address, long)
    # No slot may still hold the long prompt's rows, or it would not be read again.
    await _replace_conversations(address, before)
    started = asyncio.Event()

    async def read_beside() -> FullAnswer:
        await started.wait()
        return await full_answer(address, long)

    here_short, here_long = await _all_at_once([full_answer(address, short, started), read_beside()])
    findings = [compare("a short answer while a long prompt is read", alone_short, here_short)]
    return [*findings, compare("the long prompt's answer", alone_long, here_long)]


async def early_close(address: Address, tokens: int) -> list[Finding]:
    """A client disconnects in each phase: its batch neighbour's answer stays the same and its slot becomes free."""
    before = health(address)
    _slots(before, least=2)
    asked = greedy_request(read_prompts(None, 1)[0], tokens)
    alone = await full_answer(address, asked)
    leavers: list[tuple[str, ChatRequest, Callable[[AnswerEvent], bool]]] = [
        ("while its prompt is read", greedy_request(_long_prompt(before, "harbour"), tokens), lambda _: True),
        (
            "while it is answered",
            greedy_request(read_prompts(None, 2)[1], 4096),
            lambda event: isinstance(event, TextPart),
        ),
    ]
    findings = []
    for when, question, enough in leavers:
        abandoned = health(address).parallel.totals.abandoned
        beside = asyncio.create_task(full_answer(address, asked))
        await _close_early(address, question, enough)
        findings.append(compare(f"an answer beside a client that leaves {when}", alone, await beside))
        findings.append(await _slot_freed(address, when, abandoned))
    return findings


async def parking(address: Address, tokens: int) -> list[Finding]:
    """The second turn of a conversation, resumed in its slot and then read cold."""
    before = health(address)
    first = greedy_request(read_prompts(None, 1)[0], tokens)
    opening = await full_answer(address, first)
    turns = (*first.messages, ChatMessage("assistant", opening.text), ChatMessage("user", "Go on, and be brief."))
    second = replace(first, messages=turns)
    resumed = await full_answer(address, second)
    if not resumed.cached_tokens:
        raise SituationMissing("the second turn resumed nothing")
    await _replace_conversations(address, before)
    cold = await full_answer(address, second)
    if cold.cached_tokens >= resumed.cached_tokens:
        raise SituationMissing(f"the cold read still found {cold.cached_tokens} tokens in a slot")
    finding = compare("a second turn, resumed against cold", cold, resumed)
    kept = f"{resumed.cached_tokens} tokens kept against {cold.cached_tokens}: "
    return [Finding(finding.what, finding.held, kept + finding.detail)]


def _slots(snapshot: Health, *, least: int) -> int:
    slots = min(snapshot.parallel.slots, snapshot.parallel.max_running)
    if slots < least:
        raise SituationMissing(f"it needs {least} slots and the engine runs {slots}; add --own, or --parallel {least}")
    return slots


def _long_prompt(snapshot: Health, word: str) -> str:
    """A prompt that fills a good part of the shortest window, counting four tokens an entry."""
    window = min(lane.window for lane in snapshot.lanes)
    words = [f"{word} {number % 97}" for number in range(min(int(window * LONG_SHARE), LONG_TOKENS) // 4)]
    return f"Say which number comes most often: {', '.join(words)}."


async def _replace_conversations(address: Address, snapshot: Health) -> None:
    """Put another conversation into every slot, so that none keeps rows of an earlier one."""
    slots = min(snapshot.parallel.slots, snapshot.parallel.max_running)
    fillers = [greedy_request(f"Filler {at}: describe the number {at} in one sentence.", 24) for at in range(slots)]
    await _all_at_once([full_answer(address, one) for one in fillers])


async def _all_at_once(waiting: Sequence[Coroutine[Any, Any, FullAnswer]]) -> list[FullAnswer]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in waiting]
    except* CommandError as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _close_early(address: Address, question: ChatRequest, enough: Callable[[AnswerEvent], bool]) -> None:
    """Send a request and close the connection at the first event for which `enough` is true."""
    async with open_chat(address, question) as answers:
        async for answer in answers:
            if enough(answer):
                return


async def _slot_freed(address: Address, when: str, abandoned: int) -> Finding:
    """Whether the slot of a client that disconnected becomes free and the request is counted as abandoned."""
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
