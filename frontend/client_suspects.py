"""Requests that a dead core may have died of: held back until it is their turn, and then on trial, one at a time.

See engine_core/admission/core_poison.py. What survives a core is here: who was on trial when it died did it. Sans-I/O.
"""

from collections.abc import Iterable

from paged_serve.protocol.messages.engine_core import CoreFailure

from .client_request import RequestStreams

TRIAL_TOKENS = 8  # times as many at each further death: a core may have been that much ahead of what we received
MAX_TRIAL_TOKENS = 512


class Suspects:
    """Of one client. Those that end otherwise, by an abort or a time limit, are suspects no more."""

    def __init__(self) -> None:
        self._held: dict[RequestStreams, None] = {}  # in the order in which they are tried
        self._on_trial: RequestStreams | None = None
        self._trial = (-1, 0)  # its epoch and turn
        self._trial_tokens = 0
        self._goals: list[int] = []  # tokens of each sequence that clear it

    def __contains__(self, request: RequestStreams) -> bool:
        """Whether it is held back."""
        return request in self._held

    @property
    def num_held(self) -> int:
        for request in [request for request in self._held if request.ended]:
            del self._held[request]
        return len(self._held)

    def judge(self, requests: Iterable[RequestStreams], failures: Iterable[CoreFailure]) -> RequestStreams | None:
        """Another core is there, and knows how former ones ended: returns who killed one, if that is known now."""
        turns: dict[int | None, int] = {failure.epoch: failure.turn for failure in failures}
        culprit = self._on_trial if self._trial in turns.items() else None
        if culprit is None:
            self.put_back()
        self._on_trial = None
        for request in requests:
            if request is not culprit and turns.get(request.sent_epoch) == 0:
                request.num_deaths += 1
                self._held[request] = None
        for request in self._held:
            request.sent_epoch, request.retry_at, request.resumed = None, None, True
        return culprit if culprit is not None and not culprit.ended else None

    def begin_trial(self, epoch: int, turn: int) -> RequestStreams | None:
        """It is our turn: the request to send now; None: there is none any more."""
        if not self.num_held:
            return None
        request = self._on_trial = next(iter(self._held))
        del self._held[request]
        self._trial = epoch, turn
        self._trial_tokens = min(TRIAL_TOKENS**request.num_deaths, MAX_TRIAL_TOKENS)
        self._goals = [len(stream.received) + self._trial_tokens for stream in request.streams]
        return request

    def trial_tokens(self, request: RequestStreams) -> int:
        """How long it must run alone; 0 when it is not on trial."""
        return self._trial_tokens if request is self._on_trial else 0

    def put_back(self) -> RequestStreams | None:
        """Its trial came to nothing; it is the next one's again."""
        request, self._on_trial = self._on_trial, None
        if request is not None and not request.ended:
            self._held = {request: None, **self._held}
        return request

    def end_trial_if_over(self) -> bool:
        """True when the turn must be given back: the request has got so far, or has ended."""
        request = self._on_trial
        if request is None or not (request.ended or self._is_cleared(request)):
            return False
        self._on_trial = None
        return True

    def _is_cleared(self, request: RequestStreams) -> bool:
        return all(
            stream.last is not None or len(stream.received) >= goal
            for stream, goal in zip(request.streams, self._goals, strict=True)
        )
