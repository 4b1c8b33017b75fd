"""Learns how long a step takes by its number of tokens, from the steps of decode rows and verifications alone."""

from bisect import bisect_left

ASSUMED_SLOPE = 0.1  # of a step of one token, for each further token; until steps of other sizes were seen
OWN_SHARE = 0.1  # weight of a new duration in the average of its size
OTHERS_SHARE = 0.5  # power of an average's change by which all others change: contexts grow, machines get busy
NUM_EXACT_BITS = 4  # sizes that agree in these leading bits are one


def size_class(num_tokens: int) -> int:
    """Exact up to 15 tokens; then in steps of an eighth to a sixteenth of the size."""
    shift = max(0, num_tokens.bit_length() - NUM_EXACT_BITS)
    return num_tokens >> shift << shift


class StepCurve:
    """Averages of durations by size; between two sizes it is a straight line."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._sizes: list[int] = []  # ascending

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Add one step."""
        if num_tokens < 1 or seconds <= 0.0:
            return
        size = size_class(num_tokens)
        before = self._seconds.get(size)
        if before is None:
            self._sizes.insert(bisect_left(self._sizes, size), size)
            self._seconds[size] = seconds
            return
        after = before + OWN_SHARE * (min(seconds, 2.0 * before) - before)  # a single slow step is no trend
        factor = (after / before) ** OTHERS_SHARE  # of the average: single durations would let the others drift away
        for other in self._sizes:
            self._seconds[other] *= factor
        self._seconds[size] = after

    def relative(self, num_tokens: float) -> float:
        """The duration of such a step, in a unit that is the same for all sizes."""
        sizes = self._sizes
        if not sizes:
            return _assumed(num_tokens)
        index = bisect_left(sizes, num_tokens)
        if index == len(sizes) or (index == 0 and num_tokens < sizes[0]):
            nearest = sizes[min(index, len(sizes) - 1)]
            return self._seconds[nearest] * _assumed(num_tokens) / _assumed(nearest)
        above = sizes[index]
        if num_tokens == above:
            return self._seconds[above]
        below = sizes[index - 1]
        part = (num_tokens - below) / (above - below)
        return self._seconds[below] + part * (self._seconds[above] - self._seconds[below])


def _assumed(num_tokens: float) -> float:
    return 1.0 + ASSUMED_SLOPE * max(0.0, num_tokens - 1.0)
