"""Torch's library comes into the process while other threads run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kernels.cpu.linking import link_torch
from tests.support.patience import LONG_S

# Its constructor is done once somebody has written to the pipe.
SLOW = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    char one;
    int pipe = open(PIPE, O_RDONLY);
    if (read(pipe, &one, 1) != 1) _exit(3);
    close(pipe);
}
"""
WRITE_MEANWHILE = """
import os, sys, threading
from pathlib import Path
from kernels.cpu.linking import link
def write():
    with open(sys.argv[2], "wb", buffering=0) as pipe:
        pipe.write(b"x")
threading.Thread(target=write, daemon=True).start()
assert link(Path(sys.argv[1]), os.RTLD_LAZY)
"""
LINKED = """
import os, sys
from kernels.cpu.linking import link_torch
link_torch()
assert "torch" not in sys.modules
maps = open("/proc/self/maps").read()
assert "libtorch_cpu.so" in maps
assert os.environ["GOMP_SPINCOUNT"]
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_other_threads_run_while_a_library_begins(tmp_path: Path) -> None:
    pipe, source, library = tmp_path / "pipe", tmp_path / "slow.c", tmp_path / "slow.so"
    os.mkfifo(pipe)
    source.write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", f'-DPIPE="{pipe}"', str(source), "-o", str(library)], check=True)
    subprocess.run([sys.executable, "-c", WRITE_MEANWHILE, str(library), str(pipe)], check=True, timeout=LONG_S)


def test_torchs_library_is_there_before_torch() -> None:
    subprocess.run([sys.executable, "-c", LINKED], check=True)


@pytest.mark.parametrize("library", [None, b"no library"])
def test_an_install_that_keeps_its_libraries_elsewhere_is_left_to_its_import(
    library: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").touch()
    if library is not None:
        (folder / "lib").mkdir()
        (folder / "lib" / "libtorch_global_deps.so").write_bytes(library)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    link_torch()


def test_nothing_is_linked_where_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    link_torch()
