"""`GET /metrics`: Prometheus text from the newest snapshot and from the requests that HTTP saw end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.protocol import Health, Status
from engine.request import Done

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_TTFT_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_DURATION_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """One application's metrics, in a registry of its own. Base units throughout: seconds, bytes, tokens."""

    def __init__(self, health: Callable[[], Health]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(health))
        self._responses = Counter(
            "tandem_http_responses", "HTTP responses by route and status.", ("route", "status"), registry=self._registry
        )
        self._prompt = Counter("tandem_prompt_tokens", "Prompt tokens of served requests.", registry=self._registry)
        self._cached = Counter(
            "tandem_cached_tokens", "Prompt tokens that were not read again.", registry=self._registry
        )
        self._generated = Counter("tandem_generated_tokens", "Tokens of served answers.", registry=self._registry)
        self._ttft = Histogram(
            "tandem_time_to_first_token_seconds",
            "From the request's arrival to its first text.",
            buckets=_TTFT_BUCKETS,
            registry=self._registry,
        )
        self._duration = Histogram(
            "tandem_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            buckets=_DURATION_BUCKETS,
            registry=self._registry,
        )

    def responded(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def finished(self, done: Done, *, ttft_s: float | None, duration_s: float) -> None:
        """A request was answered in full."""
        self._prompt.inc(done.prompt_tokens)
        self._cached.inc(done.cached_tokens)
        self._generated.inc(done.completion_tokens)
        self._duration.observe(duration_s)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)

    def text(self) -> bytes:
        return bytes(generate_latest(self._registry))


class _SnapshotCollector:
    """Reads the snapshot once a scrape; never waits for the engine."""

    def __init__(self, health: Callable[[], Health]) -> None:
        self._health = health

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would otherwise read a snapshot while the application is being built."""
        return ()

    def collect(self) -> Iterable[Metric]:
        health = self._health()
        yield from _engine_metrics(health)
        yield from _memory_metrics(health)
        yield from _cache_metrics(health)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _engine_metrics(health: Health) -> Iterable[Metric]:
    parallel, totals = health.parallel, health.parallel.totals
    state = GaugeMetricFamily(
        "tandem_status", "1 for the engine's present status, 0 for the others.", labels=["status"]
    )
    for status in Status:
        state.add_metric([status], float(status is health.status))
    yield state
    yield _gauge("tandem_uptime_seconds", "Seconds since the engine started.", health.uptime_s)
    yield _gauge("tandem_snapshot_age_seconds", "Age of the snapshot that this scrape shows.", health.snapshot_age_s)
    yield _gauge("tandem_slots", "Slots that can serve.", parallel.slots)
    yield _gauge("tandem_requests_running", "Requests in a slot.", parallel.running)
    yield _gauge("tandem_requests_decoding", "Requests writing now.", parallel.decoding)
    yield _gauge("tandem_requests_waiting", "Requests in the queue.", parallel.waiting)
    ended = CounterMetricFamily("tandem_requests", "Requests by how they ended.", labels=["outcome"])
    for outcome, count in (
        ("served", totals.served),
        ("refused", totals.refused),
        ("error", totals.errors),
        ("timeout", totals.timeouts),
        ("abandoned", totals.abandoned),
    ):
        ended.add_metric([outcome], count)
    yield ended
    rounds = CounterMetricFamily("tandem_rounds", "Joint rounds by the slots that shared them.", labels=["slots"])
    for slots, count in parallel.rounds.items():
        rounds.add_metric([slots], count)
    yield rounds


def _memory_metrics(health: Health) -> Iterable[Metric]:
    pool, memory = health.kv_pool, health.memory
    yield _gauge("tandem_kv_reserved_bytes", "Address space reserved for KV; no memory.", pool.reserved_bytes)
    committed = GaugeMetricFamily("tandem_kv_committed_bytes", "Committed KV pages by slot.", labels=["slot"])
    for slot, size in enumerate(pool.by_slot):
        committed.add_metric([str(slot)], size)
    yield committed
    yield CounterMetricFamily("tandem_kv_commits_refused", "Commits that the hard floor refused.", value=pool.refused)
    yield _gauge("tandem_memory_total_bytes", "The memory that holds the KV.", memory.total)
    yield _gauge("tandem_memory_available_bytes", "What of it is available.", memory.available)
    yield _gauge("tandem_memory_floor_bytes", "What admission keeps free of it.", memory.floor)


def _cache_metrics(health: Health) -> Iterable[Metric]:
    held = GaugeMetricFamily("tandem_cache_held_bytes", "Bytes held by cache level.", labels=["level"])
    hits = CounterMetricFamily("tandem_cache_hits", "Restores by cache level.", labels=["level"])
    for level, cache in health.cache.items():
        held.add_metric([level], cache.held_bytes)
        hits.add_metric([level], cache.hits)
    yield held
    yield hits
