"""Which CPU backend runs, and why: the compiled kernels, else torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.cpu.linking import link_torch
from kernels.program import Ops, Program

SETTING = "TANDEM_CPU_BACKEND"
"""The setting that names a backend, as errors and reasons call it."""


class Recorder(Ops[Any], Protocol):
    """Ops that become a program."""

    def finish(self) -> Program:
        """The recorded program, checked for row invariance. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """`recorder(threads, max_rows)` starts a program; `reason` says in one sentence why this backend."""

    name: str
    reason: str
    recorder: Callable[[int, int], Recorder]


def native(defines: tuple[str, ...] = ()) -> BackendChoice:
    """The compiled kernels. Raises `kernels.cpu.build.BuildError` where they cannot be had."""
    from kernels.cpu import abi, build
    from kernels.cpu.native import NativeRecorder

    path = build.build(defines)
    try:
        lib = abi.load(str(path))
    except (OSError, RuntimeError) as error:
        raise build.BuildError(f"the compiled kernels cannot be loaded: {error}") from error
    return BackendChoice("native", "compiled on this machine", lambda threads, rows: NativeRecorder(lib, threads, rows))


def torch(reason: str) -> BackendChoice:
    """The torch kernels, for the reason given."""
    link_torch()
    from kernels.cpu.torch_ops import TorchRecorder

    return BackendChoice("torch", reason, TorchRecorder)


def choose(wanted: str = "auto") -> BackendChoice:
    """The backend `wanted`: `native`, `torch`, or `auto`, which is native where it can be compiled.

    Raises ValueError where it is none of these, or `native` and that cannot be had.
    """
    from kernels.cpu.build import BuildError

    if wanted not in ("auto", "native", "torch"):
        raise ValueError(f"{SETTING} is {wanted!r}; auto, native and torch are possible")
    if wanted == "torch":
        return torch(f"{SETTING}=torch")
    try:
        return native()
    except BuildError as error:
        if wanted == "native":
            raise ValueError(f"{SETTING}=native, but {error}") from error
        return torch(str(error))
