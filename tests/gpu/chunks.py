"""Attention of prompt chunks alone: its rate by program form, and its bits against the same rows one by one."""

from __future__ import annotations

from functools import partial

import torch

from engine.models.llama import LlamaConfig
from kernels.gpu import attention
from kernels.gpu.attention import SPLIT, TILE_ROWS, AttentionScratch, TileForm, attend_rows, attend_tiles
from kernels.gpu.rotary import HeadShape, RowTables
from tests.gpu.setting import SHAPES, graph_ms, row

FORMS = (
    TileForm(128, 8, 2), TileForm(128, 8, 1), TileForm(128, 4, 2), TileForm(64, 8, 2), TileForm(64, 4, 2),
    TileForm(64, 4, 1),
)  # fmt: skip


class Chunk:
    """Queries of `count` rows from place `start` on, over noise; outputs poisoned."""

    def __init__(self, config: LlamaConfig, start: int, count: int) -> None:
        self.shape = HeadShape(config.heads, config.kv_heads, config.head_dim)
        made = torch.Generator("cuda").manual_seed(start + count)
        width = config.attention.kv_width
        self.kv = torch.empty((2, start + count, width), dtype=torch.float16, device="cuda").normal_(generator=made)
        self.q = torch.empty((count, config.attention.q_width), dtype=torch.float16, device="cuda")
        self.q.normal_(generator=made)
        self.out = torch.full_like(self.q, float("nan"), dtype=torch.bfloat16)
        self.base = torch.tensor([[t.data_ptr() for t in self.kv]], dtype=torch.int64, device="cuda")
        places = torch.arange(start, start + count, dtype=torch.int32, device="cuda")
        order = torch.arange(count + 1, dtype=torch.int32, device="cuda")
        self.rows = RowTables(torch.zeros_like(places), places, places, places, order, places)
        firsts = range(0, count, TILE_ROWS)
        self.tile_row = torch.tensor(list(firsts), dtype=torch.int32, device="cuda")
        self.tile_rows = torch.tensor([min(TILE_ROWS, count - f) for f in firsts], dtype=torch.int32, device="cuda")

    def tiles(self) -> None:
        attend_tiles(
            self.q,
            self.out,
            self.tile_row,
            tile_rows=self.tile_rows,
            rows=self.rows,
            kv_base=self.base,
            k_tensor=0,
            v_tensor=1,
            shape=self.shape,
        )

    def singly(self) -> torch.Tensor:
        """The same rows by `attend_rows`."""
        out = torch.full_like(self.out, float("nan"))
        splits = -(-self.kv.shape[1] // SPLIT)
        scratch = AttentionScratch(64, splits, self.shape, self.q.device)
        for ids in torch.arange(len(self.q), dtype=torch.int32, device="cuda").split(64):
            attend_rows(
                self.q,
                out,
                ids,
                rows=self.rows,
                kv_base=self.base,
                k_tensor=0,
                v_tensor=1,
                shape=self.shape,
                scratch=scratch,
                splits=splits,
            )
        return out


def chunks(shape: str) -> None:
    """Chunks of 2,048 rows up to 8,192 tokens."""
    config = SHAPES[shape]
    chosen = attention.tile_form
    try:
        for form in FORMS:
            attention.tile_form = lambda _device, form=form: form  # type: ignore[misc]
            differ = compared = 0
            for start, count in ((0, 400), (100, 29), (127, 1), (128, 128), (1000, 300), (4095, 130)):
                small = Chunk(config, start, count)
                small.tiles()
                compared += count
                differ += int((small.out != small.singly()).any(1).sum())
            rates = []
            for start in (0, 2048, 6144):
                chunk = Chunk(config, start, 2048)
                ms = graph_ms(partial(_several, chunk), 7) / 4
                seen = sum(range(start + 1, start + 2049))
                rates.append(f"{4.0 * seen * config.attention.q_width / ms / 1e9:.0f} ({ms:.3f} ms)")
            mark = " (chosen)" if form == chosen(torch.device("cuda")) else ""
            row(
                f"attention {shape} {form.rows} rows, {form.warps} warps, {form.stages} stages{mark}: {differ} of "
                f"{compared} rows differ; 2,048 rows from 0, 2,048, 6,144: {', '.join(rates)} TFLOP/s"
            )
    finally:
        attention.tile_form = chosen  # type: ignore[misc]


def _several(chunk: Chunk) -> None:
    for _ in range(4):
        chunk.tiles()
