"""Draws on the device: their tokens against the host's over many random rows, and what they cost beside a round."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from engine.execution.runner import sample_all
from kernels.gpu.sampling import Choosing, SamplingBuffers, sample_rows
from kernels.sampling import SamplingSpec, sampling_spec
from tests.gpu.setting import graph_ms, row
from tests.support.sampling_specs import random_rows, random_specs

VOCABS = (49_152, 128_256, 151_936)
ROWS = 64


def drawing(passes: int = 8, device: str = "cuda", vocabs: tuple[int, ...] = VOCABS, rows: int = ROWS) -> int:
    """Tokens of greedy, plain and cut draws against the host's rule; then the time of each kind in a graph. The tokens
    that differ."""
    rng = np.random.default_rng(23)
    wrong = 0
    for vocab in vocabs:
        held = SamplingBuffers(rows, vocab, torch.device(device))
        differ = compared = 0
        for i in range(passes):
            host = random_rows(rng, rows, vocab)
            host[0, rng.integers(vocab)] = np.nan
            host[1, rng.integers(vocab)] = np.inf
            host[2] = -np.inf
            logits = torch.from_numpy(host).to(device)
            draws: list[SamplingSpec | None] = [*random_specs(rng, rows, list(Choosing)[1 + i % 2])]
            for t in (held.k_depth, held.p_depth, held.below, held.sums, held.weights, held.ids):
                t.fill_(-77)
            held.upload(draws)
            sample_rows(logits, held, Choosing.of(draws))
            ids = held.download(rows)
            if device == "cuda":
                torch.cuda.synchronize()
            differ += sum(a != b for a, b in zip(ids.tolist(), sample_all(host, draws), strict=True))
            compared += rows
        wrong += differ
        times = ""
        if device == "cuda":
            for n in (1, 8, 16):
                some = torch.randn(n, vocab, device=device)
                held.upload([sampling_spec(0.5, 1.0, top_k=40, top_p=0.9, min_p=0.0)] * n)
                torch.cuda.synchronize()
                each = [graph_ms(partial(sample_rows, some, held, choosing)) * 1e3 for choosing in Choosing]
                times += f"; {n} rows {' / '.join(f'{us:.0f}' for us in each)} us"
        row(f"draws of {vocab} logits: {differ}/{compared} tokens differ from the host's; largest / plain / cut{times}")
    return wrong
