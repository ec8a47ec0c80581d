"""A card whose memory is the host's and whose kernels are the CPU's: what loading and serving on a card need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from engine.cpu_runner import CpuRunner
from engine.cuda_loading import CardRunner
from engine.devices import Card, Cards
from engine.kv.cuda_plain import plain_ranges
from engine.kv.page_stock import DeviceDriver
from engine.kv.ranges import RangeBacking
from engine.models.llama import LlamaConfig
from kernels.quant_types import RawTensor
from tests.support.fake_driver import PAGE, HostMemoryDriver

CARD = Card(0, "Fake", (9, 0), 1 << 30)
UPLOAD_SLACK = 3 << 20
"""Bytes that an upload leaves in the allocator."""


class FakeCardRunner(CpuRunner):
    def warm_up(self, slots: int, rows: int) -> None:
        assert 1 <= slots * rows <= self.max_rows


@dataclass
class FakeCard:
    """Implements OpenCard and Allocator. `failure` is what the upload raises; `no_vmm` why there are no pages."""

    free: int = 1 << 30
    others: int = 5 << 20
    driver_: HostMemoryDriver = field(default_factory=HostMemoryDriver)
    failure: Exception | None = None
    no_vmm: str | None = None
    _reserved: int = 0
    _allocated: int = 0

    @property
    def allocator(self) -> FakeCard:
        return self

    def free_and_total(self) -> tuple[int, int]:
        return self.free - self.others - self._reserved - len(self.driver_.handles) * PAGE, 1 << 30

    def reserved(self) -> int:
        return self._reserved

    def allocated(self) -> int:
        return self._allocated

    def empty(self) -> None:
        self._reserved = self._allocated

    def driver(self) -> DeviceDriver | str:
        return self.no_vmm or self.driver_

    def plain(self) -> RangeBacking:
        return plain_ranges(torch.device("cpu"))

    def runner(
        self, config: LlamaConfig, tensors: Mapping[str, RawTensor], *, max_rows: int, positions: int
    ) -> CardRunner:
        if self.failure is not None:
            raise self.failure
        made = FakeCardRunner(config, tensors, threads=1, max_rows=max_rows)
        self._allocated = made.weight_bytes()
        self._reserved = self._allocated + UPLOAD_SLACK
        return made


@dataclass
class FakeSystem:
    """Implements CudaSystem with one card."""

    card: FakeCard = field(default_factory=FakeCard)
    cards: Cards = field(default_factory=lambda: Cards((CARD,)))

    def look(self) -> Cards:
        return self.cards

    def open(self, card: Card) -> FakeCard:
        return self.card
