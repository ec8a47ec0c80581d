"""The CUDA runner: a model's recorded program over the slots' KV memory on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.rows import RowBatch, SlotRows, pack
from engine.execution.runner import KvAddresses, StepOutput, check_batch
from engine.models import llama
from engine.models.llama import LlamaConfig, kv_layout
from engine.protocol import WeightFormat
from kernels.gpu import nvrtc
from kernels.gpu.kv_moves import move_rows
from kernels.gpu.program import CudaOps
from kernels.gpu.replay import CudaProgram
from kernels.gpu.weights import FileWeights
from kernels.quant_types import QuantType, RawTensor
from kernels.sampling import SamplingSpec, sampling_spec

_ANY_DRAW = sampling_spec(0.5, 1.0, top_k=2, top_p=0.5, min_p=0.0)
"""A draw that takes every kernel."""


class CudaRunner:
    """Implements `engine.execution.runner.Runner` for a Llama-like model on a CUDA device.

    `tensors` are the file's, by their GGUF names; they are copied to the device, so the file may be unmapped
    afterwards. `max_rows` is the most rows of one forward, `positions` the longest window. Only one thread calls it.
    Raises ValueError naming a tensor or a setting that does not fit, torch.OutOfMemoryError where the weights do not.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, RawTensor],
        *,
        device: torch.device,
        max_rows: int,
        positions: int,
    ) -> None:
        dense = tensors["token_embd.weight"].quant_type is QuantType.BF16
        packs = device.type == "cuda" and nvrtc.available()
        weights = FileWeights(device, torch.bfloat16 if dense else torch.float16, pack=packs)
        recorder = CudaOps(weights, device, positions)
        llama.record(recorder, config, tensors)
        self.program: CudaProgram = recorder.finish(max_rows)
        self.config = config
        self.max_rows = max_rows
        self.vocab_size = config.vocab
        self.layout = kv_layout(config)
        self.backend = self.program.name
        self.backend_reason = (
            "NVRTC compiles for packed weights" if packs else "no NVRTC: weights are unpacked to 16 bits"
        )
        self._device = device
        self._base: NDArray[np.uint64] | None = None
        self._device_base = torch.empty(0, dtype=torch.int64, device=device)
        self._windows: NDArray[np.int64] = np.zeros(0, np.int64)

    def attach(self, kv: KvAddresses, slots: int) -> None:
        tensors = range(len(self.layout.tensors))
        self._base = np.array([[kv.base(slot, t) for t in tensors] for slot in range(slots)], np.uint64)
        self._device_base = torch.from_numpy(self._base.view(np.int64)).to(self._device)
        self._windows = np.array([kv.window(slot) for slot in range(slots)], np.int64)
        self.program.warm_up(self._base, int(self._windows.max()))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # buffers that grew, and what capturing took for a moment

    def forward(self, batch: RowBatch) -> NDArray[np.float32]:
        if self._base is None:
            raise RuntimeError("forward before attach")
        check_batch(batch, self.max_rows, self.vocab_size, self._windows)
        return self.program.run(batch, self._base)

    def forward_and_sample(self, batch: RowBatch, specs: Sequence[SamplingSpec | None]) -> list[StepOutput]:
        if self._base is None:
            raise RuntimeError("forward before attach")
        check_batch(batch, self.max_rows, self.vocab_size, self._windows)
        return self.program.run_and_sample(batch, self._base, specs)

    def copy_rows(self, source: int, target: int, start: int, end: int) -> None:
        if self._base is None:
            raise RuntimeError("copy_rows before attach")
        rows = torch.arange(start, end, dtype=torch.int32, device=self._device)
        base = self._device_base
        move_rows(base[source], base[target], rows, rows, self.config.attention.kv_width)

    def warm_up(self, slots: int, rows: int) -> None:
        """Compile what a pass of `rows` rows in each of `slots` slots needs, and what moves rows, over KV of its own
        that is freed after. Call it before the first forward."""
        held = [torch.zeros(rows * t.row_bytes, dtype=torch.uint8, device=self._device) for t in self.layout.tensors]
        base = np.array([[t.data_ptr() for t in held]] * slots, np.uint64)
        batch = pack([SlotRows(s, 0, [0] * rows, logits=(rows - 1,)) for s in range(slots)])
        self.program.run_and_sample(batch, base, [_ANY_DRAW] * slots)
        place = torch.zeros(1, dtype=torch.int32, device=self._device)
        tensors = torch.from_numpy(base[0].view(np.int64)).to(self._device)
        move_rows(tensors, tensors, place, place, self.config.attention.kv_width)

    def workspace_bytes(self) -> int:
        return self.program.workspace_bytes()

    def weight_bytes(self) -> int:
        """Bytes that the weights hold on the device."""
        return self.program.weight_bytes()

    def weight_forms(self) -> list[WeightFormat]:
        """Each form of the file and how it runs here."""
        forms = self.program.forms().items()
        return [WeightFormat(file=held, runs_as=runs_as, tensors=n) for (held, runs_as), n in forms]
