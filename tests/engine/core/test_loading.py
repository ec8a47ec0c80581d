"""Loading: a file becomes a runner with its tokenizer, template and description, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.loading import KERNELS, LoadedModel, load
from engine.execution.devices import UnusableDevice
from engine.models.weights.gguf import DamagedModel, UnsupportedModel
from engine.protocol import Loading
from engine.request import RequestError
from tests.support.gguf_files import ABSENT, Override, TinyLlama, vocabulary, write_tiny_llama


def loaded(path: Path, progress: list[Loading] | None = None, device: str = "auto") -> LoadedModel:
    config = EngineConfig(model=path, model_name="tiny", threads=1, device=device)
    return load(config, progress.append if progress is not None else lambda _: None)


def written(folder: Path, **metadata: Override) -> Path:
    """The tiny model with metadata `tokenizer.<name>` changed, `__` standing for a dot."""
    changed = {f"tokenizer.{name.replace('__', '.')}": value for name, value in metadata.items()}
    return write_tiny_llama(folder / "t.gguf", TinyLlama(metadata=changed))


def test_a_whole_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    stages: list[Loading] = []
    model = loaded(path, stages)
    assert (model.info.name, model.info.arch, model.info.max_len, model.info.device) == ("tiny", "llama", 256, "cpu")
    assert {f.file: f.tensors for f in model.info.weights.forms} == {"q4_1": 14, "f32": 5, "q8_0": 1}
    assert model.info.weights.bytes > 0
    assert model.info.backend
    assert (model.served.name, model.served.max_len) == ("tiny", 256)
    assert model.served.created == int(path.stat().st_mtime)
    assert model.served.tokenizer.vocab_size == model.runner.vocab_size == 276
    assert model.runner.layout.row_bytes == 2 * 2 * 32 * 2
    assert model.runner.max_rows >= 128
    assert model.served.template is not None
    assert model.served.template.render([{"role": "user", "content": "the"}]).first_user_end > 0
    done = [s.done_bytes for s in stages]
    assert done == sorted(done)
    assert [s.stage for s in stages[:2]] == ["reading the header", KERNELS]
    assert {s.stage for s in stages[2:]} == {"packing weights"}
    assert done[-1] <= stages[-1].total_bytes == sum(t.n_bytes for t in gguf.GGUFReader(path).tensors)


def test_a_pass_is_never_longer_than_the_window(tmp_path: Path) -> None:
    config = EngineConfig(model=written(tmp_path), model_name="tiny", threads=1, prefill_chunk=10**9)
    assert load(config, lambda _: None).runner.max_rows <= 512


def test_a_file_without_a_template_or_a_start_token_loads(tmp_path: Path) -> None:
    path = written(tmp_path, chat_template=ABSENT, ggml__bos_token_id=ABSENT, ggml__add_bos_token=ABSENT)
    served = loaded(path).served
    assert served.template is None
    assert served.tokenizer.bos_id is None
    assert served.tokenizer.prompt_ids("the") == served.tokenizer.encode("the")


def test_templates_may_name_tokens_that_the_file_lacks(tmp_path: Path) -> None:
    source = "{{ bos_token + messages[0].content + eos_token + unk_token }}"
    template = loaded(written(tmp_path, chat_template=source, ggml__bos_token_id=ABSENT)).served.template
    assert template is not None
    assert template.render([{"role": "user", "content": "the"}]).ids == (vocabulary()[0].index("the"), 2)


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
def test_a_template_that_does_not_compile_leaves_the_rest(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(written(tmp_path, chat_template=source))
    [warning] = model.info.warnings
    assert warning.startswith("chat is refused: the model's chat template does not compile: ")
    assert warning in caplog.text
    assert model.served.template is not None
    with pytest.raises(RequestError, match="does not compile: ") as refused:
        model.served.template.render([{"role": "user", "content": "the"}])
    assert refused.value.status == 400


def test_a_file_without_merges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedModel, match=r"t\.gguf: tokenizer\.ggml\.merges is missing"):
        loaded(written(tmp_path, ggml__merges=ABSENT))


def test_tokens_and_embeddings_must_agree(tmp_path: Path) -> None:
    spec = TinyLlama(tensors={"token_embd.weight": np.zeros((270, 64), np.float32)})
    with pytest.raises(DamagedModel, match=r"t\.gguf: 276 tokens for 270 rows of token_embd\.weight"):
        loaded(write_tiny_llama(tmp_path / "t.gguf", spec))


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    spec = TinyLlama(tensors={"blk.1.attn_q.weight": np.zeros((32, 64), np.float32)})
    with pytest.raises(DamagedModel, match=r"t\.gguf: blk\.1\.attn_q\.weight"):
        loaded(write_tiny_llama(tmp_path / "t.gguf", spec))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "t.gguf", TinyLlama(layers=1, metadata={"llama.block_count": 2}))
    with pytest.raises(DamagedModel, match=r"t\.gguf: blk\.1\."):
        loaded(path)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", r"device is 'tpu', allowed are auto, cpu and cuda\[:i\]"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_before_the_file_is_read(device: str, message: str) -> None:
    with pytest.raises(UnusableDevice, match=message):
        loaded(Path("/nonexistent"), device=device)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    spec = TinyLlama(metadata={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModel, match="architecture 'mamba' cannot be run yet"):
        loaded(write_tiny_llama(tmp_path / "t.gguf", spec))
