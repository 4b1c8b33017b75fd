"""What happened to one request, on one clock, and the latencies that follow from it."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Timeline:
    """Times in seconds of time.perf_counter, in the order in which they come.

    Latencies count from `intended`, when the request should have been sent, so that a sender which falls behind, or
    waits for a free place, makes them longer instead of hiding the wait.
    """

    intended: float
    asked_tokens: int
    sent: float = 0.0
    chunks: "array[float]" = field(default_factory=lambda: array("d"))  # arrivals of those that brought output
    ended: float = 0.0  # the last byte of the answer, or the failure
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int | None = None  # by the server's count; None: it gave none
    error: str = ""  # "" or the kind: what failures are counted by
    error_detail: str = ""

    @property
    def num_tokens(self) -> int:
        """Output tokens; without the server's count a chunk is taken for a token."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens

    @property
    def end_to_end_s(self) -> float:
        return self.ended - self.intended

    @property
    def first_token_s(self) -> float | None:
        """None: nothing was streamed."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def per_token_s(self) -> float | None:
        """Time per output token behind the first, as the stream's mean; None with fewer than two tokens."""
        if not self.chunks or self.num_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.num_tokens - 1)

    def gaps_s(self) -> list[float]:
        """Between one chunk and the next: what a reader waits for."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    def fail(self, kind: str, detail: str, now: float) -> None:
        self.error, self.error_detail, self.ended = kind, detail, now


MEASURES: dict[str, Callable[[Timeline], float | None]] = {
    "ttft": lambda timeline: timeline.first_token_s,
    "tpot": lambda timeline: timeline.per_token_s,
    "e2el": lambda timeline: timeline.end_to_end_s,
}


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Seconds by measure, from texts like "ttft:500,tpot:50" in milliseconds. Raises ValueError."""
    objectives = {}
    for text in ",".join(texts).split(",") if texts else []:
        name, _, limit = text.partition(":")
        if name not in MEASURES:
            raise ValueError(f"{text!r} must begin with one of {', '.join(MEASURES)} and a colon")
        try:
            objectives[name] = float(limit) / 1000
        except ValueError:
            raise ValueError(f"{text!r} must end in milliseconds, like {name}:500") from None
    return objectives


def objectives_text(objectives: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ≤ {1000 * limit_s:g} ms" for name, limit_s in objectives.items())


def is_good(timeline: Timeline, objectives: Mapping[str, float]) -> bool:
    """Whether it was answered and met each objective; one that cannot be measured, as with a single token, is met."""
    if timeline.error:
        return False
    for name, limit_s in objectives.items():
        value = MEASURES[name](timeline)
        if value is not None and value > limit_s:
            return False
    return True
