"""Log-probabilities that wait for their reader, packed as received: a tenth of their decoded size."""

from collections import deque

from paged_serve.protocol.messages.engine_core import Logprobs

from .deltas import TokenLogprobs, decode_logprobs

_OBJECTS = 250  # bytes of a Logprobs and its three bytes objects


class PackedLogprobs:
    """Log-probabilities of consecutive tokens. `num_bytes`: their size in memory."""

    __slots__ = ("_parts", "num_bytes", "num_tokens")

    def __init__(self) -> None:
        self._parts: deque[Logprobs] = deque()
        self.num_bytes = 0
        self.num_tokens = 0

    def add(self, packed: Logprobs) -> int:
        """Append `packed`; returns the bytes that it adds."""
        self._parts.append(packed)
        size = _size(packed)
        self.num_bytes += size
        self.num_tokens += num_rows(packed)
        return size

    def take(self, num_tokens: int) -> list[TokenLogprobs]:
        """Remove and decode those of the first `num_tokens` tokens, or of all if there are fewer."""
        taken: list[TokenLogprobs] = []
        while self._parts and len(taken) < num_tokens:
            part = self._parts.popleft()
            self.num_bytes -= _size(part)
            room = num_tokens - len(taken)
            if num_rows(part) > room:
                rest = rows_from(part, room)
                self._parts.appendleft(rest)
                self.num_bytes += _size(rest)
                part = rows_before(part, room)
            taken += decode_logprobs(part)
        self.num_tokens -= len(taken)
        return taken


def num_rows(packed: Logprobs) -> int:
    return len(packed.ranks) // 4


def check_shape(packed: Logprobs) -> None:
    """Raise ValueError if the columns have inconsistent lengths."""
    rows, size = num_rows(packed), len(packed.token_ids)
    if size != len(packed.logprobs) or size % (4 * rows if rows else size + 1):
        raise ValueError(f"logprobs of {rows} tokens with {size} bytes of ids and {len(packed.logprobs)} of values")


def rows_before(packed: Logprobs, row: int) -> Logprobs:
    end = len(packed.token_ids) // num_rows(packed) * row
    return Logprobs(packed.token_ids[:end], packed.logprobs[:end], packed.ranks[: 4 * row])


def rows_from(packed: Logprobs, row: int) -> Logprobs:
    start = len(packed.token_ids) // num_rows(packed) * row
    return Logprobs(packed.token_ids[start:], packed.logprobs[start:], packed.ranks[4 * row :])


def _size(packed: Logprobs) -> int:
    return len(packed.token_ids) + len(packed.logprobs) + len(packed.ranks) + _OBJECTS
