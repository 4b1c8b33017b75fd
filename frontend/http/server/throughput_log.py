"""Logs a line every ten seconds while there is work: tokens per second, requests, cache usage."""

import logging

from paged_serve.protocol.messages.stats import SchedulerStats

log = logging.getLogger(__name__)

EVERY_S = 10.0


class ThroughputLog:
    """Call `check` several times per second with the engine's latest figures."""

    def __init__(self) -> None:
        self._last: SchedulerStats | None = None
        self._last_at = 0.0

    def check(self, now: float, stats: SchedulerStats | None) -> None:
        """`now` in `time.monotonic` seconds; `stats` None: the engine is away."""
        last = self._last
        if stats is None or last is None or stats.step < last.step:  # a new core counts from zero
            self._last, self._last_at = stats, now
        elif now - self._last_at >= EVERY_S:
            if stats.step > last.step or stats.num_running or stats.num_waiting:
                self._log(last, stats, now - self._last_at)
            self._last, self._last_at = stats, now

    def _log(self, last: SchedulerStats, stats: SchedulerStats, seconds: float) -> None:
        queries = stats.prefix_cache_queries - last.prefix_cache_queries
        hits = stats.prefix_cache_hits - last.prefix_cache_hits
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        fields = {
            "prompt_tokens_per_s": round((stats.prompt_tokens - last.prompt_tokens) / seconds, 1),
            "generation_tokens_per_s": round((stats.generation_tokens - last.generation_tokens) / seconds, 1),
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_cache_usage": round(used, 3),
            "prefix_cache_hit_rate": round(hits / queries, 3) if queries else 0.0,
        }
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        log.info("throughput %s", text, extra={"fields": fields})
