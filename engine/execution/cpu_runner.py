"""The CPU runner: a model's recorded program over the slots' KV memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.execution.rows import RowBatch
from engine.execution.runner import KvAddresses, StepOutput, check_batch, sample_all
from engine.models import llama
from engine.models.llama import LlamaConfig, kv_layout
from engine.protocol import WeightFormat
from kernels.cpu.backend import BackendChoice, choose, torch
from kernels.invariance import RowVarianceError
from kernels.program import Program
from kernels.quant_types import RawTensor
from kernels.sampling import SamplingSpec


class CpuRunner:
    """Implements `engine.execution.runner.Runner` for a Llama-like model on the CPU.

    `tensors` are the file's, by their GGUF names; they are copied into the backend's own packing, so the file may be
    unmapped afterwards. `threads` is the size of the team, `max_rows` the most rows of one forward. Raises ValueError
    naming a tensor or a setting that does not fit.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, RawTensor],
        *,
        threads: int,
        max_rows: int,
        backend: BackendChoice | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; at least 1 is needed")
        choice = backend if backend is not None else choose()
        try:
            self._program = _program(choice, config, tensors, threads, max_rows)
        except RowVarianceError as error:
            choice = torch(str(error))
            self._program = _program(choice, config, tensors, threads, max_rows)
        self.config = config
        self.max_rows = max_rows
        self.vocab_size = config.vocab
        self.backend = self._program.name
        self.backend_reason = choice.reason
        self.layout = kv_layout(config)
        self._base: NDArray[np.uint64] | None = None
        self._windows: NDArray[np.int64] = np.zeros(0, np.int64)

    def attach(self, kv: KvAddresses, slots: int) -> None:
        tensors = range(len(self.layout.tensors))
        self._base = np.array([[kv.base(slot, t) for t in tensors] for slot in range(slots)], np.uint64)
        self._windows = np.array([kv.window(slot) for slot in range(slots)], np.int64)

    def forward(self, batch: RowBatch) -> NDArray[np.float32]:
        if self._base is None:
            raise RuntimeError("forward before attach")
        check_batch(batch, self.max_rows, self.vocab_size, self._windows)
        return self._program.run(batch, self._base)

    def forward_and_sample(self, batch: RowBatch, specs: Sequence[SamplingSpec | None]) -> list[StepOutput]:
        return sample_all(self.forward(batch), specs)

    def copy_rows(self, source: int, target: int, start: int, end: int) -> None:
        if self._base is None:
            raise RuntimeError("copy_rows before attach")
        for t, tensor in enumerate(self.layout.tensors):
            at, size = start * tensor.row_bytes, (end - start) * tensor.row_bytes
            ctypes.memmove(int(self._base[target, t]) + at, int(self._base[source, t]) + at, size)

    def workspace_bytes(self) -> int:
        return self._program.workspace_bytes()

    def weight_bytes(self) -> int:
        """Bytes that the packed weights hold."""
        return self._program.weight_bytes()

    def weight_forms(self) -> list[WeightFormat]:
        """Each form of the file and how it runs here."""
        forms = self._program.forms().items()
        return [WeightFormat(file=held, runs_as=runs_as, tensors=n) for (held, runs_as), n in forms]


def _program(
    choice: BackendChoice, config: LlamaConfig, tensors: Mapping[str, RawTensor], threads: int, max_rows: int
) -> Program:
    recorder = choice.recorder(threads, max_rows)
    llama.record(recorder, config, tensors)
    return recorder.finish()
