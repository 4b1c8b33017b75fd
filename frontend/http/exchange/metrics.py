"""Prometheus metrics: the usual names and buckets under the prefix `paged`; `compat` repeats them under another."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from paged_serve.protocol.errors import NO_TOKEN, NO_VECTOR
from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.stats import STEP_TOKENS, KVTierStats, SchedulerStats

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
    2560,
)
_INTER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
_SMALL_COUNTS = (1, 2, 5, 10, 20)
_LABELS = ("model_name", "engine")  # of series that every frontend reports alike
_OWN_LABELS = (*_LABELS, "frontend")  # of series counted by one frontend: sum them

# Other servers have no name for these, or mean something else by it.
_OURS_ALONE = re.compile(
    rb"^(# (HELP|TYPE) )?paged:(iteration_seconds|iteration_tokens|prompt_tokens_total|kv_tier_\w+)[ {]"
)

_REFUSALS = {400: "invalid", 429: "overloaded", 503: "unavailable", 504: "expired"}  # by status

# name -> (help, buckets)
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the request's arrival to its first token", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Between two deliveries of one sequence", _INTER_TOKEN),
    "request_time_per_output_token_seconds": ("Of a finished sequence, without its first token", _INTER_TOKEN),
    "e2e_request_latency_seconds": ("From the request's arrival to a sequence's end", _LATENCY),
    "request_queue_time_seconds": ("Waiting for a place in the batch", _LATENCY),
    "request_prefill_time_seconds": ("Computing the prompt", _LATENCY),
    "request_decode_time_seconds": ("Computing the output", _LATENCY),
    "request_inference_time_seconds": ("Prefill and decode", _LATENCY),
    "request_prompt_tokens": ("Prompt length", _TOKENS),
    "request_generation_tokens": ("Output length", _TOKENS),
    "request_params_n": ("Sequences requested", _SMALL_COUNTS),
    "request_params_max_tokens": ("Output limit requested", _TOKENS),
    "request_prefill_kv_computed_tokens": ("Prompt length without what the prefix cache had", (0, *_TOKENS)),
    "request_max_num_generation_tokens": ("The longest output of one prompt", _TOKENS),
    "request_num_preemptions": ("Preemptions of a finished sequence", (0, *_SMALL_COUNTS)),
}


class Metrics:
    """All metrics of one frontend."""

    def __init__(self, model_name: str, compat: str = "", index: int = 0, max_loras: int = 0, block_size: int = 0):
        self._compat = compat
        labels = (model_name, "0")
        self._labels = (*labels, str(index))
        self._registry = CollectorRegistry()
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._engine_stats = _EngineStats(list(labels), max_loras, block_size, compat)
        self._registry.register(self._engine_stats)
        self._observe: dict[str, Callable[[float], None]] = {}
        for name, (text, buckets) in _HISTOGRAMS.items():
            histogram = Histogram(f"paged:{name}", text, _OWN_LABELS, buckets=buckets, registry=self._registry)
            self._observe[name] = histogram.labels(*self._labels).observe
        self._success = self._counter(
            "request_success", "Ended sequences", "finished_reason", [reason.api_name for reason in FinishReason]
        )
        self._corrupted = Counter(
            "paged:corrupted_requests",
            "Sequences whose output was not finite",
            _OWN_LABELS,
            registry=self._registry,
        ).labels(*self._labels)
        self._rejections = self._counter("admission_rejections", "Refused requests", "reason", _REFUSALS.values())

    def _counter(self, name: str, text: str, label: str, values: Iterable[str]) -> Counter:
        """A counter that has each value from the start: Prometheus sees no increase in a series that begins with 1."""
        counter = Counter(f"paged:{name}", text, (*_OWN_LABELS, label), registry=self._registry)
        for value in values:
            counter.labels(*self._labels, value)
        return counter

    def exposition(self, stats: SchedulerStats | None) -> bytes:
        """The text that Prometheus scrapes. `stats`: the engine's figures; None when it does not answer."""
        self._engine_stats.stats = stats
        text = prometheus_client.generate_latest(self._registry)
        if not self._compat:
            return text
        lines = text.splitlines(keepends=True)
        shared = b"".join(line for line in lines if not _OURS_ALONE.match(line))
        return text + shared.replace(b"paged:", self._compat.encode() + b":")

    def submitted(self, prompt_tokens: int, n: int, max_tokens: int | None) -> None:
        self._observe["request_prompt_tokens"](prompt_tokens)
        self._observe["request_params_n"](n)
        if max_tokens is not None:
            self._observe["request_params_max_tokens"](max_tokens)

    def rejected(self, status: int) -> None:
        """Count a refused request by the status of its answer."""
        self._rejections.labels(*self._labels, _REFUSALS[status]).inc()

    def first_token(self, seconds: float) -> None:
        self._observe["time_to_first_token_seconds"](seconds)

    def next_token(self, seconds: float) -> None:
        self._observe["inter_token_latency_seconds"](seconds)

    def ended(self, reason: FinishReason, count: int = 1) -> None:
        """Count sequences that ended before they finished."""
        if count:
            self._success.labels(*self._labels, reason.api_name).inc(count)

    def failed(self, error: str) -> None:
        """Count a sequence that the engine gave up for this reason."""
        self.ended(FinishReason.ERROR)
        if error in (NO_TOKEN, NO_VECTOR):
            self._corrupted.inc()

    def prompt_finished(self, computed_tokens: int, longest_output: int) -> None:
        """Record a prompt whose sequences have all finished; `computed_tokens`: of it, without cached ones."""
        self._observe["request_prefill_kv_computed_tokens"](computed_tokens)
        self._observe["request_max_num_generation_tokens"](longest_output)

    def finished(
        self, reason: FinishReason, tokens: int, total_s: float, first_token_s: float, times: RequestTimes | None
    ) -> None:
        """Record the end of a sequence; `times` are measured by the engine, the other times by the frontend."""
        self._success.labels(*self._labels, reason.api_name).inc()
        self._observe["request_generation_tokens"](tokens)
        self._observe["e2e_request_latency_seconds"](total_s)
        if tokens > 1:
            self._observe["request_time_per_output_token_seconds"]((total_s - first_token_s) / (tokens - 1))
        if times is not None:
            self._observe["request_queue_time_seconds"](times.queued_s)
            self._observe["request_prefill_time_seconds"](times.prefill_s)
            self._observe["request_decode_time_seconds"](times.decode_s)
            self._observe["request_inference_time_seconds"](times.prefill_s + times.decode_s)
            self._observe["request_num_preemptions"](times.num_preemptions)


class _EngineStats(Collector):
    """Exports the engine's own figures, `stats`."""

    def __init__(self, labels: list[str], max_loras: int, block_size: int, compat: str):
        self.stats: SchedulerStats | None = None
        self._block_size, self._compat = block_size, compat
        self._max_loras = max_loras
        self._labels = labels

    def describe(self) -> Iterable[Metric]:
        return []  # no names to check for duplicates: the registry is private

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        if stats is None:
            return
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        gauges = {
            "num_requests_running": ("Requests that hold blocks", stats.num_running),
            "num_requests_waiting": ("Requests that wait for a row", stats.num_waiting),
            "kv_cache_usage_perc": ("KV cache in use, 0 to 1", used),
            "iteration_seconds": ("Duration of the last step", stats.last_step_s),
            "iteration_tokens": ("Tokens of the last step", stats.last_step_tokens),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens computed", stats.prompt_tokens),
            "prompt_tokens_cached": ("Prompt tokens found in the prefix cache", stats.prefix_cache_hits),
            "generation_tokens": ("Tokens generated", stats.generation_tokens),
            "prefix_cache_queries": ("Prompt tokens looked up", stats.prefix_cache_queries),
            "prefix_cache_hits": ("Prompt tokens found", stats.prefix_cache_hits),
            "num_preemptions": ("Requests sent back to the queue", stats.num_preemptions),
            "spec_decode_num_drafts": ("Verifications with drafts", stats.num_drafts),
            "spec_decode_num_draft_tokens": ("Drafts verified", stats.draft_tokens),
            "spec_decode_num_accepted_tokens": ("Drafts accepted", stats.accepted_tokens),
        }
        yield from self._families(gauges, GaugeMetricFamily)
        yield from self._families(counters, CounterMetricFamily)
        yield from self._prompt_tokens(stats)
        yield self._steps(stats)
        yield self._cache(stats)
        if stats.kv_tier is not None:
            yield from self._tier(stats.kv_tier)
        yield self._accepted_per_position(stats)
        if self._max_loras:
            yield self._adapters(stats)

    def _families(
        self, values: Mapping[str, tuple[str, float]], kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    ) -> Iterable[Metric]:
        for name, (text, value) in values.items():
            family = kind(f"paged:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family

    def _prompt_tokens(self, stats: SchedulerStats) -> Iterable[Metric]:
        sources = {"local_compute": stats.prompt_tokens, "local_cache_hit": stats.prefix_cache_hits}
        text = "Prompt tokens by where they come from"
        by_source = CounterMetricFamily("paged:prompt_tokens_by_source", text, labels=(*_LABELS, "source"))
        for source, count in sources.items():
            by_source.add_metric([*self._labels, source], count)
        yield by_source
        if self._compat:
            both = CounterMetricFamily(f"{self._compat}:prompt_tokens", "Prompt tokens", labels=_LABELS)
            both.add_metric(self._labels, sum(sources.values()))
            yield both

    def _steps(self, stats: SchedulerStats) -> Metric:
        bounds = [*map(float, STEP_TOKENS), "+Inf"]
        buckets = [*zip(map(str, bounds), accumulate(stats.steps_by_tokens), strict=False)]
        steps = HistogramMetricFamily("paged:iteration_tokens_total", "Steps by their number of tokens", labels=_LABELS)
        if buckets:
            steps.add_metric(self._labels, buckets, stats.step_tokens)
        return steps

    def _cache(self, stats: SchedulerStats) -> Metric:
        """Routers compute the cache's size from the labels; the value is always 1."""
        labels = ("block_size", "num_gpu_blocks", "engine")
        info = GaugeMetricFamily("paged:cache_config_info", "The KV cache, in blocks of tokens", labels=labels)
        info.add_metric([str(self._block_size), str(stats.num_blocks), self._labels[1]], 1)
        return info

    def _tier(self, tier: KVTierStats) -> Iterable[Metric]:
        used = {"kv_tier_used_bytes": ("Blocks in the tiers of all ranks", tier.used_bytes)}
        counters = {
            "kv_tier_loads": ("Loads", tier.num_loads),
            "kv_tier_load_seconds": ("Duration of all loads together", tier.load_s),
            "kv_tier_loaded_blocks": ("Blocks restored", tier.loaded_blocks),
            "kv_tier_loaded_bytes": ("Bytes restored, of all ranks", tier.loaded_bytes),
            "kv_tier_failed_blocks": ("Blocks to restore that were damaged or deleted", tier.failed_blocks),
            "kv_tier_stores": ("Stores", tier.num_stores),
            "kv_tier_store_seconds": ("Duration of all stores together", tier.store_s),
            "kv_tier_stored_blocks": ("Blocks stored", tier.stored_blocks),
            "kv_tier_stored_bytes": ("Bytes stored, of all ranks", tier.stored_bytes),
        }
        yield from self._families(used, GaugeMetricFamily)
        yield from self._families(counters, CounterMetricFamily)

    def _adapters(self, stats: SchedulerStats) -> Metric:
        """The value is the time: of two series, the one with the later time is current."""
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        info = GaugeMetricFamily("paged:lora_requests_info", "LoRA adapters of requests", labels=labels)
        waiting = ",".join(sorted(each.name for each in stats.adapters if each.num_waiting))
        running = ",".join(sorted(each.name for each in stats.adapters if each.num_running))
        info.add_metric([str(self._max_loras), waiting, running], time.time())
        return info

    def _accepted_per_position(self, stats: SchedulerStats) -> Metric:
        name, text = "paged:spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by place among a row's drafts"
        counter = CounterMetricFamily(name, text, labels=(*_LABELS, "position"))
        for position, count in enumerate(stats.accepted_per_position):
            counter.add_metric([*self._labels, str(position)], count)
        return counter
