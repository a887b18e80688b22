"""Prometheus metrics, in a registry of their own: what the HTTP side times, and what the engine
counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stolon.srt.client import EngineStats

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.6, 5.0)
_LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)


class _EngineCollector(Collector):
    """Translates the latest EngineStats; nothing is exported before the first."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        if stats is None:
            return
        needed = stats.kv_used - stats.kv_evictable
        used = needed / stats.kv_slots if stats.kv_slots else 0.0
        gauges: tuple[tuple[str, str, float], ...] = (
            ("num_requests_running", "Requests the engine is working on", stats.running),
            ("num_requests_waiting", "Requests waiting for the engine", stats.waiting),
            ("kv_cache_usage_perc", "KV slots that running requests need; 1 is all", used),
            ("kv_cache_cached_tokens", "KV slots that hold reusable prefixes", stats.kv_cached),
        )
        counters: tuple[tuple[str, str, float], ...] = (
            ("engine_steps", "Steps of the engine loop", stats.steps),
            ("engine_step_seconds", "Time spent in steps", stats.step_time),
            ("engine_forward_seconds", "Time spent in forward passes", stats.forward_time),
            ("prompt_tokens", "Prompt tokens received", stats.prompt_tokens),
            (
                "generation_tokens",
                "Tokens generated, sampled or forced",
                stats.sampled_tokens + stats.forced_tokens,
            ),
            (
                "forced_tokens",
                "Generated tokens that a grammar left no choice for",
                stats.forced_tokens,
            ),
            (
                "short_head_rows",
                "Output rows whose logits were computed for the few tokens that a grammar left",
                stats.short_heads,
            ),
            (
                "skipped_head_rows",
                "Output rows whose logits were not computed: a grammar left one token",
                stats.skipped_heads,
            ),
            ("drafted_tokens", "Tokens drafted for verification", stats.drafted_tokens),
            ("accepted_tokens", "Drafted tokens that were accepted", stats.accepted_tokens),
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache",
                stats.prompt_tokens,
            ),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.cached_tokens),
            ("num_preemptions", "Sequences retracted for want of KV slots", stats.retractions),
            ("evicted_tokens", "Cached tokens dropped for want of KV slots", stats.evicted_tokens),
            ("engine_requests", "Requests submitted to the engine", stats.requests),
            ("engine_finished_requests", "Requests whose samples all ended", stats.finished),
            ("engine_aborted_requests", "Requests cancelled", stats.aborted),
            (
                "engine_failed_requests",
                "Requests that ended with an error, refusals included",
                stats.failed,
            ),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"stolon_{name}", text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(f"stolon_{name}", text, value=value)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"stolon_{name}", text, buckets=buckets, registry=self.registry)

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token", _LONG
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Time per token after the first", _SHORT
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its last token", _LONG
        )
        self.queue_time = histogram("request_queue_time_seconds", "Time spent waiting", _LONG)
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "Time spent computing the prompt", _LONG
        )
        self.decode_time = histogram("request_decode_time_seconds", "Time spent generating", _LONG)
        self.success = Counter(
            "stolon_request_success",
            "Samples that ended, by reason",
            ["finished_reason"],
            registry=self.registry,
        )
        self.rejections = Counter(
            "stolon_admission_rejections",
            "Requests turned away because the queue was full",
            registry=self.registry,
        )
        self.http = Counter(
            "stolon_http_requests",
            "HTTP answers",
            ["method", "route", "status"],
            registry=self.registry,
        )

    def render(self, stats: EngineStats | None) -> bytes:
        """The exposition text, with the engine's numbers of now if it answered."""
        self._engine.stats = stats
        return generate_latest(self.registry)
