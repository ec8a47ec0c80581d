"""CUDA C++ compiled at run time for the GPU at hand, kept on disk by source, options and architecture."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.cache_dir import cache_dir

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
STATIC_SHARED = 1024
"""Bytes of a block's shared memory left to what a kernel declares itself."""


class CudaCompileError(Exception):
    """NVRTC refused a source; the message holds its log."""


def available() -> bool:
    """Whether NVRTC and the driver's bindings can be imported here."""
    try:
        from cuda.bindings import driver, nvrtc

        return bool(driver and nvrtc)
    except ImportError:
        return False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel; `handle` belongs to the device's primary context."""

    handle: Any
    dependent: bool

    def launch(self, grid: int, threads: int, arguments: tuple[torch.Tensor | int, ...], shared: int = 0) -> None:
        """Launch on torch's current stream with `shared` bytes of dynamic shared memory: tensors go by address,
        integers as C int."""
        from cuda.bindings import driver

        values = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        kinds = tuple(_POINTER if isinstance(a, torch.Tensor) else _INT for a in arguments)
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.hStream = stream
        config.sharedMemBytes = shared
        if self.dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        (error,) = driver.cuLaunchKernelEx(config, self.handle, (values, kinds), 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuLaunchKernelEx: {error}")


@cache
def load(source: Path, name: str, defines: tuple[tuple[str, int], ...], capability: tuple[int, int]) -> Kernel:
    """Compile `source` with `defines` for a GPU of `capability` and load its kernel `name`.

    Raises CudaCompileError where the source does not compile, RuntimeError where the driver refuses the result.
    """
    from cuda.bindings import driver

    text = source.read_text()
    options = [
        f"--gpu-architecture=sm_{capability[0]}{capability[1]}",
        "--std=c++17",
        "--fmad=false",
        *(f"-D{key}={value}" for key, value in defines),
    ]
    key = hashlib.blake2b("\0".join([_version(), text, *options]).encode(), digest_size=16).hexdigest()
    path = cache_dir() / "cubin" / f"{source.stem}-{key}.cubin"
    code = path.read_bytes() if path.is_file() else _compile(text, source.name, options)
    if not path.is_file():
        _keep(path, code)
    torch.cuda.current_stream().synchronize()  # makes the primary context current in this thread
    error, module = driver.cuModuleLoadData(code)
    if error == driver.CUresult.CUDA_SUCCESS:
        error, handle = driver.cuModuleGetFunction(module, name.encode())
    if error == driver.CUresult.CUDA_SUCCESS:
        limit = shared_limit(torch.cuda.current_device()) - STATIC_SHARED
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuFuncSetAttribute(handle, attribute, limit)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"loading {name} of {source.name}: {error}")
    return Kernel(handle, bool(dict(defines).get("MODE", 0)))


def _compile(text: str, name: str, options: list[str]) -> bytes:
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaCompileError(f"{name}: {result[0]}")
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    encoded = [o.encode() for o in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise CudaCompileError(f"{name} with {' '.join(options)}:\n{log.decode(errors='replace')}")
    code: bytes = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, code))
    return code


def shared_limit(device: int) -> int:
    """Bytes of shared memory that a block may ask for."""
    from cuda.bindings import driver

    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    error, bytes_ = driver.cuDeviceGetAttribute(attribute, device)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuDeviceGetAttribute: {error}")
    return int(bytes_)


def _version() -> str:
    from cuda.bindings import nvrtc

    return str(nvrtc.nvrtcVersion())


def _keep(path: Path, code: bytes) -> None:
    """Write the compiled code for the next start; a disk that refuses costs only the next start's compilation."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return
