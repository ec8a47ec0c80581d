"""A model file that others write to: what is loaded is in memory of the engine's own, and a change while loading is an
error with a name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.loading import KERNELS, LoadedModel, load
from engine.execution.rows import SlotRows, pack
from engine.models.weights.gguf import DamagedModel, open_gguf
from engine.models.weights.model_file import ModelFile
from engine.protocol import Loading
from tests.support.gguf_files import TinyLlama, write_tiny_llama
from tests.support.tiny_model import PlainKv


def overwrite(path: Path) -> None:
    """What `cp other.gguf path` does: the same inode, other bytes."""
    other = write_tiny_llama(path.with_name("other.gguf"), TinyLlama(seed=9, scale=0.9))
    with path.open("r+b") as file:
        file.write(other.read_bytes())


def fill(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"\xff" * size)


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    other = path.with_name("next.gguf")
    other.write_bytes(b"\xff" * 4096)
    other.replace(path)


CHANGES = [overwrite, fill, truncate, cut_in_half]


def loaded(path: Path, progress: Callable[[Loading], None] = lambda _: None, backend: str = "native") -> LoadedModel:
    config = EngineConfig(model=path, model_name="tiny", threads=1, device="cpu", cpu_backend=backend)
    return load(config, progress)


def logits(model: LoadedModel) -> bytes:
    """Those of a prompt of eight tokens, read into fresh KV memory."""
    kv = PlainKv(model.runner.layout, 1, 16)
    model.runner.attach(kv, 1)
    return model.runner.forward(pack([SlotRows(0, 0, range(20, 28), logits=range(8))])).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = write_tiny_llama(tmp_path / "tiny.gguf", TinyLlama(arch="qwen2"))
    # Modification times are as coarse as the system's clock tick: a change right after the writing would not show.
    os.utime(made, (1e9, 1e9))
    return made


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("change", [*CHANGES, replace])
def test_what_is_loaded_stays_what_it_was(change: Callable[[Path], None], backend: str, path: Path) -> None:
    model = loaded(path, backend=backend)
    before = logits(model)
    change(path)
    assert logits(model) == before


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_nothing_refers_to_the_file_once_it_is_loaded(backend: str, path: Path) -> None:
    model = loaded(path, backend=backend)
    assert str(path) not in Path("/proc/self/maps").read_text()
    fds = Path("/proc/self/fd")
    assert str(path) not in {os.readlink(fd) for fd in fds.iterdir() if fd.is_symlink()}
    assert model.runner.vocab_size == 276


@pytest.mark.parametrize("stage", ["reading the header", KERNELS, "packing weights"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_while_loading_is_an_error_with_a_name(change: Callable[[Path], None], stage: str, path: Path) -> None:
    changed = False

    def progress(loading: Loading) -> None:
        nonlocal changed
        if loading.stage == stage and not changed:
            changed = True
            # The header is read after its stage is told: what is read then is one whole state, the new one.
            change(path)

    expected = r"tiny\.gguf: the file changed while it was loaded \(.*\); start again once it is whole"
    if stage == "reading the header":
        expected = r"tiny\.gguf: "
        if change is overwrite:
            assert loaded(path, progress).info.arch == "llama"
            return
    with pytest.raises(DamagedModel, match=expected):
        loaded(path, progress)


def test_a_file_replaced_while_loading_is_another_file(path: Path) -> None:
    before = logits(loaded(path))

    def progress(loading: Loading) -> None:
        if loading.stage == "packing weights" and not loading.done_bytes:
            replace(path)

    assert logits(loaded(path, progress)) == before


def test_a_file_that_is_cut_while_a_tensor_is_read(path: Path) -> None:
    file = open_gguf(path)
    tensor = file.tensors["output_norm.weight"]
    assert np.array_equal(tensor.data, tensor.data)
    assert tensor.data is not tensor.data
    size = path.stat().st_size
    truncate(path)
    with pytest.raises(DamagedModel, match=rf"changed while it was loaded \({size} bytes before, 0 now\)"):
        _ = tensor.data


def test_a_read_past_the_end_is_named(path: Path) -> None:
    size = path.stat().st_size
    with pytest.raises(DamagedModel, match=rf"the file ends at byte {size}, 10 more were expected"):
        ModelFile(path).read(size - 5, 15)
