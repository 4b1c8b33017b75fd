"""What happened to one request, on one clock, and the latencies that follow from it."""

from array import array
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
