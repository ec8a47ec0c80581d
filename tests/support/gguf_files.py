"""Writes small GGUF files for tests: a tiny Llama or Qwen with a byte-level vocabulary, any part changed or absent."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

from kernels.quant_types import QuantType
from tests.support.tiny_model import raw

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
K_QUANTS = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("th", "he", "Ġt", "Ġth", "the", "Ġthe", "in", "Ġa", "er", "an", "hi", "lo", "us", "ser", "user", "is", "Ġis")


def byte_symbols() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary, in byte order."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = (b for b in range(256) if b not in shown)
    symbol = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [symbol[b] for b in range(256)]


class Absent(enum.Enum):
    ABSENT = "absent"


ABSENT = Absent.ABSENT
"""As a metadata override: leave the key out."""

Override = Absent | bool | int | float | str | list[str] | list[int] | list[float]


@dataclass(frozen=True)
class TinyLlama:
    """A Llama of a few thousand weights, or another `arch`: qwen2 adds random biases, qwen3 random norms of Q and K.
    `form` is that of every matrix; `metadata` overrides or removes keys; `tensors` adds or replaces float32 tensors.
    A K-quant form needs `width` and `hidden` in multiples of 256, and its values are random codes."""

    arch: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 128
    window: int = 256
    form: GGMLQuantizationType = GGMLQuantizationType.Q4_1
    head_form: GGMLQuantizationType = GGMLQuantizationType.Q8_0
    seed: int = 0
    scale: float = 0.3
    head_dim: int | None = None
    own_head: bool = False
    metadata: dict[str, Override] = field(default_factory=dict)
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges: three control tokens, 256 bytes, and a few words that merges reach."""
    tokens = [*CONTROLS, *byte_symbols()]
    types = [int(TokenType.CONTROL)] * len(CONTROLS) + [int(TokenType.NORMAL)] * 256
    merges = []
    for word in WORDS:
        cut = next(i for i in range(len(word) - 1, 0, -1) if word[:i] in tokens and word[i:] in tokens)
        merges.append(f"{word[:cut]} {word[cut:]}")
        tokens.append(word)
        types.append(int(TokenType.NORMAL))
    return tokens, types, merges


def write_tiny_llama(path: Path, spec: TinyLlama | None = None) -> Path:
    """Write the model that `spec` describes and return its path."""
    spec = spec or TinyLlama()
    tokens, types, merges = vocabulary()
    values: dict[str, Override] = {
        "general.name": "tiny",
        f"{spec.arch}.block_count": spec.layers,
        f"{spec.arch}.context_length": spec.window,
        f"{spec.arch}.embedding_length": spec.width,
        f"{spec.arch}.feed_forward_length": spec.hidden,
        f"{spec.arch}.attention.head_count": spec.heads,
        f"{spec.arch}.attention.head_count_kv": spec.kv_heads,
        f"{spec.arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{spec.arch}.rope.freq_base": 10000.0,
        f"{spec.arch}.rope.dimension_count": spec.head_dim or spec.width // spec.heads,
        f"{spec.arch}.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    if spec.head_dim:
        values |= {f"{spec.arch}.attention.{part}_length": spec.head_dim for part in ("key", "value")}
    arch = spec.metadata.get("general.architecture", spec.arch)
    writer = gguf.GGUFWriter(path, str(arch))
    for key, value in (values | spec.metadata).items():
        if value is not ABSENT and key != "general.architecture":
            _add(writer, key, value)
    for name, data in _weights(spec, len(tokens)).items():
        form = GGMLQuantizationType.F32 if data.ndim == 1 else spec.form
        if name in ("token_embd.weight", "output.weight"):
            form = spec.head_form
        if form == GGMLQuantizationType.F32:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, _blocks(data, form, spec), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Override) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _blocks(data: NDArray[np.float32], form: GGMLQuantizationType, spec: TinyLlama) -> NDArray[np.uint8]:
    if form in K_QUANTS:
        random = np.random.default_rng(spec.seed)
        return raw("", QuantType[form.name], data.shape, random, spec.scale).data
    blocks: NDArray[np.uint8] = quantize(data, form)
    return blocks


def _weights(spec: TinyLlama, vocab: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(spec.seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * spec.scale).astype(np.float32)

    head_dim = spec.head_dim or spec.width // spec.heads
    q_width, kv_width = head_dim * spec.heads, head_dim * spec.kv_heads
    found = {"token_embd.weight": matrix(vocab, spec.width), "output_norm.weight": np.ones(spec.width, np.float32)}
    for i in range(spec.layers):
        found |= {
            f"blk.{i}.attn_norm.weight": np.ones(spec.width, np.float32),
            f"blk.{i}.attn_q.weight": matrix(q_width, spec.width),
            f"blk.{i}.attn_k.weight": matrix(kv_width, spec.width),
            f"blk.{i}.attn_v.weight": matrix(kv_width, spec.width),
            f"blk.{i}.attn_output.weight": matrix(spec.width, q_width),
            f"blk.{i}.ffn_norm.weight": np.ones(spec.width, np.float32),
            f"blk.{i}.ffn_gate.weight": matrix(spec.hidden, spec.width),
            f"blk.{i}.ffn_up.weight": matrix(spec.hidden, spec.width),
            f"blk.{i}.ffn_down.weight": matrix(spec.width, spec.hidden),
        }
        if spec.arch == "qwen2":
            for part, size in (("q", q_width), ("k", kv_width), ("v", kv_width)):
                found[f"blk.{i}.attn_{part}.bias"] = matrix(1, size)[0]
        if spec.arch == "qwen3":
            for part in ("q", "k"):
                found[f"blk.{i}.attn_{part}_norm.weight"] = 1 + matrix(1, head_dim)[0]
    if spec.own_head:
        found["output.weight"] = matrix(vocab, spec.width)
    return found | spec.tensors
