"""Compiling the CPU kernels on the user's machine, once for each source, compiler and processor."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from kernels.cache_dir import cache_dir

SOURCE = Path(__file__).parent / "src"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
TIMEOUT_S = 120


class BuildError(Exception):
    """No library could be made; the message is one sentence that says why."""


def compiler() -> str:
    """The C++ compiler's path: $CXX, g++ or clang++. Raises BuildError where none is found."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    raise BuildError(f"CXX is {wanted!r}, which is not found" if wanted else "no C++ compiler (g++, clang++) is found")


def build(defines: tuple[str, ...] = ()) -> Path:
    """The library for this machine, compiled where the cache does not hold it. Raises BuildError."""
    cxx = compiler()
    sources = sorted([*SOURCE.glob("*.h"), *SOURCE.glob("*.cpp")])
    key = hashlib.sha256()
    for part in [*FLAGS, *defines, cxx, _output([cxx, "--version"]), _processor()]:
        key.update(part.encode() + b"\0")
    for source in sources:
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = cache_dir() / "kernels"
    target = folder / f"cpu-{key.hexdigest()[:24]}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            _output([cxx, *FLAGS, *(f"-D{d}" for d in defines), str(SOURCE / "program.cpp"), "-o", str(made)])
            os.replace(made, target)
    except OSError as error:
        raise BuildError(f"the cache folder {folder} cannot be written: {error.strerror}") from error
    return target


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise BuildError(f"{command[0]} failed: {next((x for x in lines if 'error' in x), 'no message')}")
    return done.stdout


def _processor() -> str:
    """What -march=native depends on: the machine and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    model = next((x for x in lines if x.startswith("model name")), "")
    return f"{platform.machine()} {model} {flags}"
