"""`tandem models`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.models import catalog
from tandem.cli import run
from tandem.exits import Exit
from tests.engine.models.weights.test_shards import later_shard
from tests.support.gguf_files import ABSENT, TinyLlama, vocabulary, write_tiny_llama


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def fetched(cache: Path) -> Path:
    """Put a file where the default model's would lie."""
    cache.mkdir(parents=True)
    return write_tiny_llama(cache / catalog.BUILT_IN[catalog.DEFAULT_MODEL].file_name)


def test_list_says_what_is_fetched(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list"]) == Exit.OK
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LICENCE", "STATE", "MODEL"]
    assert [line.split()[0] for line in lines[1:]] == list(catalog.BUILT_IN)
    assert all("not fetched" in line for line in lines[1:])
    assert said.err == ""
    path = fetched(cache)
    assert run(["models", "list", "--json"]) == Exit.OK
    default, other = json.loads(capsys.readouterr().out)
    assert default["path"] == str(path)
    assert (default["default"], default["refusal"]) == (True, None)
    assert (other["path"], other["bytes"]) == (None, 1_117_320_768)


def test_list_says_what_cannot_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = replace(catalog.BUILT_IN[catalog.DEFAULT_MODEL], name="later", refusal="its weight form cannot be run yet")
    monkeypatch.setattr(catalog, "BUILT_IN", {"later": later})
    assert run(["models", "list"]) == Exit.OK
    assert "later: its weight form cannot be run yet" in capsys.readouterr().err


def test_inspect_a_path_and_a_name(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetched(cache)
    for wanted in (str(path), catalog.DEFAULT_MODEL):
        assert run(["models", "inspect", wanted, "--json"]) == Exit.OK
        found = json.loads(capsys.readouterr().out)
        assert (found["arch"], found["layers"], found["max_len"], found["vocab"]) == ("llama", 2, 256, 276)
        assert found["template"] is True
        assert found["refusal"] is None
        assert found["bytes"] == path.stat().st_size
        assert {f["form"]: f["tensors"] for f in found["forms"]} == {"q4_1": 14, "f32": 5, "q8_0": 1}
    assert run(["models", "inspect", str(path)]) == Exit.OK
    said = capsys.readouterr()
    assert "Q4_1 x 14" in said.out
    assert "256 tokens" in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TinyLlama(form=GGMLQuantizationType.Q5_0), "weight form Q5_0 cannot be run yet; supported are F32"),
        (TinyLlama(metadata={"llama.rope.scaling.type": "longrope"}), "longrope"),
        (TinyLlama(metadata={"tokenizer.ggml.pre": "tekken"}), "tekken"),
        (TinyLlama(metadata={"general.architecture": "gemma"}), "architecture 'gemma' cannot be run yet"),
        (
            TinyLlama(tensors={"blk.0.attn_output.bias": np.ones(64, np.float32)}),
            "tensor blk.0.attn_output.bias cannot",
        ),
        (TinyLlama(metadata={"split.count": 2, "split.no": 0}), "this is shard 1 of 2 of a split model"),
    ],
)
def test_inspect_says_why_a_whole_file_cannot_run(
    spec: TinyLlama, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", spec)
    assert run(["models", "inspect", str(path), "--json"]) == Exit.OK
    assert reason in json.loads(capsys.readouterr().out)["refusal"]
    assert run(["models", "inspect", str(path)]) == Exit.OK
    assert "runs        no: " in capsys.readouterr().out


def test_a_file_without_a_template_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", TinyLlama(metadata={"tokenizer.chat_template": ABSENT}))
    assert run(["models", "inspect", str(path)]) == Exit.OK
    assert "no: chat is refused" in capsys.readouterr().out


def test_what_is_wrong_with_a_file_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, types, _ = vocabulary()
    path = write_tiny_llama(
        tmp_path / "m.gguf",
        TinyLlama(
            metadata={
                "tokenizer.chat_template": "{% if <|im_start|> %}",
                "tokenizer.ggml.token_type": [types[0], 1, *types[2:]],
            }
        ),
    )
    assert run(["models", "inspect", str(path), "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["template"], found["refusal"]) == (False, None)
    mistyped, broken = found["warnings"]
    assert "1 of the chat template's own markers as text (<|im_start|>)" in mistyped
    assert broken.startswith("chat is refused: the model's chat template does not compile: ")
    assert run(["models", "inspect", str(path)]) == Exit.OK
    assert f"warning     {broken}" in capsys.readouterr().out


def test_names_of_a_file_reach_no_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", TinyLlama(metadata={"general.name": "\x1b[31mred"}))
    assert run(["models", "inspect", str(path)]) == Exit.OK
    assert "\x1b" not in capsys.readouterr().out


def test_a_later_shard_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "inspect", str(later_shard(tmp_path / "m-00002-of-00002.gguf"))]) == Exit.FAILURE
    assert "this is shard 2 of 2 of a split model; m-00001-of-00002.gguf missing in" in capsys.readouterr().err


def test_misuse_and_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoilt = TinyLlama(tensors={"output_norm.weight": np.full(64, np.nan, np.float32)})
    write_tiny_llama(tmp_path / "nan.gguf", spoilt)
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(write_tiny_llama(tmp_path / "whole.gguf").read_bytes()[:5000])
    cases = [
        (["inspect", "nothing"], Exit.USAGE, "unknown model 'nothing': built in are smollm2-135m"),
        (["pull", "nothing"], Exit.USAGE, "unknown model 'nothing'"),
        (["pull"], Exit.USAGE, "NAME"),
        (["inspect", str(damaged)], Exit.FAILURE, "cut.gguf: "),
        (["inspect", str(tmp_path / "nan.gguf")], Exit.FAILURE, "output_norm.weight holds 64 values that are NaN"),
        (["inspect", catalog.DEFAULT_MODEL], Exit.FAILURE, "`tandem models pull smollm2-135m` fetches it"),
    ]
    for args, code, message in cases:
        assert run(["models", *args]) == code
        said = capsys.readouterr()
        assert message in said.err
        assert said.out == ""


def test_pull_prints_where_the_file_lies(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fetched(cache)
    assert run(["models", "pull", catalog.DEFAULT_MODEL]) == Exit.OK
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{path}\n", "")
    assert run(["models", "pull", catalog.DEFAULT_MODEL, "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["path"] == str(path)

    def offline(model: catalog.BuiltIn, path: Path, progress: catalog.Progress) -> None:
        raise catalog.FetchFailed("no index in reach")

    monkeypatch.setattr(catalog, "_fetch", offline)
    path.unlink()
    assert run(["models", "pull", catalog.DEFAULT_MODEL]) == Exit.FAILURE
    assert capsys.readouterr().err == "tandem: no index in reach\n"


def test_inspect_and_list_bring_no_torch(cache: Path) -> None:
    path = fetched(cache)
    code = (
        "import sys; from tandem.cli import run; "
        f"assert run(['models', 'list']) == run(['models', 'inspect', {str(path)!r}]) == 0; "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
