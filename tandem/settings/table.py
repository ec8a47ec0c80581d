"""Every setting: its name, kind, unit, default and meaning, in one table that is also the typed result.

A field `side_max_len` is the variable `TANDEM_SIDE_MAX_LEN` and, where it has a flag, `--side-max-len`. The help of the
commands, `docs/settings.md` and `ops/serve.env` are generated from here. `tandem.settings.origins` fills the table in.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.settings.kinds import AnyPath, Device, Gib, Hosts, Kind, OneOf, Origins, Real, Switch, Whole, Words

PREFIX = "TANDEM_"
ALIAS_PREFIXES = ("QSE_", "QWEN38_")
# At most a year, so that adding it to a clock cannot overflow.
SECONDS = Real(0, 365 * 86_400)
PATIENCE = Real(1, 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table. `default_text` says the default where it depends on the box. `later` marks a setting that
    is checked and kept but that nothing acts on yet, `secret` one whose value is never shown."""

    name: str = ""
    group: str
    kind: Kind
    default: object
    help: str
    unit: str = ""
    default_text: str
    has_flag: bool = False
    later: bool = False
    older_names: tuple[str, ...] = ()
    secret: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that set it, the strongest first."""
        older = (self.name.upper(), *self.older_names)
        return (self.variable, *(prefix + name for prefix in ALIAS_PREFIXES for name in older))


def _row(
    group: str,
    kind: Kind,
    default: Any,
    help_text: str,
    *,
    unit: str = "",
    default_text: str | None = None,
    flag: bool = False,
    later: bool = False,
    older_names: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    row = Setting(
        group=group,
        kind=kind,
        default=default,
        help=help_text,
        unit=unit,
        default_text=_default_text(default) if default_text is None else default_text,
        has_flag=flag,
        later=later,
        older_names=older_names,
        secret=secret,
    )
    return field(default=default, metadata={"row": row}, repr=not secret)


def _default_text(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


MODEL, SLOTS, MEMORY, TURNS, QUEUE, SMALL, SERVICE = (
    "Model",
    "Slots",
    "Memory",
    "Rounds and prompts",
    "Queue and time limits",
    "Small models",
    "Service",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values in force. Sizes are bytes whatever the variable's unit, times seconds, lengths tokens; None is "by the
    box" or "none"."""

    model: str = _row(
        MODEL, Words(metavar="NAME|PATH"), "smollm2-135m", "The model: a known name or a GGUF file.", flag=True
    )
    device: str = _row(MODEL, Device(), "auto", "Where the model runs.", flag=True)
    threads: int | None = _row(
        MODEL,
        Whole(1, 1024),
        None,
        "CPU threads of the engine.",
        default_text="the cores this process may use",
        unit="threads",
        flag=True,
    )

    cpu_backend: str = _row(
        MODEL,
        OneOf(("auto", "native", "torch")),
        "auto",
        "How the CPU computes: kernels compiled on this box, torch, or auto: compiled where a compiler is present.",
    )

    parallel: int = _row(
        SLOTS,
        Whole(1, 1024),
        1,
        "How many requests run at once. Slots that the box cannot hold are left out, and the engine says why.",
        unit="slots",
        flag=True,
    )
    max_len: int | None = _row(
        SLOTS,
        Whole(16),
        None,
        "Slot 0's window: prompt and answer together.",
        default_text="the model's own window, as far as the box holds it",
        unit="tokens",
        flag=True,
    )
    side_max_len: int | None = _row(
        SLOTS,
        Whole(16),
        None,
        "The window of every other slot.",
        default_text="min(65536, max_len)",
        unit="tokens",
        flag=True,
    )
    side_slot0_wait_s: float = _row(
        SLOTS, SECONDS, 3.0, "How long the next turn of slot 0's conversation waits for slot 0.", unit="s"
    )
    side_home_wait_s: float = _row(
        SLOTS, SECONDS, 3.0, "How long the next turn of a side slot's conversation waits for that slot.", unit="s"
    )
    side_min_room: int | None = _row(
        SLOTS,
        Whole(1),
        None,
        "The least room for an answer with which a prompt may take a side slot.",
        default_text="min(16384, a quarter of the side window)",
        unit="tokens",
    )
    side_guests: bool = _row(
        SLOTS, Switch(), True, "A short unrelated request takes a side slot while slot 0 is kept.", later=True
    )
    side_continue: str = _row(
        SLOTS,
        OneOf(("client", "resident")),
        "client",
        "What a continuation is judged on: the client's own tokens or the rows in the slot.",
        later=True,
    )
    side_conv: bool = _row(
        SLOTS, Switch(), True, "A continuation must reach past the end of the first user message.", later=True
    )
    side_carry: bool = _row(
        SLOTS, Switch(), True, "A conversation that outgrows its side slot is copied into slot 0.", later=True
    )
    side_new_first: bool = _row(
        SLOTS, Switch(), True, "A new conversation beside a long one takes an idle side slot first.", later=True
    )
    side_disk: bool = _row(SLOTS, Switch(), True, "Side slots read the disk tier.", later=True)
    side_graphs: bool = _row(SLOTS, Switch(), True, "Side slots have their own captured graphs.", later=True)
    resident_guest_max: int = _row(
        SLOTS, Whole(0), 2048, "The longest prompt that counts as a guest.", unit="tokens", later=True
    )

    parallel_floor_gb: int | None = _row(
        MEMORY,
        Gib(),
        None,
        "Memory that admission leaves free while requests run side by side.",
        default_text="min(15, 10 % of the memory)",
        unit="GiB",
        flag=True,
    )
    kv_hard_floor_gb: int | None = _row(
        MEMORY,
        Gib(),
        None,
        "Memory below which no further KV page is committed.",
        default_text="two thirds of the floor",
        unit="GiB",
    )
    kv_pool: bool = _row(
        MEMORY,
        Switch(),
        True,
        "Commit KV pages as rows are written; off commits every slot's whole window at load.",
        flag=True,
    )
    kv_margin_rows: int = _row(MEMORY, Whole(0), 256, "Rows committed ahead of those being written.", unit="rows")
    side_slot_const_gb: int | None = _row(
        MEMORY, Gib(), None, "What a side slot costs beside its KV.", default_text="measured", unit="GiB", later=True
    )
    side_resident_gb: int | None = _row(
        MEMORY, Gib(), None, "Anchors that a side slot may hold.", default_text="by the box", unit="GiB", later=True
    )
    side_stash_gb: int | None = _row(
        MEMORY,
        Gib(),
        None,
        "Stash that a side slot may hold for a guest.",
        default_text="by the box",
        unit="GiB",
        later=True,
    )

    prefill_chunk: int | None = _row(
        TURNS,
        Whole(1),
        None,
        "Prompt tokens read between two rounds.",
        default_text="by the backend",
        unit="tokens",
        flag=True,
    )
    decode_share: float | None = _row(
        TURNS,
        Real(0, 0.95),
        None,
        "The share of time that running answers keep while a prompt is read.",
        default_text="0.5, on a GPU 0.35",
        flag=True,
    )

    queue_limit: int = _row(
        QUEUE, Whole(0), 8, "Requests that may wait; one more is refused with 503.", unit="requests", flag=True
    )
    queue_timeout: float = _row(
        QUEUE, SECONDS, 240.0, "How long a request waits for a slot before it is refused with 429.", unit="s", flag=True
    )
    request_timeout: float = _row(
        QUEUE,
        SECONDS,
        3600.0,
        "How long a request may take in all, waiting included; 0 sets no limit.",
        unit="s",
        flag=True,
    )

    residency_file: Path | None = _row(
        SMALL,
        AnyPath(),
        None,
        "The plan of the small models beside the engine.",
        default_text="residency.toml in the configuration folder, else the one that ships",
    )
    role_reload_margin_gb: int = _row(
        SMALL,
        Gib(),
        4 << 30,
        "Memory that must stay free above the floor once a role is loaded.",
        default_text="4",
        unit="GiB",
    )
    role_reload_s: float = _row(SMALL, SECONDS, 60.0, "How long that headroom must last.", unit="s", later=True)
    role_thrash_s: float = _row(
        SMALL, SECONDS, 600.0, "A role unloaded again within this time waits twice as long.", unit="s", later=True
    )
    role_max_hold_s: float | None = _row(
        SMALL, SECONDS, None, "The longest such wait.", default_text="none", unit="s", later=True
    )
    role_unload_deciders: bool = _row(
        SMALL,
        Switch(),
        False,
        "Deciders may be unloaded under memory pressure too.",
        later=True,
        older_names=("ROLE_UNLOAD_LAYA",),
    )

    host: str = _row(SERVICE, Words(metavar="HOST"), "127.0.0.1", "The address to listen on.", flag=True)
    port: int = _row(SERVICE, Whole(0, 65535), 8000, "The port to listen on; 0 takes a free one.", flag=True)
    state_dir: Path | None = _row(
        SERVICE,
        AnyPath(metavar="FOLDER"),
        None,
        "Where the engine keeps its lock, its log and its journals.",
        default_text="the user's state folder",
        flag=True,
    )
    drain_timeout: float = _row(
        SERVICE, SECONDS, 30.0, "How long running requests may still take once the engine is told to stop.", unit="s"
    )
    connections: int | None = _row(
        SERVICE,
        Whole(1, 65_536),
        None,
        "Connections open at once; beyond them those make way that wait for their clients.",
        default_text="4096, less where the limit of file descriptors is lower: 256 of those stay free",
    )
    connections_per_address: int | None = _row(
        SERVICE,
        Whole(1, 65_536),
        None,
        "How many of them one address of another machine may have.",
        default_text="a quarter of them",
    )
    head_timeout: float = _row(
        SERVICE, PATIENCE, 20.0, "How long a request's line and headers may take before it is refused.", unit="s"
    )
    stall_timeout: float = _row(
        SERVICE,
        PATIENCE,
        30.0,
        "How long a body may take to come, or an answer to be read, beside a second for each 16 KiB that moved.",
        unit="s",
    )
    allowed_hosts: tuple[str, ...] = _row(
        SERVICE, Hosts(), (), "Names that a Host header may carry beside the loopback ones.", default_text="none"
    )
    allowed_origins: tuple[str, ...] = _row(
        SERVICE, Origins(), (), "Web origins whose pages may call the engine; * is any.", default_text="none"
    )
    secrets_file: Path | None = _row(
        SERVICE,
        AnyPath(),
        None,
        "The API keys and tokens that `tandem secrets` makes, as digests.",
        default_text="secrets.json in the configuration folder",
    )
    metrics_token: str | None = _row(
        SERVICE,
        Words(),
        None,
        "Opens /metrics, /slots and the body of /health over TCP; `tandem secrets rotate metrics` keeps it safer.",
        default_text="none",
        secret=True,
    )
    admin_token: str | None = _row(
        SERVICE,
        Words(),
        None,
        "Opens what the metrics token does, and the engine's controls; `tandem secrets rotate admin` keeps it safer.",
        default_text="none",
        secret=True,
    )
    ledger_days: int = _row(
        SERVICE,
        Whole(0, 36500),
        30,
        "How long the ledger keeps a request's counts and times; 0 keeps no ledger.",
        unit="days",
    )
    ledger_rows: int = _row(SERVICE, Whole(1), 1_000_000, "How many requests the ledger keeps at most.", unit="rows")
    metrics_aliases: str = _row(
        SERVICE,
        OneOf(("off", "vllm")),
        "off",
        "Show some metrics under vLLM's names too, for routers that know those.",
    )
    log_format: str = _row(
        SERVICE,
        OneOf(("auto", "text", "json")),
        "auto",
        "How log lines look; auto is text on a terminal, JSON lines otherwise.",
    )
    visible_status: str = _row(
        SERVICE,
        OneOf(("off", "reasoning")),
        "off",
        "Show waits as reasoning text to clients that hide a stream's comments.",
    )


TABLE: tuple[Setting, ...] = tuple(
    dataclasses.replace(row.metadata["row"], name=row.name) for row in dataclasses.fields(Settings)
)
"""Every setting, in the order of the documentation."""

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in TABLE}
BY_VARIABLE: dict[str, Setting] = {name: setting for setting in TABLE for name in setting.names}
