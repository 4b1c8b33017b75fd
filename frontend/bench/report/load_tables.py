"""Text tables of a load's results: one run in full, or one line per rate."""

import math
from collections.abc import Mapping, Sequence

from ..load.timeline import objectives_text
from .load_result import LoadResult
from .tables import Spread, number, spread_rows, table

REPORTED_LAG_MS = 20.0


def load_table(result: LoadResult, objectives: Mapping[str, float], max_concurrency: int) -> str:
    """All results of one run."""
    rate = result.per_second
    rows = [
        ["", "total", "per second"],
        ["requests answered", f"{result.num_answered:,}", number(rate(result.num_answered))],
        ["prompt tokens", f"{result.prompt_tokens:,}", number(rate(result.prompt_tokens))],
        ["output tokens", f"{result.output_tokens:,}", number(rate(result.output_tokens))],
    ]
    if result.num_good is not None:
        rows.append([f"goodput ({objectives_text(objectives)})", f"{result.num_good:,}", number(rate(result.num_good))])
    latencies = {
        "time to first token": result.time_to_first_token_ms,
        "inter-token latency": result.inter_token_ms,
        "time per output token": result.per_output_token_ms,
        "end-to-end latency": result.end_to_end_ms,
    }
    if max_concurrency:
        latencies["  of which waiting for a slot"] = result.send_lag_ms
    parts = [table(rows), table(spread_rows("ms", latencies))] if result.num_answered else [table(rows)]
    return "\n\n".join([*parts, "\n".join([f"duration: {result.duration_s:.2f} s", *notes(result, max_concurrency)])])


def notes(result: LoadResult, max_concurrency: int) -> list[str]:
    """Caveats on the figures."""
    found = []
    for kind, count in result.errors.items():
        found.append(f"FAILED {count} of {result.num_requests}, {kind}: {result.error_details[kind]}")
    if result.output_tokens != result.asked_tokens and not result.tokens_from_chunks:
        found.append(f"{result.asked_tokens:,} output tokens were requested; some answers ended earlier")
    if result.cached_tokens:
        found.append(f"{result.cached_tokens:,} of the prompt tokens came from the server's prefix cache")
    if result.tokens_from_chunks:
        found.append(f"{result.tokens_from_chunks} answers had no usage: each chunk was counted as a token")
    lag = result.send_lag_ms
    if lag is not None and lag.p99 > REPORTED_LAG_MS and not max_concurrency:
        found.append(f"this client fell behind: 1 % of the requests were sent {lag.p99:.0f} ms or more after schedule")
    return found


def sweep_table(rates: Sequence[float], results: Sequence[LoadResult]) -> str:
    """One line per rate."""
    head = ["offered /s", "req/s", "out tok/s"]
    head += ["TTFT p50", "p99", "ITL p50", "p99", "TPOT p50", "E2E p50", "p99", "good/s", "failed"]
    rows = [head]
    for rate, result in zip(rates, results, strict=True):
        good = None if result.num_good is None else result.per_second(result.num_good)
        rows.append(
            [
                rate_text(rate),
                number(result.per_second(result.num_answered)),
                number(result.per_second(result.output_tokens)),
                *_p50_and_p99(result.time_to_first_token_ms),
                *_p50_and_p99(result.inter_token_ms),
                _p50_and_p99(result.per_output_token_ms)[0],
                *_p50_and_p99(result.end_to_end_ms),
                number(good),
                str(result.num_requests - result.num_answered),
            ]
        )
    return table(rows) + "\n(times in ms)"


def rate_text(rate: float) -> str:
    return "inf" if math.isinf(rate) else f"{rate:g}"


def _p50_and_p99(spread: Spread | None) -> list[str]:
    return ["-", "-"] if spread is None else [number(spread.p50), number(spread.p99)]
