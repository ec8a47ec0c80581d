"""What the engine shows of itself as Prometheus metrics: its newest snapshot and its meters, read once a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.api import EnginePort, HistogramView, MetersView
from engine.process.process_state import ProcessState
from engine.protocol import Health, RoleState, Status, WaitState


class EngineCollector:
    """Reads the snapshot and the meters at each scrape; never waits for the engine."""

    def __init__(self, engine: EnginePort, process: ProcessState) -> None:
        self._engine = engine
        self._process = process

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would otherwise read a snapshot while the application is being built."""
        return ()

    def collect(self) -> Iterable[Metric]:
        health = self._process.added_to(self._engine.health())
        yield from _state(health)
        yield from _requests(health)
        yield from _pace(self._engine.meters())
        yield from _memory(health)
        yield from _caches_and_roles(health)
        yield from _ledger(health)
        dropped = health.log.dropped
        yield CounterMetricFamily("tandem_log_dropped_lines", "Log lines that stderr did not take.", value=dropped)


def histogram(name: str, text: str, views: Mapping[tuple[str, ...], HistogramView], *labels: str) -> Metric:
    """A histogram with one series for each of the label values."""
    family = HistogramMetricFamily(name, text, labels=list(labels))
    for values, view in views.items():
        below, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*view.bounds, float("inf")), view.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(below)))
        family.add_metric(list(values), buckets, view.total)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _state(health: Health) -> Iterable[Metric]:
    build = GaugeMetricFamily("tandem_build_info", "1; what runs.", labels=["version", "model", "device"])
    model = health.model
    build.add_metric([health.version, model.name if model else "", model.device if model else ""], 1)
    yield build
    states = {str(status): float(status is health.status) for status in Status}
    yield _gauges("tandem_status", "1 for the engine's present status, 0 for the others.", "status", states)
    yield _gauge("tandem_uptime_seconds", "Time since the engine started.", health.uptime_s)
    yield _gauge("tandem_snapshot_age_seconds", "Age of the snapshot that this scrape shows.", health.snapshot_age_s)
    if health.last_progress_age_s is not None:
        yield _gauge("tandem_last_progress_age_seconds", "Time since a row was computed.", health.last_progress_age_s)
    defect = float(health.defect is not None)
    yield _gauge("tandem_books_defect", "1 where a count of the engine disagreed when it last fell idle.", defect)


def _requests(health: Health) -> Iterable[Metric]:
    parallel, totals = health.parallel, health.parallel.totals
    yield _gauge("tandem_slots", "Slots that can serve.", parallel.slots)
    yield _gauge("tandem_requests_running", "Requests in a slot.", parallel.running)
    yield _gauge("tandem_requests_decoding", "Requests writing now.", parallel.decoding)
    yield _gauge("tandem_requests_waiting", "Requests in the queue.", parallel.waiting)
    waits = dict.fromkeys(map(str, WaitState), 0.0)
    for queued in health.queue:
        waits[str(queued.state)] += 1
    yield _gauges("tandem_queue_requests", "Requests in the queue by what they wait for.", "state", waits)
    oldest = max((queued.since_s for queued in health.queue), default=0.0)
    yield _gauge("tandem_queue_oldest_seconds", "The longest present wait for one thing in the queue.", oldest)
    ended = {
        "served": totals.served,
        "refused": totals.refused,
        "error": totals.errors,
        "timeout": totals.timeouts,
        "abandoned": totals.abandoned,
        "cancelled": totals.cancelled,
    }
    yield _counters("tandem_requests", "Requests by how they ended.", "outcome", ended)
    rounds = {slots: float(count) for slots, count in parallel.rounds.items()}
    yield _counters("tandem_rounds", "Joint rounds by the slots that shared them.", "slots", rounds)


def _pace(meters: MetersView) -> Iterable[Metric]:
    rounds: dict[tuple[str, ...], HistogramView] = {(str(rows),): view for rows, view in meters.rounds}
    yield histogram("tandem_round_seconds", "Joint rounds by the slots that shared them.", rounds, "slots")
    text = "From one token of a choice to its next."
    yield histogram("tandem_inter_token_seconds", text, {(): meters.gaps})
    yield histogram("tandem_queue_seconds", "From a request's arrival to its slot.", {(): meters.queue})


def _memory(health: Health) -> Iterable[Metric]:
    pool, memory = health.kv_pool, health.memory
    yield _gauge("tandem_kv_reserved_bytes", "Address space reserved for KV; no memory.", pool.reserved_bytes)
    by_slot = {str(slot): float(size) for slot, size in enumerate(pool.by_slot)}
    yield _gauges("tandem_kv_committed_bytes", "Committed KV pages by slot.", "slot", by_slot)
    yield CounterMetricFamily("tandem_kv_commits_refused", "Commits that the hard floor refused.", value=pool.refused)
    yield _gauge("tandem_memory_total_bytes", "The memory that holds the KV.", memory.total)
    yield _gauge("tandem_memory_available_bytes", "What of it is available.", memory.available)
    yield _gauge("tandem_memory_floor_bytes", "What admission keeps free of it.", memory.floor)
    yield _gauge("tandem_memory_hard_floor_bytes", "What commits keep free of it.", memory.hard_floor)
    split = memory.split
    parts = {name: float(getattr(split, name)) for name in split.__struct_fields__}
    yield _gauges("tandem_memory_used_bytes", "What is not available, by who holds it.", "part", parts)
    ladder = memory.ladder
    held = {level.level: float(level.held_bytes) for level in ladder}
    yield _gauges("tandem_ladder_held_bytes", "What each rung of the pressure ladder could give back.", "level", held)
    asked = {level.level: float(level.reclaims) for level in ladder}
    yield _counters("tandem_ladder_reclaims", "How often each rung was asked to give back.", "level", asked)
    freed = {level.level: float(level.freed_bytes) for level in ladder}
    yield _counters("tandem_ladder_freed_bytes", "What each rung gave back.", "level", freed)


def _caches_and_roles(health: Health) -> Iterable[Metric]:
    caches = health.cache
    held = {level: float(cache.held_bytes) for level, cache in caches.items()}
    yield _gauges("tandem_cache_held_bytes", "Bytes held by cache level.", "level", held)
    hits = {level: float(cache.hits) for level, cache in caches.items()}
    yield _counters("tandem_cache_hits", "Restores by cache level.", "level", hits)
    restored = {level: float(cache.restored_tokens) for level, cache in caches.items()}
    yield _counters("tandem_cache_restored_tokens", "Tokens restored by cache level.", "level", restored)
    states = GaugeMetricFamily("tandem_role_state", "1 for a role's present state.", labels=["role", "state"])
    for role in health.roles:
        for state in RoleState:
            states.add_metric([role.name, str(state)], float(state is role.state))
    yield states


def _ledger(health: Health) -> Iterable[Metric]:
    ledger = health.ledger
    yield CounterMetricFamily("tandem_ledger_rows", "Requests written to the ledger.", value=ledger.written)
    yield CounterMetricFamily("tandem_ledger_dropped_rows", "Requests that the ledger misses.", value=ledger.dropped)
    failing = float(ledger.defect is not None)
    yield _gauge("tandem_ledger_failing", "1 while the ledger cannot be written.", failing)
