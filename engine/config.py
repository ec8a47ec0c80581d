"""The configuration of an engine and of the service around it: frozen, "auto" resolved or left to the box by None."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.memory.sizes import GIB, MIB

CLOSING_S = 15.0
"""What ending may take beside the drain, for whoever waits for it before killing."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is started with. Sizes in bytes, times in seconds, lengths in tokens.

    None means "by the box": `max_len` the model's own window as far as the box holds it, `side_max_len` min(65,536,
    max_len), `decode_share` 0.5 and on a GPU 0.35, `floor_bytes` min(15 GiB, 10 % of total), `hard_floor_bytes`
    two thirds of the floor, `side_min_room` min(16,384, a quarter of the side window), `threads` the cores this
    process may use. `cpu_backend` is `auto`, `native` or `torch` (`kernels.cpu.backend`). A `request_timeout_s` of
    infinity is no limit. The ledger of requests lies in `state_dir`, for `ledger_days` and `ledger_rows` at most; 0
    days, or no directory, is no ledger.
    """

    model: Path
    model_name: str
    parallel: int = 1
    max_len: int | None = None
    side_max_len: int | None = None
    floor_bytes: int | None = None
    hard_floor_bytes: int | None = None
    kv_pool: bool = True
    kv_margin_rows: int = 256
    prefill_chunk: int | None = None
    decode_share: float | None = None
    queue_limit: int = 8
    queue_timeout_s: float = 240.0
    request_timeout_s: float = 3600.0
    side_slot0_wait_s: float = 3.0
    side_home_wait_s: float = 3.0
    side_min_room: int | None = None
    device: str = "auto"
    threads: int | None = None
    cpu_backend: str = "auto"
    state_dir: Path | None = None
    residency_file: Path | None = None
    role_margin_bytes: int = 4 * GIB
    ledger_days: float = 30.0
    ledger_rows: int = 1_000_000


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How an engine is offered over HTTP. Sizes in bytes, times in seconds.

    `secrets_file` holds the API keys; a host that other machines reach is served only with one. `allowed_hosts` adds
    names to those a `Host` header may carry (loopback names and literal addresses always may); `allowed_origins` adds
    web origins that a browser page may call from (`*` allows any). `metrics_token` and `admin_token` open what
    the engine tells about itself, `admin_token` also the actions under `/admin`: `http/guard.py`. `heartbeat_s` is the
    longest silence on an open stream, `headers_after_s` the longest wait for an admission before a stream's headers go
    out. `connections` caps those open at once (None: as the limit of file descriptors allows),
    `connections_per_address` those of one address of another machine (None: a quarter). `head_timeout_s` is for a
    request's line and headers, `stall_timeout_s` for a body that does not come or an answer that is not read.
    `visible_status` also says as reasoning text what a chat stream waits for, for clients that hide comments.
    `vllm_metrics` shows some metrics under vLLM's names too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    body_limit_bytes: int = 16 * MIB
    drain_timeout_s: float = 30.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    secrets_file: Path | None = None
    metrics_token: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    heartbeat_s: float = 3.0
    headers_after_s: float = 1.0
    connections: int | None = None
    connections_per_address: int | None = None
    head_timeout_s: float = 20.0
    stall_timeout_s: float = 30.0
    visible_status: bool = False
    vllm_metrics: bool = False
