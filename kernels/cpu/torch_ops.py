"""The torch backend: the same forward without a compiler, every operation invariant by row."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.torch_products import Product, Products

# isort: split
import torch

from kernels.dequantise import dequantise
from kernels.kv_view import kv_rows
from kernels.program import Heads, Linear, Norm, Rotary, RowBatch, WeightFormats, vector
from kernels.quant_types import QuantType, RawTensor

Values = dict[int, torch.Tensor]
Step = Callable[[RowBatch, NDArray[np.uint64], Values], torch.Tensor]


class TorchRecorder:
    """Implements `kernels.cpu.backend.Recorder`. Values are indices into a batch's results."""

    def __init__(self, threads: int, max_rows: int) -> None:
        torch.set_num_threads(threads)
        self._max_rows = max_rows
        self._steps: list[Step] = []
        self._tensors: dict[str, tuple[RawTensor, str, int]] = {}
        self._products: dict[str, Product] = {}
        self._maker = Products()
        self._angles: dict[Rotary, Callable[[int], NDArray[np.float32]]] = {}

    def embed(self, table: RawTensor) -> int:
        self._hold(table, "rows unpacked as needed", table.nbytes)
        data = np.array(table.data)
        name, quant_type, width = table.name, table.quant_type, table.shape[1]

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            wanted = RawTensor(name, quant_type, (rows.n, width), data[rows.token])
            return torch.from_numpy(dequantise(wanted).copy())

        return self._add(step)

    def project(self, x: int, norm: Norm, parts: Sequence[Linear]) -> int:
        normed, linears = self._norm(norm), [self._linear(p) for p in parts]

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            n = normed(v[x])
            return torch.cat([linear(n) for linear in linears], dim=1)

        return self._add(step)

    def rotate_store(
        self, qkv: int, heads: Heads, rotary: Rotary, layer: int, *, q_norm: Norm | None, k_norm: Norm | None
    ) -> int:
        q_normed = self._norm(q_norm) if q_norm else None
        k_normed = self._norm(k_norm) if k_norm else None
        angles = self._angles.setdefault(rotary, functools.lru_cache(8192)(functools.partial(_angles, rotary)))

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            parts = v[qkv].view(rows.n, heads.heads + 2 * heads.kv_heads, heads.head_dim)
            q, k = parts[:, : heads.heads], parts[:, heads.heads : heads.heads + heads.kv_heads]
            turn = torch.from_numpy(np.stack([angles(int(p)) for p in rows.position]))
            q = _rotate(q_normed(q) if q_normed else q, turn, rotary)
            key = _rotate(k_normed(k) if k_normed else k, turn, rotary).to(torch.float16).numpy()
            val = parts[:, heads.heads + heads.kv_heads :].to(torch.float16).numpy()
            for slot in np.unique(rows.slot):
                mine = rows.slot == slot
                at = rows.kv_row[mine]
                last = int(at.max()) + 1
                kv_rows(int(kv[slot, 2 * layer]), last, heads)[at] = key[mine]
                kv_rows(int(kv[slot, 2 * layer + 1]), last, heads)[at] = val[mine]
            scaled: torch.Tensor = q * heads.head_dim**-0.5
            return scaled

        return self._add(step)

    def attend(self, q: int, heads: Heads, layer: int) -> int:
        group = heads.heads // heads.kv_heads

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            out = torch.empty(rows.n, heads.q_width)
            queries = v[q].view(rows.n, heads.kv_heads, group, heads.head_dim)
            held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
            for r in range(rows.n):
                slot, count = int(rows.slot[r]), int(rows.position[r]) + 1
                path = rows.ancestors[rows.ancestor_start[r] : rows.ancestor_start[r + 1]]
                bases = int(kv[slot, 2 * layer]), int(kv[slot, 2 * layer + 1])
                if path[0] == rows.prefix[r] and path[-1] == count - 1:
                    if slot not in held:
                        last = int(rows.position[rows.slot == slot].max()) + 1
                        held[slot] = _floats(bases[0], last, heads), _floats(bases[1], last, heads)
                    k, val = (x[:count] for x in held[slot])
                else:
                    places = torch.from_numpy(np.concatenate([np.arange(rows.prefix[r]), path]).astype(np.int64))
                    last = int(places.max()) + 1
                    k, val = (_floats(base, last, heads)[places] for base in bases)
                scores = torch.bmm(queries[r].clone(), k.permute(1, 2, 0))
                weights = torch.softmax(scores, dim=-1)
                out[r] = torch.bmm(weights, val.permute(1, 0, 2)).reshape(-1)
            return out

        return self._add(step)

    def add_linear(self, residual: int, x: int, linear: Linear) -> int:
        multiply = self._linear(linear)
        return self._add(lambda rows, kv, v: v[residual] + multiply(v[x]))

    def project_gated(self, x: int, norm: Norm, gate: Linear, up: Linear) -> int:
        normed, gated, upper = self._norm(norm), self._linear(gate), self._linear(up)

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            n = normed(v[x])
            return torch.nn.functional.silu(gated(n)) * upper(n)

        return self._add(step)

    def head(self, x: int, norm: Norm, linear: Linear) -> None:
        normed, multiply = self._norm(norm), self._linear(linear)
        outputs = linear.weight.shape[0]

        def step(rows: RowBatch, kv: NDArray[np.uint64], v: Values) -> torch.Tensor:
            if not len(rows.logit_rows):
                return torch.empty(0, outputs)
            return multiply(normed(v[x][torch.from_numpy(rows.logit_rows).long()]))

        self._add(step)

    def finish(self) -> TorchProgram:
        return TorchProgram(self._steps, list(self._tensors.values()), self._max_rows)

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def _hold(self, tensor: RawTensor, runs_as: str, size: int) -> None:
        self._tensors[tensor.name] = (tensor, runs_as, size)

    def _norm(self, norm: Norm) -> Callable[[torch.Tensor], torch.Tensor]:
        weight = torch.from_numpy(vector(norm.weight).copy())
        self._hold(norm.weight, "float32", weight.numel() * 4)

        def normed(x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * weight

        return normed

    def _linear(self, linear: Linear) -> Callable[[torch.Tensor], torch.Tensor]:
        name = linear.weight.name
        if name not in self._products:
            self._products[name] = self._maker.make(linear.weight)
            self._hold(linear.weight, self._products[name].runs_as, self._products[name].bytes)
        multiply = self._products[name]
        if linear.bias is None:
            return multiply
        bias = torch.from_numpy(vector(linear.bias).copy())
        self._hold(linear.bias, "float32", bias.numel() * 4)
        return lambda x: multiply(x) + bias


class TorchProgram:
    """Implements `kernels.program.Program`."""

    def __init__(self, steps: list[Step], tensors: list[tuple[RawTensor, str, int]], max_rows: int) -> None:
        self.name = f"torch {torch.backends.cpu.get_cpu_capability().lower()}"
        self._steps = steps
        self._max_rows = max_rows
        self._bytes = sum(size for _, _, size in tensors)
        uses: Counter[tuple[QuantType, str]] = Counter((t.quant_type, runs_as) for t, runs_as, _ in tensors)
        self._forms = {(str(held), runs_as): n for (held, runs_as), n in sorted(uses.items())}
        self._peak = 0

    def run(self, rows: RowBatch, kv_base: NDArray[np.uint64]) -> NDArray[np.float32]:
        if rows.n > self._max_rows:
            raise ValueError(f"a batch of {rows.n} rows; at most {self._max_rows} (max_rows) are possible")
        values: Values = {}
        with torch.inference_mode():
            for i, step in enumerate(self._steps):
                values[i] = step(rows, kv_base, values)
        self._peak = max(self._peak, sum(t.numel() * t.element_size() for t in values.values()))
        logits: NDArray[np.float32] = values[len(self._steps) - 1].numpy()
        return logits

    def forms(self) -> WeightFormats:
        return self._forms

    def weight_bytes(self) -> int:
        return self._bytes

    def workspace_bytes(self) -> int:
        """The most that the values of one batch have taken so far; they are freed after each batch."""
        return self._peak


def _angles(rotary: Rotary, position: int) -> NDArray[np.float32]:
    """Cosines and sines of one position, shape (2, pairs): computed by position alone, so that no batch
    neighbour chooses between a vector body and its tail."""
    theta = position * np.array(rotary.frequencies)
    return (np.stack([np.cos(theta), np.sin(theta)]) * rotary.magnitude).astype(np.float32)


def _rotate(x: torch.Tensor, turn: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """x (rows, heads, head_dim) turned by `turn` (rows, 2, pairs)."""
    pairs = turn.shape[-1]
    cos, sin = turn[:, None, 0], turn[:, None, 1]
    first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    if rotary.interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    out = x.clone()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def _floats(base: int, rows: int, heads: Heads) -> torch.Tensor:
    return torch.from_numpy(kv_rows(base, rows, heads)).float()
