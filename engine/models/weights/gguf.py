"""GGUF files: reads the header with every length checked against the file, and each tensor when it is asked for.

The layout is that of the GGUF specification, versions 2 and 3, little endian: magic, version, counts, key-value pairs,
tensor descriptions, then the data at the next multiple of the alignment. Nothing is allocated before the file has been
seen to hold it, so a damaged file fails quickly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from engine.models.weights.errors import DamagedModel, UnsupportedModel
from engine.models.weights.model_file import ModelFile
from engine.models.weights.shards import shard_sentence
from kernels.quant_types import BLOCKS, QuantType, RawTensor

__all__ = ["DamagedModel", "GgufFile", "GgufHeader", "Metadata", "UnsupportedModel", "open_gguf", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_STRING = 16 << 20
MAX_STRINGS = 4 << 20
MAX_DIMENSIONS = 4
HEADER_READ = 8 << 20
"""Bytes read at first; most headers are shorter, and longer ones are read again in whole."""

MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_HEADER = 128 << 20
"""Limits of a header, several times those of any known file. Each entry becomes an object of some hundred bytes,
however few the file has for it."""

DEFAULT_ALIGNMENT = 32

Value = bool | int | float | str | tuple[str, ...] | NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class FileForm:
    """An element form as a file may hold it, runnable or not: `values` consecutive values share a block of `bytes`."""

    name: str
    values: int
    bytes: int


def _file_forms() -> dict[int, FileForm]:
    """GGUF's type numbers; block sizes from the format's reference tables."""
    table = """
        0 f32 1 4; 1 f16 1 2; 2 q4_0 32 18; 3 q4_1 32 20; 6 q5_0 32 22; 7 q5_1 32 24; 8 q8_0 32 34; 9 q8_1 32 40;
        10 q2_k 256 84; 11 q3_k 256 110; 12 q4_k 256 144; 13 q5_k 256 176; 14 q6_k 256 210; 15 q8_k 256 292;
        16 iq2_xxs 256 66; 17 iq2_xs 256 74; 18 iq3_xxs 256 98; 19 iq1_s 256 50; 20 iq4_nl 32 18; 21 iq3_s 256 110;
        22 iq2_s 256 82; 23 iq4_xs 256 136; 24 i8 1 1; 25 i16 1 2; 26 i32 1 4; 27 i64 1 8; 28 f64 1 8; 29 iq1_m 256 56;
        30 bf16 1 2; 34 tq1_0 256 54; 35 tq2_0 256 66; 39 mxfp4 32 17; 40 nvfp4 64 36; 41 q1_0 128 18
    """
    rows = (row.split() for row in table.split(";"))
    return {int(number): FileForm(name, int(values), int(size)) for number, name, values, size in rows}


FILE_FORMS: Mapping[int, FileForm] = MappingProxyType(_file_forms())
RUNNABLE = tuple(form.value for form in BLOCKS)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` outputs first, `offset` and `bytes` in the file. Its form may not be runnable."""

    name: str
    form: FileForm
    shape: tuple[int, ...]
    offset: int
    bytes: int


class Metadata(Mapping[str, Value]):
    """The file's key-value pairs, with getters that check the type. Strings arrays are tuples, others numpy arrays."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self._values = values

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, key: str, default: str | None = None) -> str:
        """The string at `key`. Raises DamagedModel where it has another type, or is absent and has no default."""
        value = self._require(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int = 1 << 31) -> int:
        """The integer at `key`, within `low` and `high`. Raises DamagedModel as `text` does."""
        value = self._require(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        if not low <= value <= high:
            raise DamagedModel(f"{self.path}: {key} is {value}, allowed is {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The finite number at `key`. Raises DamagedModel as `text` does."""
        value = self._require(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not np.isfinite(value):
            raise DamagedModel(f"{self.path}: {key} is {value}, allowed is a finite number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """The boolean at `key`. Raises DamagedModel as `text` does."""
        value = self._require(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "a boolean")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings at `key`. Raises DamagedModel as `text` does."""
        value = self._require(key, None)
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "an array of strings")
        return value

    def array(self, key: str) -> NDArray[np.generic]:
        """The numeric array at `key`, one dimension. Raises DamagedModel as `text` does."""
        value = self._require(key, None)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, value, "an array of numbers")
        return value

    def _require(self, key: str, default: Value | None) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise DamagedModel(f"{self.path}: {key} is missing")
        return value

    def _wrong(self, key: str, value: Value, wanted: str) -> DamagedModel:
        return DamagedModel(f"{self.path}: {key} must be {wanted}, the file has {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything but the weights."""

    path: Path
    file_bytes: int
    metadata: Metadata
    infos: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file. Each tensor's data are read whenever they are asked for, into memory of the caller's own; `source`
    says whether the file is still what was opened."""

    path: Path
    file_bytes: int
    metadata: Metadata
    tensors: Mapping[str, RawTensor]
    source: ModelFile


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensor descriptions, whatever forms the tensors have.

    Raises DamagedModel where the file is not a whole GGUF file, OSError where it cannot be read.
    """
    return _header(ModelFile(path))


def open_gguf(path: Path) -> GgufFile:
    """Open a file whose tensors can all be run; shapes and bytes of each as in `RawTensor`.

    Raises DamagedModel as `read_header` does, UnsupportedModel where it is a shard of a split model, or where a
    tensor has a form that no backend runs.
    """
    source = ModelFile(path)
    header = _header(source)
    if shard := shard_sentence(path, header.metadata):
        raise UnsupportedModel(f"{path}: {shard}")
    refused = sorted({info.form.name for info in header.infos.values()} - set(RUNNABLE))
    if refused:
        names = ", ".join(name.upper() for name in refused)
        raise UnsupportedModel(
            f"{path}: weight form {names} cannot be run yet; supported are {', '.join(f.upper() for f in RUNNABLE)}"
        )
    tensors = {
        info.name: RawTensor(info.name, QuantType(info.form.name), info.shape, partial(_blocks, source, info))
        for info in header.infos.values()
    }
    return GgufFile(header.path, header.file_bytes, header.metadata, MappingProxyType(tensors), source)


def _blocks(source: ModelFile, info: TensorInfo) -> NDArray[np.uint8]:
    """A tensor's blocks, shape (..., values of a row / values of a block * bytes of a block)."""
    row_bytes = info.shape[-1] // info.form.values * info.form.bytes
    return source.read(info.offset, info.bytes).reshape(*info.shape[:-1], row_bytes)


def _header(source: ModelFile) -> GgufHeader:
    with source.unchanged():
        size = min(HEADER_READ, source.bytes)
        while True:
            data = source.read(0, size).tobytes()
            try:
                return _Cursor(source.path, data, source.bytes).header()
            except DamagedModel as error:
                if shard := shard_sentence(source.path, {}):
                    raise DamagedModel(f"{error}; by its name, {shard}") from error
                raise
            except _ReadMore:
                if size == MAX_HEADER:
                    raise DamagedModel(f"{source.path}: the header is longer than {MAX_HEADER} bytes") from None
                size = min(8 * size, MAX_HEADER, source.bytes)


class _ReadMore(Exception):
    """The header goes on behind the bytes that were read."""


class _Cursor:
    """A read position in the header; every read is checked against the end of the file first."""

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        """`data` are the first bytes of a file of `size`."""
        self.path = path
        self.data = data
        self.size = size
        self.at = len(MAGIC)

    def header(self) -> GgufHeader:
        if not self.data.startswith(MAGIC):
            raise self.bad(f"not a GGUF file: it starts with {self.data[: len(MAGIC)]!r}, expected {MAGIC!r}")
        version = self.number("<I", "version")
        if version not in VERSIONS:
            # A big-endian file shows here as 3 << 24.
            raise self.bad(f"GGUF version is {version}, supported are {VERSIONS[0]} and {VERSIONS[1]}")
        # The shortest possible tensor description is 24 bytes, the shortest pair 13.
        n_tensors = self.count("tensor count", 24, MAX_TENSORS)
        n_pairs = self.count("metadata count", 13, MAX_PAIRS)
        values: dict[str, Value] = {}
        for _ in range(n_pairs):
            key = self.string("metadata key")
            if key in values:
                raise self.bad(f"metadata key {key!r} appears twice")
            values[key] = self.value(key)
        metadata = Metadata(self.path, MappingProxyType(values))
        alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT, low=8, high=1 << 20)
        if alignment & (alignment - 1):
            raise self.bad(f"general.alignment is {alignment}, allowed is a power of two")
        found = [self.tensor() for _ in range(n_tensors)]
        start = -(-self.at // alignment) * alignment
        infos: dict[str, TensorInfo] = {}
        for info in found:
            if info.name in infos:
                raise self.bad(f"tensor {info.name!r} appears twice")
            infos[info.name] = self.placed(info, start, alignment)
        return GgufHeader(self.path, self.size, metadata, MappingProxyType(infos))

    def bad(self, what: str) -> DamagedModel:
        # Names come from a file that may hold anything: terminal escapes, or megabytes.
        shown = "".join(c if c.isprintable() else "\ufffd" for c in what[:400])
        return DamagedModel(f"{self.path}: {shown}")

    def need(self, n: int, what: str) -> None:
        left = self.size - self.at
        if n > left:
            raise self.bad(f"{what} needs {n} bytes at offset {self.at}, the file has {left} left")
        if self.at + n > len(self.data):
            raise _ReadMore

    def number(self, layout: str, what: str) -> int:
        size = struct.calcsize(layout)
        self.need(size, what)
        value: int = struct.unpack_from(layout, self.data, self.at)[0]
        self.at += size
        return value

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        n = self.number("<Q", what)
        if n > limit:
            raise self.bad(f"{what} is {n}, the limit is {limit}")
        self.need(n * least_bytes, f"{what} {n}")
        return n

    def string(self, what: str) -> str:
        n = self.number("<Q", f"length of {what}")
        if n > MAX_STRING:
            raise self.bad(f"{what} is {n} bytes long, the limit is {MAX_STRING}")
        self.need(n, what)
        raw = self.data[self.at : self.at + n]
        self.at += n
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8: {raw[:32]!r}") from error

    def value(self, key: str) -> Value:
        kind = self.number("<I", f"type of {key}")
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise self.bad(f"{key} has type {kind}, allowed is 0 to {max(_SCALARS)}")
        value = self.number(scalar.layout, key)
        return scalar.python(value)

    def array(self, key: str) -> Value:
        kind = self.number("<I", f"element type of {key}")
        n = self.number("<Q", f"length of {key}")
        if kind == _STRING:
            if n > MAX_STRINGS:
                raise self.bad(f"{key} has {n} strings, the limit is {MAX_STRINGS}")
            self.need(n * 8, f"{key} of {n} strings")
            return self.strings(key, n)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise self.bad(f"{key} is an array of type {kind}, allowed are numbers and strings")
        size = n * scalar.dtype.itemsize
        self.need(size, f"{key} of {n} elements")
        values = np.frombuffer(self.data[self.at : self.at + size], scalar.dtype)
        self.at += size
        return values

    def strings(self, key: str, n: int) -> tuple[str, ...]:
        """`n` strings: the one hot place of the header, so bounds are left to slices that come out short."""
        data, at = self.data, self.at
        unpack = struct.Struct("<Q").unpack_from
        found: list[str] = []
        append = found.append
        try:
            for _ in range(n):
                start = at + 8
                at = start + unpack(data, at)[0]
                raw = data[start:at]
                if len(raw) != at - start:
                    break
                append(raw.decode())
        except struct.error:
            pass
        except UnicodeDecodeError as error:
            raise self.bad(f"string {len(found)} of {key} is not UTF-8: {raw[:32]!r}") from error
        if len(found) != n:
            if at <= self.size and len(self.data) < self.size:
                raise _ReadMore
            raise self.bad(f"string {len(found)} of {n} of {key} reaches past the end, {self.size} bytes")
        self.at = at
        return tuple(found)

    def tensor(self) -> TensorInfo:
        """One description; `offset` is still relative to the data."""
        name = self.string("tensor name")
        n_dims = self.number("<I", f"dimensions of {name}")
        if not 1 <= n_dims <= MAX_DIMENSIONS:
            raise self.bad(f"tensor {name!r} has {n_dims} dimensions, allowed is 1 to {MAX_DIMENSIONS}")
        dims = [self.number("<Q", f"shape of {name}") for _ in range(n_dims)]
        kind = self.number("<I", f"form of {name}")
        offset = self.number("<Q", f"offset of {name}")
        form = FILE_FORMS.get(kind)
        if form is None:
            raise self.bad(f"tensor {name!r} has form number {kind}, known are {sorted(FILE_FORMS)}")
        if dims[0] % form.values:
            raise self.bad(
                f"tensor {name!r} has rows of {dims[0]} values, {form.name} needs a multiple of {form.values}"
            )
        values = 1
        for dim in dims:
            values *= dim
        if values == 0:
            raise self.bad(f"tensor {name!r} has an empty shape {dims}")
        return TensorInfo(name, form, tuple(reversed(dims)), offset, values // form.values * form.bytes)

    def placed(self, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        if info.offset % alignment:
            raise self.bad(f"tensor {info.name!r} starts at {info.offset}, allowed are multiples of {alignment}")
        end = start + info.offset + info.bytes
        if end > self.size:
            raise self.bad(f"tensor {info.name!r} ends at byte {end}, the file has {self.size}")
        return TensorInfo(info.name, info.form, info.shape, start + info.offset, info.bytes)


@dataclass(frozen=True, slots=True)
class _Scalar:
    layout: str
    dtype: np.dtype[np.generic]
    python: Callable[[int], bool | int | float]


def _scalar(layout: str, dtype: str, python: type[bool] | type[int] | type[float]) -> _Scalar:
    return _Scalar(layout, np.dtype(dtype), python)


_SCALARS: dict[int, _Scalar] = {
    0: _scalar("<B", "<u1", int),
    1: _scalar("<b", "<i1", int),
    2: _scalar("<H", "<u2", int),
    3: _scalar("<h", "<i2", int),
    4: _scalar("<I", "<u4", int),
    5: _scalar("<i", "<i4", int),
    6: _scalar("<f", "<f4", float),
    7: _scalar("<B", "|b1", bool),
    10: _scalar("<Q", "<u8", int),
    11: _scalar("<q", "<i8", int),
    12: _scalar("<d", "<f8", float),
}
_STRING = 8
_ARRAY = 9
