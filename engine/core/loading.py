"""From a model file to what an engine serves: weights packed for a backend, tokenizer, chat template, description."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from engine import protocol
from engine.api import ServedModel
from engine.config import EngineConfig
from engine.core import log_lines as records
from engine.execution.cpu_runner import CpuRunner
from engine.execution.cuda.loading import MAX_ROWS, CudaSystem, OpenGpu, load_on_gpu
from engine.execution.cuda.memory import KvMemory
from engine.execution.cuda.system import TorchCuda
from engine.execution.devices import Choice, Gpu, Gpus, choose, without_gpu
from engine.execution.runner import Runner
from engine.memory.trim import return_free_memory
from engine.models.gguf_config import checked_config
from engine.models.llama import LlamaConfig
from engine.models.text.chat_template import load_template, warnings_of
from engine.models.text.tokenizer import load_tokenizer
from engine.models.weights.gguf import DamagedModel, GgufFile, open_gguf
from engine.protocol import Loading
from kernels.cpu.backend import choose as choose_backend
from kernels.cpu.cores import read_cores
from kernels.quant_types import RawTensor

ROWS = 128
"""Rows that one forward takes at least: a prompt chunk of the default size."""

KERNELS = "making the kernels ready (the first start compiles them)"

Progress = Callable[[Loading], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run: the runner, what HTTP needs of it, its description for `/health`, and the memory that its
    KV lies in where that is a GPU's."""

    runner: Runner
    served: ServedModel
    info: protocol.Model
    kv_memory: KvMemory | None = None


@dataclass(frozen=True, slots=True)
class _Placed:
    """A model's weights on a device; `backend` is what `/health` says of it."""

    runner: Runner
    device: str
    weights: protocol.Weights
    backend: str
    kv_memory: KvMemory | None = None


def load(config: EngineConfig, progress: Progress, system: CudaSystem | None = None) -> LoadedModel:
    """Load the model of `config` onto its device; `progress` hears the stage and the bytes of weights taken.

    `system` has the GPUs, by default those of this box. Raises DamagedModel or UnsupportedModel where the file cannot
    be served, UnusableDevice for the device (with "auto" where a GPU was found and cannot hold or run the model),
    ValueError for a setting, OSError where the file cannot be read.
    """
    gpus = system or TorchCuda()
    choice = choose(config.device, gpus.look() if config.device != "cpu" else Gpus(()))
    if choice.reason is not None:
        records.on_cpu(choice.reason)
    progress(Loading(stage="reading the header", done_bytes=0, total_bytes=0, eta_s=None))
    file = open_gguf(config.model)
    try:
        with file.source.unchanged():
            return _loaded(config, file, choice, gpus, progress)
    finally:
        file.source.close()
        # Every tensor passed through memory that is free again.
        return_free_memory()


def _loaded(config: EngineConfig, file: GgufFile, choice: Choice, gpus: CudaSystem, progress: Progress) -> LoadedModel:
    model_config = checked_config(file)
    tokenizer = load_tokenizer(file.metadata)
    if tokenizer.vocab_size != model_config.vocab:
        raise DamagedModel(
            f"{config.model}: {tokenizer.vocab_size} tokens for {model_config.vocab} rows of token_embd.weight"
        )
    template = load_template(file.metadata, tokenizer, model_config.context)
    warnings = warnings_of(tokenizer, template)
    records.questionable(config.model_name, warnings)
    if choice.gpu is None:
        placed = _on_cpu(config, model_config, file.tensors, choice.reason, progress)
    else:
        placed = _on_gpu(
            config, model_config, file.tensors, opened=gpus.open(choice.gpu), gpu=choice.gpu, progress=progress
        )
    return LoadedModel(
        runner=placed.runner,
        served=ServedModel(
            name=config.model_name,
            created=int(file.source.modified),
            max_len=model_config.context,
            tokenizer=tokenizer,
            template=template,
        ),
        info=protocol.Model(
            name=config.model_name,
            arch=file.metadata.text("general.architecture"),
            max_len=model_config.context,
            device=placed.device,
            weights=placed.weights,
            backend=placed.backend,
            warnings=warnings,
        ),
        kv_memory=placed.kv_memory,
    )


def _on_cpu(
    config: EngineConfig,
    model_config: LlamaConfig,
    tensors: Mapping[str, RawTensor],
    no_gpu: str | None,
    progress: Progress,
) -> _Placed:
    progress(Loading(stage=KERNELS, done_bytes=0, total_bytes=0, eta_s=None))
    backend = choose_backend(config.cpu_backend)
    cores = read_cores()
    threads = config.threads or cores.usable
    if cores.reason is not None:
        records.few_threads(threads, cores.reason)
    try:
        runner = CpuRunner(
            model_config,
            _Counted(tensors, "packing weights", progress),
            threads=threads,
            max_rows=max(ROWS, min(config.prefill_chunk or 0, model_config.context), config.parallel),
            backend=backend,
        )
    except DamagedModel:
        raise
    except ValueError as error:
        raise DamagedModel(f"{config.model}: {error}") from error
    shown = f"{runner.backend}: {runner.backend_reason}"
    return _Placed(
        runner,
        "cpu",
        protocol.Weights(bytes=runner.weight_bytes(), forms=runner.weight_forms()),
        shown if no_gpu is None else without_gpu(shown, no_gpu),
    )


def _on_gpu(
    config: EngineConfig,
    model_config: LlamaConfig,
    tensors: Mapping[str, RawTensor],
    *,
    opened: OpenGpu,
    gpu: Gpu,
    progress: Progress,
) -> _Placed:
    loaded = load_on_gpu(
        opened,
        gpu,
        model_config,
        _Counted(tensors, "uploading weights", progress),
        progress,
        parallel=config.parallel,
        max_rows=max(min(config.prefill_chunk or MAX_ROWS, model_config.context), config.parallel),
        positions=min(config.max_len or model_config.context, model_config.context),
    )
    runner = loaded.runner
    plain = loaded.memory.whole_windows
    return _Placed(
        runner,
        gpu.device,
        protocol.Weights(bytes=runner.weight_bytes(), forms=runner.weight_forms()),
        f"{runner.backend}: {runner.backend_reason}" + (f"; whole windows are backed: {plain}" if plain else ""),
        loaded.memory,
    )


class _Counted(Mapping[str, RawTensor]):
    """A file's tensors that report how many bytes of them have been taken."""

    def __init__(self, tensors: Mapping[str, RawTensor], stage: str, progress: Progress) -> None:
        self._tensors = tensors
        self._stage = stage
        self._progress = progress
        self._taken: set[str] = set()
        self._done = 0
        self._total = sum(t.nbytes for t in tensors.values())
        self._start = time.monotonic()

    def __getitem__(self, name: str) -> RawTensor:
        tensor = self._tensors[name]
        if name not in self._taken:
            self._report()
            self._taken.add(name)
            self._done += tensor.nbytes
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _report(self) -> None:
        """Told before a tensor is taken: what was taken earlier has been packed or uploaded by then."""
        spent = time.monotonic() - self._start
        eta = spent * (self._total - self._done) / self._done if self._done else None
        self._progress(Loading(stage=self._stage, done_bytes=self._done, total_bytes=self._total, eta_s=eta))
