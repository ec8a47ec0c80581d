"""The pool's pages on the device, and a real model from a file."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from engine.execution.cuda.driver import CudaDriver, supported
from engine.execution.cuda.page_stock import PageStock
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.vmm import CudaRange, device_ranges
from engine.execution.rows import SlotRows, pack
from engine.memory.kv.pool import KvPool
from engine.models.gguf_config import llama_config
from engine.models.text.tokenizer import load_tokenizer
from engine.models.weights.gguf import open_gguf
from tests.gpu.setting import row, say


class DeviceBytes:
    """Memory at an address as int16 elements, for torch.as_tensor."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,), "typestr": "<i2", "data": (address, False), "version": 2,
        }  # fmt: skip


def at_address(address: int, elements: int) -> torch.Tensor:
    return torch.as_tensor(DeviceBytes(address, elements), device="cuda").view(torch.float16)


def vmm() -> bool:
    """Device pages for real: map and unmap costs, order behind events, a graph over pages committed later. Whether all
    was right."""
    why = supported(0)
    if why is not None:
        row(f"no device pages: {why}")
        return False
    torch.cuda.synchronize()
    driver = CudaDriver(0, torch.cuda.current_stream().cuda_stream)
    stock = PageStock(driver)
    page = stock.page_bytes
    block = CudaRange(1 << 30, stock)
    marks = [time.perf_counter()]
    block.commit(0, page)
    marks.append(time.perf_counter())
    for i in range(1, 33):
        block.commit(i * page, page)
    marks.append(time.perf_counter())
    block.commit(33 * page, 64 * page)
    marks.append(time.perf_counter())
    view = at_address(block.address, 400 * page // 2)
    total = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    first, late = view[: page // 2], view[200 * page // 2 : 201 * page // 2]
    total.copy_(first.float().sum())
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total.copy_(late.float().sum())
    block.commit_ahead([(200 * page, page)])
    block.commit(200 * page, page)
    late.fill_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    seen = float(total)
    late.fill_(7.0)
    torch.cuda._sleep(200_000_000)
    copy = late.clone()
    block.give_back(200 * page, page)
    time.sleep(0.005)
    early = page - block.leaving_bytes
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    stock.thread.wait_until_idle()
    marks.append(time.perf_counter())
    freed = page - block.leaving_bytes
    block.commit(200 * page, page)
    zero = float(late.float().abs().max())
    block.check_integrity()
    block.close()
    stock.trim()
    torch.cuda.synchronize()
    free_before = torch.cuda.mem_get_info()[0]
    block = CudaRange(1 << 30, stock)
    block.commit(0, 256 * page)
    block.close()
    stock.trim()
    leak = free_before - torch.cuda.mem_get_info()[0]
    ok = (
        seen == page / 2
        and early == 0
        and freed == page
        and zero == 0.0
        and bool((copy == 7).all())
        and stock.live == 0
    )
    row(
        f"vmm page {page >> 10} KiB: first {(marks[1] - marks[0]) * 1e6:.0f} us, one by one "
        f"{(marks[2] - marks[1]) / 32 * 1e6:.0f} us, 64 at once {(marks[3] - marks[2]) / 64 * 1e6:.0f} us a page, "
        f"unmap, the helper's waking included, {(marks[5] - marks[4]) * 1e6:.0f} us; "
        f"graph, events, zeroes {'right' if ok else 'WRONG'}; "
        f"{leak >> 20} MiB not returned"
    )
    return ok


PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village by the sea,",
    "Water boils at", "The three laws of motion say that", "To make bread you need", "import numpy as np\n",
    "Dear Sir or Madam,",
)  # fmt: skip


def model(path: Path, length: int = 96) -> None:
    """A real model from a file: greedy texts at one slot, and eight at once beside each other's prompts."""
    file = open_gguf(path)
    config = llama_config(file.metadata, file.tensors)
    tokenizer = load_tokenizer(file.metadata)
    runner = CudaRunner(config, file.tensors, device=torch.device("cuda"), max_rows=256, positions=config.context)
    torch.cuda.synchronize()
    stock = PageStock(CudaDriver(0, torch.cuda.current_stream().cuda_stream))
    pool = KvPool(runner.layout, [2048] * 8, margin_rows=64, ranges=device_ranges(stock))
    runner.attach(pool, 8)
    texts = [tokenizer.prompt_ids(p * (1 + 6 * (i % 3))) for i, p in enumerate(PROMPTS)]

    def forward(shares: list[SlotRows]) -> np.ndarray:
        for share in shares:
            pool.commit(share.slot, share.start + len(share.tokens))
        return runner.forward(pack(shares))

    def alone(prompt: list[int]) -> tuple[list[int], float]:
        out = [int(forward([SlotRows(0, 0, prompt, logits=[len(prompt) - 1])])[0].argmax())]
        start = time.perf_counter()
        while len(out) < length:
            at = len(prompt) + len(out) - 1
            out.append(int(forward([SlotRows(0, at, [out[-1]], logits=[0])])[0].argmax()))
        seconds = time.perf_counter() - start
        pool.release(0, 0)
        return out, seconds

    want = [alone(t) for t in texts]
    again = [alone(t) for t in texts]
    # A new request's prompt is read in two chunks beside the others' decoding, one request joining every third round.
    got: list[list[int]] = [[] for _ in texts]
    read = [0] * 8
    rounds = 0
    while any(len(g) < length for g in got):
        shares = []
        for s, prompt in enumerate(texts):
            if rounds < 3 * s or len(got[s]) >= length:
                continue
            if read[s] < len(prompt):
                end = min(len(prompt), read[s] + max(1, len(prompt) // 2))
                shares.append(
                    SlotRows(
                        s, read[s], prompt[read[s] : end], logits=[end - read[s] - 1] if end == len(prompt) else []
                    )
                )
                read[s] = end
            else:
                shares.append(SlotRows(s, len(prompt) + len(got[s]) - 1, [got[s][-1]], logits=[0]))
        if shares:
            choices = iter(forward(shares).argmax(1).tolist())
            for share in shares:
                if share.logits:
                    got[share.slot].append(next(choices))
        rounds += 1
    start = time.perf_counter()
    for at in range(300, 364):
        forward([SlotRows(s, at, [5], logits=[0]) for s in range(8)])
    eight = 8 * 64 / (time.perf_counter() - start)
    equal = sum(g == w[0] for g, w in zip(got, want, strict=True))
    pool.check_integrity(deep=True)
    say(
        "model text: "
        + b"".join(tokenizer.token_bytes(t) for t in want[0][0]).decode(errors="replace").replace("\n", " ")
    )
    row(
        f"model {path.name} on the GPU: {equal}/8 texts beside others equal the text alone, "
        f"{sum(a[0] == w[0] for a, w in zip(again, want, strict=True))}/8 repeat; one "
        f"{length / min(a[1] for a in again):.0f} tok/s, eight {eight:.0f} tok/s (the host's choice included); "
        f"{runner.backend_reason}"
    )
    pool.close()
