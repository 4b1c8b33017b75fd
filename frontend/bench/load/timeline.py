"""The times of one request's events, on one clock, and the latencies computed from them."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Timeline:
    """Times in seconds of time.perf_counter, in ascending order.

    Latencies count from `intended`, when the request should have been sent, so that they include the delay of a
    sender that falls behind or waits for a free slot.
    """

    intended: float
    asked_tokens: int
    sent: float = 0.0
    chunks: "array[float]" = field(default_factory=lambda: array("d"))  # arrival times of chunks with output
    ended: float = 0.0  # time of the last byte, or of the failure
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int | None = None  # the server's count, if it sent one
    error: str = ""  # the kind of failure, by which failures are counted
    error_detail: str = ""

    @property
    def num_tokens(self) -> int:
        """Output tokens; if the server sent no count, the number of chunks."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens

    @property
    def end_to_end_s(self) -> float:
        return self.ended - self.intended

    @property
    def first_token_s(self) -> float | None:
        """None if nothing was streamed."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def per_token_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if not self.chunks or self.num_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.num_tokens - 1)

    def gaps_s(self) -> list[float]:
        """The times between consecutive chunks."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    def fail(self, kind: str, detail: str, now: float) -> None:
        self.error, self.error_detail, self.ended = kind, detail, now


MEASURES: dict[str, Callable[[Timeline], float | None]] = {
    "ttft": lambda timeline: timeline.first_token_s,
    "tpot": lambda timeline: timeline.per_token_s,
    "e2el": lambda timeline: timeline.end_to_end_s,
}


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Parse texts like "ttft:500,tpot:50", in milliseconds, to seconds by measure. Raises ValueError."""
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
    """Whether the request was answered within all objectives. An objective without a value, such as tpot of a single
    token, is met."""
    if timeline.error:
        return False
    for name, limit_s in objectives.items():
        value = MEASURES[name](timeline)
        if value is not None and value > limit_s:
            return False
    return True
