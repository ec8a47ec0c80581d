"""The real service on a device: texts beside others against alone, the bench, what an idle engine holds, its end."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.protocol import Health
from tandem.client.wire import Address, health
from tandem.service.own_engine import engine_for
from tandem.settings.origins import Flags
from tests.gpu.setting import row, say

ASKED = (
    "Name three rivers and what they flow through.", "Write a haiku about rain.", "Explain why the sky is blue.",
    "List the first eight prime numbers.", "Write a Python function that reverses a string.",
    "Tell a story about a lighthouse keeper, with a beginning, a middle and an end.", "What is a binary tree?",
    "Translate into French: the cat sleeps on the chair.",
)  # fmt: skip
WAYS: tuple[dict[str, object], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.0, "seed": 8, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.7, "seed": 9, "min_p": 0.05},
    {"temperature": 0.9, "seed": 10, "frequency_penalty": 0.4, "logprobs": True, "top_logprobs": 2},
)
"""How each prompt is asked for, in turn: greedy, drawn on the device in every way, drawn on the host."""
SPARE_BYTES = 64 << 20
"""What an idle engine's allocator may keep beside weights and workspace."""


@dataclass(frozen=True, slots=True)
class Said:
    text: str
    tokens: int


def ask(address: Address, body: dict[str, object]) -> Said:
    """One answer, whole. Raises RuntimeError with the server's words for anything but 200."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=300)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        read = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {read[:300].decode(errors='replace')}")
    told = json.loads(read)
    return Said(told["choices"][0]["message"]["content"], told["usage"]["completion_tokens"])


def bodies(tokens: int, prompts: int) -> list[dict[str, object]]:
    return [
        {
            "messages": [{"role": "user", "content": ASKED[i % len(ASKED)]}], "max_tokens": tokens, "ignore_eos": True,
            **WAYS[i % len(WAYS)],
        }
        for i in range(prompts)
    ]  # fmt: skip


@contextmanager
def serving(model: Path, device: str, slots: int) -> Iterator[Address]:
    """`tandem serve` in a process of its own."""
    with engine_for(None, Flags({"model": str(model), "device": device}), slots=slots, own=True) as address:
        yield address


def idle(seen: Health, device: str) -> bool:
    """Say what an engine holds that has served nobody; whether that is weights and workspace alone."""
    split = seen.memory.split
    held = {
        name: getattr(split, name)
        for name in ("weights", "workspace", "graphs", "kv_committed", "caches", "state", "allocator_free", "roles")
    }
    alone = not any(held[name] for name in ("kv_committed", "caches", "state", "roles"))
    right = alone and (device == "cpu" or held["allocator_free"] <= SPARE_BYTES) and held["weights"] > 0
    named = ", ".join(f"{name} {value / 1e6:.1f} MB" for name, value in held.items() if value)
    device_name = "no model" if seen.model is None else seen.model.device
    row(
        f"service on {device_name}, idle: {named}; outside (context, modules, others) {split.outside / 1e6:.0f} MB: "
        f"{'weights and workspace alone' if right else 'MORE THAN weights and workspace'}"
    )
    return right


def texts(address: Address, asked: Sequence[dict[str, object]], at_once: int) -> list[Said]:
    with ThreadPoolExecutor(at_once) as clients:
        return list(clients.map(lambda body: ask(address, body), asked))


def service(
    model: Path | None,
    device: str = "cuda",
    *,
    slots: Sequence[int] = (4, 8),
    levels: Sequence[int] = (1, 2, 4, 8),
    tokens: int = 96,
    prompts: int = 24,
) -> bool:
    """Texts with one slot, then beside others; the bench against the widest engine; whether all was as it must be."""
    if model is None:
        raise ValueError("the stage `service` needs --model FILE.gguf")
    asked = bodies(tokens, prompts)
    with serving(model.resolve(), device, 1) as address:
        right = idle(health(address), device)
        alone = texts(address, asked, 1)
        again = texts(address, asked[: len(WAYS)], 1)
    repeats = again == alone[: len(again)]
    right &= repeats
    row(
        f"service with one slot: {sum(s.tokens for s in alone)} tokens of {prompts} answers; asked again "
        f"{'the same' if repeats else 'DIFFERENT'}"
    )
    for count in slots:
        with serving(model.resolve(), device, count) as address:
            right &= idle(health(address), device)
            got = texts(address, asked, count)
            seen = health(address)
            differ = [i for i, (a, b) in enumerate(zip(got, alone, strict=True)) if a != b]
            together = seen.parallel.peak_decoding
            right &= not differ and together == count and seen.defect is None
            row(
                f"service with {count} slots: {prompts - len(differ)}/{prompts} texts equal those with one slot, "
                f"differ: {differ}; up to {together} decoded at once; rounds {seen.parallel.rounds}; "
                f"books {'agree' if seen.defect is None else seen.defect}"
            )
            if count == max(slots):
                right &= bench(address, levels, tokens)
                say(f"service after the bench: {health(address).memory.split}")
    row(f"service: {'as it must be' if right else 'WRONG'}")
    return right


def bench(address: Address, levels: Sequence[int], tokens: int) -> bool:
    """`tandem bench` against a running engine; whether it is valid and every text the same."""
    command = [sys.executable, "-m", "tandem", "bench", *(f"c{c}" for c in levels), "--url", address.url]
    done = subprocess.run([*command, "--tokens", str(tokens)], capture_output=True, text=True, timeout=400, check=False)
    for line in done.stdout.splitlines():
        row(f"  {line}")
    if done.returncode:
        row(f"bench: exit {done.returncode}: {done.stderr[-2000:]}")
    return done.returncode == 0
