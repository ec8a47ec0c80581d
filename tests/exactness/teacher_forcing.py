"""Is it the right model? Teacher-forces our runner and llama.cpp's server over the same tokens and compares.

    python -m tests.exactness.teacher_forcing --llama-server build/bin/llama-server [--model NAME|PATH] [--unpacked]
    python -m tests.exactness.teacher_forcing --recorded tests/exactness/data/qwen2_peer_unpacked.json \\
        --model qwen2.5-coder-1.5b [--unpacked]

At every position of the texts both say what comes next. Where the peer is sure (its two best tokens are more than
`GAP_NATS` apart) the best tokens must agree as often, and the mean losses must be as close, as `QUANTISED` or
`FLOAT32` says. Exits 1 where either fails. `--record` keeps the peer's side, for `--recorded` and for the tests that
need no peer.

Over quantised weights both round their activations to 8 bits, and one flipped rounding moves all that follow, so near
ties fall as chance has it: the peer agrees with itself no better when its batch changes. `--unpacked` has both take the
same weights as float32, where nothing is rounded and every position must agree: our side beside a record, and beside a
peer that is started here on a copy of the file (four bytes a weight, in the folder for temporary files). A record of
that also tells how far the rounding of the quantised weights' activations takes our side from the model.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import httpx
import numpy as np

from engine.config import EngineConfig
from engine.core.loading import ROWS, LoadedModel, load
from engine.execution.cpu_runner import CpuRunner
from engine.execution.rows import SlotRows, pack
from engine.execution.runner import Runner
from engine.memory.kv.pool import KvPool
from engine.models import catalog
from engine.models.gguf_config import llama_config
from engine.models.text.interfaces import Tokenizer
from engine.models.text.tokenizer import load_tokenizer
from engine.models.weights.gguf import open_gguf
from kernels.cpu.threads import available
from kernels.quant_types import QuantType, RawTensor

DATA = Path(__file__).parent / "data"
TEXTS = ("prose", "code")
TOKENS = 501
"""Tokens of each text; all but the first are predicted."""
GAP_NATS = 0.1
PROBABILITIES = 400
"""Candidates asked of the peer at each position; where the text's own token is not among them, all are asked for."""


@dataclass(frozen=True)
class Prediction:
    """What a model says at one position: its best token, how far ahead of the second that is in nats, and the
    log-probability of the token that the text goes on with."""

    best: int
    gap: float
    logprob: float


@dataclass(frozen=True)
class Bounds:
    """The least share of sure positions that must agree, and the most that the mean losses may differ by, of the
    peer's."""

    agreement: float
    loss_ratio: float


QUANTISED = Bounds(agreement=0.99, loss_ratio=0.01)
FLOAT32 = Bounds(agreement=0.999, loss_ratio=0.0005)


@dataclass(frozen=True)
class Agreement:
    """Two models over the same positions; `clear` are those where the peer's gap is over `GAP_NATS`."""

    positions: int
    clear: int
    agreeing: int
    loss: float
    peer_loss: float

    @property
    def rate(self) -> float:
        return self.agreeing / self.clear

    @property
    def loss_ratio(self) -> float:
        return self.loss / self.peer_loss - 1.0

    def within(self, bounds: Bounds) -> bool:
        return self.rate >= bounds.agreement and abs(self.loss_ratio) <= bounds.loss_ratio


def load_model(path: Path) -> LoadedModel:
    return load(EngineConfig(model=path, model_name=path.stem), lambda _: None)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A copy of the GGUF file at `ancestors` with every tensor as float32, until the block ends."""
    source = gguf.GGUFReader(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{path.stem}.float32.gguf"
        architecture = source.get_field("general.architecture")
        if architecture is None:
            raise ValueError(f"{path} names no general.architecture")
        writer = gguf.GGUFWriter(copy, str(architecture.contents()))
        for name, field in source.fields.items():
            if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
                writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
        for tensor in source.tensors:
            shape = tuple(int(n) for n in reversed(tensor.shape))
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * math.prod(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in source.tensors:
            writer.write_tensor_data(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        writer.close()
        yield copy


class Unpacked(Mapping[str, RawTensor]):
    """A file's tensors as float32, each made when it is taken: all at once may be more than a box holds twice."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> RawTensor:
        raw = self._tensors[name]
        values = gguf.quants.dequantize(raw.data, gguf.GGMLQuantizationType[raw.quant_type.name]).astype(np.float32)
        return RawTensor(name, QuantType.F32, raw.shape, values.view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def float32_runner(path: Path) -> Runner:
    """A runner over what `unpacked` writes, without the file."""
    file = open_gguf(path)
    config = llama_config(file.metadata, file.tensors)
    return CpuRunner(config, Unpacked(file.tensors), threads=available(), max_rows=ROWS)


def texts(tokenizer: Tokenizer) -> list[list[int]]:
    """The texts as tokens, `TOKENS` each."""
    found = [tokenizer.encode((DATA / f"{name}.txt").read_text())[:TOKENS] for name in TEXTS]
    if any(len(ids) < TOKENS for ids in found):
        raise ValueError(f"a text has fewer than {TOKENS} tokens: {[len(ids) for ids in found]}")
    return found


def predicted(runner: Runner, sequences: Sequence[Sequence[int]]) -> list[Prediction]:
    """Our predictions, reading each sequence in prompt chunks. A runner is attached once, so is used once."""
    longest = max(map(len, sequences))
    pool = KvPool(runner.layout, [longest])
    runner.attach(pool, 1)
    pool.commit(0, longest)
    found: list[Prediction] = []
    try:
        for ids in sequences:
            for start in range(0, len(ids) - 1, runner.max_rows):
                end = min(start + runner.max_rows, len(ids) - 1)
                share = SlotRows(0, start, ids[start:end], logits=range(end - start))
                logits = runner.forward(pack([share])).astype(np.float64)
                top = logits.max(axis=1, keepdims=True)
                logprobs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
                for row, following in zip(logprobs, ids[start + 1 : end + 1], strict=True):
                    second, first = np.partition(row, -2)[-2:]
                    found.append(Prediction(int(row.argmax()), float(first - second), float(row[following])))
    finally:
        pool.close()
    return found


def peers(url: str, sequences: Sequence[Sequence[int]], vocab: int) -> Iterator[Prediction]:
    """The peer's predictions: one token after every prefix, each prefix read from the peer's own cache."""
    with httpx.Client(base_url=url, timeout=120) as client:
        for ids in sequences:
            for i in range(1, len(ids)):
                found = _ask(client, ids[:i], ids[i], PROBABILITIES) or _ask(client, ids[:i], ids[i], vocab)
                if found is None:
                    raise RuntimeError(f"the peer gives no probability for token {ids[i]} after {i} tokens")
                yield found


def _ask(client: httpx.Client, prefix: Sequence[int], following: int, candidates: int) -> Prediction | None:
    body = {"prompt": list(prefix), "n_predict": 1, "n_probs": candidates, "cache_prompt": True, "temperature": 0.0}
    answer = client.post("/completion", json=body).raise_for_status().json()
    top = answer["completion_probabilities"][0]["top_logprobs"]
    known = {entry["id"]: entry["logprob"] for entry in top}
    if following not in known:
        return None
    return Prediction(top[0]["id"], top[0]["logprob"] - top[1]["logprob"], known[following])


def compare(mine: Sequence[Prediction], peer: Sequence[Prediction]) -> Agreement:
    """Raises ValueError where the two are not over the same number of positions."""
    pairs = list(zip(mine, peer, strict=True))
    clear = [(a, b) for a, b in pairs if b.gap > GAP_NATS]
    return Agreement(
        positions=len(pairs),
        clear=len(clear),
        agreeing=sum(a.best == b.best for a, b in clear),
        loss=-math.fsum(a.logprob for a, _ in pairs) / len(pairs),
        peer_loss=-math.fsum(b.logprob for _, b in pairs) / len(pairs),
    )


@contextmanager
def llama_server(binary: Path, model: Path) -> Iterator[str]:
    """Run the peer on a free loopback port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "2048", "-np", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url, server)
            yield url
        finally:
            server.terminate()


def _wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"the peer ended with {server.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the peer was not ready within 120 s")


def record(path: Path, predictions: Sequence[Prediction]) -> None:
    rows = [f"[{p.best}, {p.gap:.4f}, {p.logprob:.5f}]" for p in predictions]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def recorded(path: Path) -> list[Prediction]:
    """The predictions that `record` kept."""
    return [Prediction(best, gap, logprob) for best, gap, logprob in json.loads(path.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--llama-server", type=Path, help="a llama-server to start on loopback")
    where.add_argument("--url", help="a running llama-server with the same model")
    where.add_argument("--recorded", type=Path, help="the peer's predictions as --record kept them")
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL, help="a built-in model or a GGUF file")
    parser.add_argument("--record", type=Path, help="keep the peer's predictions in this file")
    parser.add_argument("--unpacked", action="store_true", help="both sides take the weights as float32")
    options = parser.parse_args()
    path = catalog.resolve(options.model)
    tokenizer = load_tokenizer(open_gguf(path).metadata)
    sequences = texts(tokenizer)
    theirs = _theirs(options, path, sequences, tokenizer.vocab_size)
    if options.record:
        record(options.record, theirs)
    runner = float32_runner(path) if options.unpacked else load_model(path).runner
    mine = predicted(runner, sequences)
    half = len(mine) // len(TEXTS)
    for i, name in enumerate(TEXTS):
        part = slice(i * half, (i + 1) * half)
        print(json.dumps({"text": name, **_shown(compare(mine[part], theirs[part]))}))
    total = compare(mine, theirs)
    passed = total.within(FLOAT32 if options.unpacked else QUANTISED)
    print(json.dumps({"text": "all", **_shown(total), "passed": passed}))
    return 0 if passed else 1


def _theirs(
    options: argparse.Namespace, path: Path, sequences: Sequence[Sequence[int]], vocab: int
) -> list[Prediction]:
    if options.recorded:
        return recorded(options.recorded)
    if options.url:
        return list(peers(options.url, sequences, vocab))
    with (
        unpacked(path) if options.unpacked else nullcontext(path) as file,
        llama_server(options.llama_server, file) as url,
    ):
        return list(peers(url, sequences, vocab))


def _shown(agreement: Agreement) -> dict[str, float]:
    return {**asdict(agreement), "agreement": round(agreement.rate, 5), "loss_ratio": round(agreement.loss_ratio, 5)}


if __name__ == "__main__":
    sys.exit(main())
