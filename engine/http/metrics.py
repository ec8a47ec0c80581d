"""`GET /metrics`: Prometheus text from the newest snapshot, the engine's meters, and the requests that HTTP saw end."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.api import EnginePort
from engine.http.connection_table import ConnectionTable
from engine.http.engine_metrics import EngineCollector
from engine.http.vllm_metrics import VllmAliases
from engine.process.process_state import ProcessState
from engine.request import Done, FinishReason

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

TTFT_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
DURATION_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)


class _ConnectionCollector:
    def __init__(self, table: ConnectionTable) -> None:
        self._table = table

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        opened = GaugeMetricFamily("tandem_connections", "Connections open now.")
        opened.add_metric((), self._table.open)
        yield opened
        ended = CounterMetricFamily(
            "tandem_connections_ended", "Connections that this side ended early, by why.", labels=("reason",)
        )
        for reason, count in self._table.closed.items():
            ended.add_metric((reason.value,), count)
        yield ended


class Metrics:
    """One application's metrics, in a registry of its own. Base units throughout: seconds, bytes, tokens. `aliases`
    shows some of them under vLLM's names too."""

    def __init__(
        self,
        engine: EnginePort,
        connections: ConnectionTable,
        process: ProcessState | None = None,
        *,
        aliases: bool = False,
    ) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(EngineCollector(engine, process or ProcessState()))
        registry.register(_ConnectionCollector(connections))
        ProcessCollector(registry=registry)
        self._aliases = VllmAliases(engine, registry, TTFT_BUCKETS, DURATION_BUCKETS) if aliases else None
        self._responses = Counter(
            "tandem_http_responses", "HTTP responses by route and status.", ("route", "status"), registry=registry
        )
        self._prompt = Counter("tandem_prompt_tokens", "Prompt tokens of served requests.", registry=registry)
        self._cached = Counter("tandem_cached_tokens", "Prompt tokens that were not read again.", registry=registry)
        self._generated = Counter("tandem_generated_tokens", "Tokens of served answers.", registry=registry)
        self._ttft = Histogram(
            "tandem_time_to_first_token_seconds",
            "From the request's arrival to its first text.",
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "tandem_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            buckets=DURATION_BUCKETS,
            registry=registry,
        )

    def responded(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def finished(self, done: Done, reason: FinishReason, *, ttft_s: float | None, duration_s: float) -> None:
        """A request was answered in full; `reason` is that of its last choice."""
        self._prompt.inc(done.prompt_tokens)
        self._cached.inc(done.cached_tokens)
        self._generated.inc(done.completion_tokens)
        self._duration.observe(duration_s)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)
        if self._aliases is not None:
            self._aliases.finished(done, reason, ttft_s=ttft_s, duration_s=duration_s)

    def text(self) -> bytes:
        return bytes(generate_latest(self._registry))
