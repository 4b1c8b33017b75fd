"""Requests with a time limit, ordered by deadline."""

import math
from bisect import bisect_left, insort

from paged_serve.protocol.messages.engine_core import RejectReason, RequestRejected

from ..requests.request import Request


def _moment(request: Request) -> tuple[float, int]:
    return request.deadline_s, request.arrival


class Deadlines:
    """Holds a request until it is first scheduled, ends or expires; a request that runs at its deadline continues."""

    def __init__(self) -> None:
        self._requests: list[Request] = []  # by deadline

    @property
    def next_s(self) -> float:
        return self._requests[0].deadline_s if self._requests else math.inf

    def add(self, request: Request) -> None:
        """Track `request`; one that already has a token has met its deadline and is ignored."""
        if request.deadline_s < math.inf and not any(sequence.output for sequence in request.sequences):
            insort(self._requests, request, key=_moment)

    def remove(self, request: Request) -> None:
        """Stop tracking `request`; a no-op if it is not tracked."""
        if request.deadline_s == math.inf:
            return
        index = bisect_left(self._requests, _moment(request), key=_moment)
        if index < len(self._requests) and self._requests[index] is request:
            del self._requests[index]

    def take_expired(self, now: float) -> list[Request]:
        """Remove and return the expired requests, earliest deadline first."""
        count = 0
        while count < len(self._requests) and self._requests[count].deadline_s <= now:
            count += 1
        expired, self._requests = self._requests[:count], self._requests[count:]
        return expired


def expiry(request: Request, now: float, num_waiting: int) -> RequestRejected:
    """The rejection that ends an expired request."""
    reason = (
        f"timeout={request.deadline_s - request.arrival_s:.3g}: the request waited {now - request.arrival_s:.3g} s and "
        f"was not started; {num_waiting} sequences are waiting. Allow more time, or send fewer requests at once"
    )
    return RequestRejected(request.request_id, RejectReason.EXPIRED, reason, "timeout")
