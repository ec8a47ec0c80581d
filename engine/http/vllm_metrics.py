"""Some of the metrics under vLLM's names, for routers and boards that know those. Off unless asked for.

The names are those of vLLM's `/metrics` (docs.vllm.ai, usage/metrics), with its `model_name` label. Here
`kv_cache_usage_perc` is what running requests hold of all the KV that memory allows (idle conversations count as free,
as vLLM's cached blocks do), and tokens count when their request has been answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from engine.api import EnginePort
from engine.http.engine_metrics import histogram
from engine.protocol import Health
from engine.request import Done, FinishReason

MODEL = "model_name"


class VllmAliases:
    """Registers itself in `registry`; the two bucket lists are upper bounds in seconds."""

    def __init__(
        self,
        engine: EnginePort,
        registry: CollectorRegistry,
        ttft_buckets: Sequence[float],
        duration_buckets: Sequence[float],
    ) -> None:
        self._engine = engine
        registry.register(self)
        labels = (MODEL,)
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens of served requests.", labels, registry=registry)
        self._generated = Counter("vllm:generation_tokens", "Tokens of served answers.", labels, registry=registry)
        self._success = Counter(
            "vllm:request_success",
            "Requests answered in full, by why their answer ended.",
            (MODEL, "finished_reason"),
            registry=registry,
        )
        self._ttft = Histogram(
            "vllm:time_to_first_token_seconds",
            "From the request's arrival to its first text.",
            labels,
            buckets=ttft_buckets,
            registry=registry,
        )
        self._duration = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From the request's arrival to the end of its answer.",
            labels,
            buckets=duration_buckets,
            registry=registry,
        )

    def finished(self, done: Done, reason: FinishReason, *, ttft_s: float | None, duration_s: float) -> None:
        model = _model(self._engine.health())
        self._prompt.labels(model).inc(done.prompt_tokens)
        self._generated.labels(model).inc(done.completion_tokens)
        self._success.labels(model, str(reason)).inc()
        self._duration.labels(model).observe(duration_s)
        if ttft_s is not None:
            self._ttft.labels(model).observe(ttft_s)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would otherwise read a snapshot while the application is being built."""
        return ()

    def collect(self) -> Iterable[Metric]:
        health = self._engine.health()
        meters = self._engine.meters()
        model = _model(health)
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in a slot.", float(health.parallel.running)),
            ("vllm:num_requests_waiting", "Requests in the queue.", float(health.parallel.waiting)),
            ("vllm:kv_cache_usage_perc", "KV in use, 1 is all that memory allows.", kv_usage(health)),
        ):
            gauge = GaugeMetricFamily(name, text, labels=[MODEL])
            gauge.add_metric([model], value)
            yield gauge
        for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
            yield histogram(name, "From one token of a choice to its next.", {(model,): meters.gaps}, MODEL)
        text = "From a request's arrival to its slot."
        yield histogram("vllm:request_queue_time_seconds", text, {(model,): meters.queue}, MODEL)


def kv_usage(health: Health) -> float:
    """What running requests hold of the KV that could be held, 0 to 1."""
    pool, memory = health.kv_pool, health.memory
    waker = min(pool.reserved_bytes, pool.committed_bytes + max(0, memory.available - memory.floor))
    used = sum(lane.committed_bytes for lane in health.lanes if lane.request is not None)
    return min(1.0, used / waker) if waker else 0.0


def _model(health: Health) -> str:
    return "" if health.model is None else health.model.name
