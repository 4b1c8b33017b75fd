"""The figures of a load, computed from its timelines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..load.timeline import Timeline, is_good
from .tables import Spread


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Latencies are those of answered requests; failed requests are counted only in `errors`."""

    num_requests: int
    num_answered: int
    errors: dict[str, int]  # by kind
    error_details: dict[str, str]  # one example of each kind
    duration_s: float  # from the first intended arrival to the last answer
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    asked_tokens: int  # the answered requests' max_tokens
    num_chunks: int
    tokens_from_chunks: int  # answers without usage, whose chunks were counted as tokens
    time_to_first_token_ms: Spread | None
    inter_token_ms: Spread | None
    per_output_token_ms: Spread | None
    end_to_end_ms: Spread | None
    send_lag_ms: Spread | None  # how late requests were sent, for want of a free slot or of CPU
    num_good: int | None  # requests within all objectives; None without objectives

    @classmethod
    def of(cls, timelines: Sequence[Timeline], objectives: Mapping[str, float]) -> "LoadResult":
        answered = [timeline for timeline in timelines if not timeline.error]
        failed = [timeline for timeline in timelines if timeline.error]
        details = {timeline.error: timeline.error_detail for timeline in reversed(failed)}
        return cls(
            num_requests=len(timelines),
            num_answered=len(answered),
            errors=dict(Counter(timeline.error for timeline in failed)),
            error_details=details,
            duration_s=max(line.ended for line in timelines) - min(line.intended for line in timelines),
            prompt_tokens=sum(timeline.prompt_tokens for timeline in answered),
            cached_tokens=sum(timeline.cached_tokens for timeline in answered),
            output_tokens=sum(timeline.num_tokens for timeline in answered),
            asked_tokens=sum(timeline.asked_tokens for timeline in answered),
            num_chunks=sum(len(timeline.chunks) for timeline in answered),
            tokens_from_chunks=sum(timeline.output_tokens is None for timeline in answered),
            time_to_first_token_ms=_ms([timeline.first_token_s for timeline in answered]),
            inter_token_ms=_ms([gap for timeline in answered for gap in timeline.gaps_s()]),
            per_output_token_ms=_ms([timeline.per_token_s for timeline in answered]),
            end_to_end_ms=_ms([timeline.end_to_end_s for timeline in answered]),
            send_lag_ms=_ms([timeline.sent - timeline.intended for timeline in timelines]),
            num_good=sum(is_good(timeline, objectives) for timeline in timelines) if objectives else None,
        )

    def per_second(self, count: int) -> float:
        return count / self.duration_s if self.duration_s > 0 else 0.0

    def per_second_figures(self) -> dict[str, float | None]:
        """The rates, for a result's JSON."""
        return {
            "requests_per_s": self.per_second(self.num_answered),
            "prompt_tokens_per_s": self.per_second(self.prompt_tokens),
            "output_tokens_per_s": self.per_second(self.output_tokens),
            "good_requests_per_s": None if self.num_good is None else self.per_second(self.num_good),
        }


def _ms(seconds: Sequence[float | None]) -> Spread | None:
    return Spread.of([1000 * value for value in seconds if value is not None])
