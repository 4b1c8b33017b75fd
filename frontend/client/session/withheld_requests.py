"""Which requests of a client may have killed a core, and in which turn each is computed alone. Sans-I/O."""

from collections.abc import Iterable

from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS, CoreFailure

from ..streams.request_streams import RequestStreams

ISOLATION_TOKENS = 8  # times as many at each further death: a core may have been that much ahead of what was received
MAX_ISOLATION_TOKENS = 512


class WithheldRequests:
    """The requests of one client that may have killed a core: withheld until their turn, then isolated one at a time.

    The counterpart of engine_core/admission/core_poison.py; this state survives the core. A request that ends
    otherwise, by an abort or a time limit, is no longer a candidate.
    """

    def __init__(self) -> None:
        self._requests: dict[RequestStreams, None] = {}  # in the order in which they are tried
        self._isolated: RequestStreams | None = None
        self._isolation = (-1, 0)  # its epoch and turn
        self._isolation_tokens = 0
        self._goals: list[int] = []  # tokens of each sequence that clear it

    def __contains__(self, request: RequestStreams) -> bool:
        """Whether `request` is withheld."""
        return request in self._requests

    @property
    def num_withheld(self) -> int:
        for request in [request for request in self._requests if request.ended]:
            del self._requests[request]
        return len(self._requests)

    @property
    def is_awaited(self) -> bool:
        """Whether the core computes nothing else until this client has used or returned its turns."""
        return self._isolated is not None or self.num_withheld > 0

    def update_candidates(
        self, requests: Iterable[RequestStreams], failures: Iterable[CoreFailure]
    ) -> RequestStreams | None:
        """Update the candidates from the failures that a new core reports; returns the poison request if known."""
        turns: dict[int | None, int] = {failure.epoch: failure.turn for failure in failures}
        poison = self._isolated if self._isolation in turns.items() else None
        if poison is not None:
            poison.num_deadly_isolations += 1
            poison = poison if poison.num_deadly_isolations >= DEADLY_ISOLATIONS else None
        if poison is None:
            self.put_back()
        self._isolated = None
        for request in requests:
            if request is not poison and turns.get(request.sent_epoch) == 0:
                request.num_deaths += 1
                self._requests[request] = None
        for request in self._requests:
            request.sent_epoch, request.retry_at, request.resumed = None, None, True
        return poison if poison is not None and not poison.ended else None

    def begin_isolation(self, epoch: int, turn: int) -> RequestStreams | None:
        """Begin this client's turn: the request to send now, or None if no candidate is left."""
        if not self.num_withheld:
            return None
        request = self._isolated = next(iter(self._requests))
        del self._requests[request]
        self._isolation = epoch, turn
        self._isolation_tokens = min(ISOLATION_TOKENS**request.num_deaths, MAX_ISOLATION_TOKENS)
        self._goals = [len(stream.received) + self._isolation_tokens for stream in request.streams]
        return request

    def isolation_tokens(self, request: RequestStreams) -> int:
        """Tokens until `request` is cleared; 0 if it is not isolated."""
        return self._isolation_tokens if request is self._isolated else 0

    def put_back(self) -> RequestStreams | None:
        """Return the isolated request to the candidates after an isolation without result."""
        request, self._isolated = self._isolated, None
        if request is not None and not request.ended:
            self._requests = {request: None, **self._requests}
        return request

    def end_isolation_if_over(self) -> bool:
        """End the isolation if its request is cleared or has ended; True if the turn must be returned."""
        request = self._isolated
        if request is None or not (request.ended or self._is_cleared(request)):
            return False
        request.num_deadly_isolations = 0
        self._isolated = None
        return True

    def _is_cleared(self, request: RequestStreams) -> bool:
        return all(
            stream.last is not None or len(stream.received) >= goal
            for stream, goal in zip(request.streams, self._goals, strict=True)
        )
