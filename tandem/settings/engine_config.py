"""Turns settings into what the engine and its service are started with, and refuses what cannot be served."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import EngineConfig, ServiceConfig
from engine.process.keyring import SecretsUnusable, require_keys
from engine.process.listening import HostNotAllowed
from tandem.exits import CommandError, Exit
from tandem.settings.origins import Resolved
from tandem.settings.paths import config_dir, default_state_dir, shipped
from tandem.settings.table import Settings

if TYPE_CHECKING:
    from kernels.cpu.cores import Cores


def engine_config(settings: Settings, model: Path, model_name: str) -> EngineConfig:
    """What the engine is started with. A side window longer than slot 0's is cut to it."""
    side = settings.side_max_len
    if side is not None and settings.max_len is not None:
        side = min(side, settings.max_len)
    return EngineConfig(
        model=model,
        model_name=model_name,
        parallel=settings.parallel,
        max_len=settings.max_len,
        side_max_len=side,
        floor_bytes=settings.parallel_floor_gb,
        hard_floor_bytes=settings.kv_hard_floor_gb,
        kv_pool=settings.kv_pool,
        kv_margin_rows=settings.kv_margin_rows,
        prefill_chunk=settings.prefill_chunk,
        decode_share=settings.decode_share,
        queue_limit=settings.queue_limit,
        queue_timeout_s=settings.queue_timeout,
        request_timeout_s=settings.request_timeout or math.inf,
        side_slot0_wait_s=settings.side_slot0_wait_s,
        side_home_wait_s=settings.side_home_wait_s,
        side_min_room=settings.side_min_room,
        device=settings.device,
        threads=settings.threads,
        cpu_backend=settings.cpu_backend,
        state_dir=state_dir(settings),
        residency_file=residency_file(settings),
        role_margin_bytes=settings.role_reload_margin_gb,
        ledger_days=float(settings.ledger_days),
        ledger_rows=settings.ledger_rows,
    )


def service_config(settings: Settings) -> ServiceConfig:
    return ServiceConfig(
        host=settings.host,
        port=settings.port,
        drain_timeout_s=settings.drain_timeout,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
        secrets_file=secrets_file(settings),
        metrics_token=settings.metrics_token,
        admin_token=settings.admin_token,
        connections=settings.connections,
        connections_per_address=settings.connections_per_address,
        head_timeout_s=settings.head_timeout,
        stall_timeout_s=settings.stall_timeout,
        visible_status=settings.visible_status == "reasoning",
        vllm_metrics=settings.metrics_aliases == "vllm",
    )


def usable_cores() -> Cores:
    """The cores of this process and its quota."""
    from kernels.cpu.cores import read_cores

    return read_cores()


def crowded(settings: Settings) -> str | None:
    """Why the engine's threads would be in each other's way; None where each has a core."""
    cores = usable_cores()
    if settings.threads is None or settings.threads <= cores.usable:
        return None
    where = cores.reason or f"{cores.allowed} cores"
    return f"TANDEM_THREADS asks for {settings.threads} on {where}: slower than {cores.usable}"


def state_dir(settings: Settings) -> Path:
    return settings.state_dir.absolute() if settings.state_dir else default_state_dir()


def residency_file(settings: Settings) -> Path:
    """The plan that was named, else the user's own, else the one that ships."""
    if settings.residency_file is not None:
        return settings.residency_file
    own = config_dir() / "residency.toml"
    return own if own.exists() else shipped("residency.toml")


def secrets_file(settings: Settings) -> Path:
    return settings.secrets_file or config_dir() / "secrets.json"


def check_host(resolved: Resolved) -> None:
    """Refuse secrets that cannot be used, and to listen where other machines could reach an engine without API keys."""
    try:
        require_keys(resolved.settings.host, secrets_file(resolved.settings))
    except SecretsUnusable as why:
        raise CommandError(str(why), Exit.USAGE) from why
    except HostNotAllowed as why:
        raise CommandError(f"{why} (set by {resolved.origins['host']})", Exit.USAGE) from why
