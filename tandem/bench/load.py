"""Sends prompts in groups and measures each answer as it streams in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tandem.client.chat_stream import AnswerEnd, ChatMessage, ChatRequest, TextPart, WaitNote, open_chat
from tandem.client.wire import Address
from tandem.exits import CommandError, Exit

CLIENT = "tandem-bench"


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer: its text, its tokens by the engine's count, and times in seconds from its own start."""

    text: str
    tokens: int
    ttft_s: float
    total_s: float
    worst_gap_s: float

    @property
    def tok_s(self) -> float:
        """Tokens a second from the first token on; the whole time where there was only one."""
        writing = self.total_s - self.ttft_s
        return (self.tokens - 1) / writing if self.tokens > 1 and writing > 0 else self.tokens / self.total_s


@dataclass(frozen=True, slots=True)
class LevelRun:
    """All prompts once, in groups: the answers in the prompts' order and the wall time of the groups together."""

    answers: tuple[Measured, ...]
    wall_s: float

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)


def read_prompts(path: Path | None, count: int | None) -> list[str]:
    """The prompts of a file, one a line, or the packaged ones; the first `count` of them. Raises CommandError."""
    if path is None:
        text = files("tandem.bench").joinpath("prompts.txt").read_text(encoding="utf-8")
    else:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as why:
            reason = why.strerror if isinstance(why, OSError) else why
            raise CommandError(f"--prompts {path}: cannot be read: {reason}", Exit.USAGE) from why
    prompts = [line.strip() for line in text.splitlines() if line.strip()][:count]
    if not prompts:
        raise CommandError(f"--prompts {path}: has no prompt", Exit.USAGE)
    return prompts


def question(prompt: str, tokens: int, *, top_logprobs: int | None = None) -> ChatRequest:
    """The greedy request of a prompt."""
    messages = (ChatMessage("user", prompt),)
    return ChatRequest(messages, max_tokens=tokens, temperature=0.0, top_logprobs=top_logprobs, client=CLIENT)


async def measure(address: Address, asked: ChatRequest) -> Measured:
    """Send one request and time it. Raises CommandError where it fails."""
    start = last = time.perf_counter()
    first: float | None = None
    gap, pieces, tokens = 0.0, [], 0
    async with open_chat(address, asked) as answers:
        async for answer in answers:
            match answer:
                case TextPart(text):
                    now = time.perf_counter()
                    if first is None:
                        first = now
                    else:
                        gap = max(gap, now - last)
                    last = now
                    pieces.append(text)
                case AnswerEnd(_, usage, _):
                    tokens = usage.completion_tokens if usage else len(pieces)
                case WaitNote():
                    pass
    end = time.perf_counter()
    return Measured("".join(pieces), tokens, (first or end) - start, end - start, gap)


async def run_level(address: Address, asked: Sequence[ChatRequest], c: int, done: Callable[[], None]) -> LevelRun:
    """Send the requests in groups of `c` at once; `done` is called after each answer."""

    async def one(request: ChatRequest) -> Measured:
        measured = await measure(address, request)
        done()
        return measured

    answers: list[Measured] = []
    start = time.perf_counter()
    for at in range(0, len(asked), c):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(request)) for request in asked[at : at + c]]
        except* CommandError as failed:
            raise failed.exceptions[0] from None
        answers += [task.result() for task in tasks]
    return LevelRun(tuple(answers), time.perf_counter() - start)
