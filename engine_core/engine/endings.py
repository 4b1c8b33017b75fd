"""Ends of sequences without a last token from the model: errors, refusals, aborts, requests that are removed."""

import math

from paged_serve.protocol.errors import NO_TOKEN, NO_VECTOR
from paged_serve.protocol.messages.engine_core import RejectReason, RequestRejected
from paged_serve.protocol.messages.message import MAX_LONG_TEXT
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..adapters.adapter_use import AdapterUse
from ..admission.admission import Admission
from ..requests.request import Request, Sequence
from ..scheduling.scheduler import Scheduler
from .clients.client_outbox import ClientOutbox
from .outputs import Outgoing, StreamOutput, add_ending, ending
from .results import StepResults

MAX_NANS = 1  # recomputations that a sequence is granted after a result that was not finite
DEADLY_ADAPTER = "the workers died whenever they loaded it"
DEADLY = "the workers died whenever they computed this sequence"


class Endings:
    """Removes sequences from everything that knows them; the messages for their clients are returned or added."""

    def __init__(self, clients: dict[bytes, ClientOutbox], scheduler: Scheduler, admission: Admission):
        self._clients = clients
        self._scheduler = scheduler
        self._admission = admission

    def end(self, sequences: list[Sequence]) -> None:
        """End sequences whose clients learn it otherwise."""
        for sequence in sequences:
            del self._clients[sequence.request.client].streams[sequence.stream_id]
            if sequence.first_token_s is not None:
                self._admission.forecast.ended(sequence)
        self._scheduler.finish(sequences)
        self.remove_deadlines(sequences)

    def remove_deadlines(self, ended: list[Sequence]) -> None:
        """Forget the time limits of requests without a live sequence."""
        for sequence in ended:
            if sequence.request.deadline_s < math.inf and not sequence.request.live:
                self._admission.deadlines.remove(sequence.request)

    def end_early(self, client: bytes, ended: dict[Sequence, FinishReason], now: float, error: str = "") -> Outgoing:
        """End sequences of one client between steps."""
        if not ended:
            return []
        outputs = [(sequence, ending(sequence, reason, now, error)) for sequence, reason in ended.items()]
        self.end(list(ended))
        messages = self._clients[client].deliver(self._scheduler.step, None, outputs)
        return [(client, message) for message in messages]

    def recompute_or_fail(self, sequence: Sequence, outputs: dict[bytes, list[StreamOutput]], now: float) -> None:
        """Recompute `sequence` without the prefix cache, once. Its blocks may hold NaN and are invalidated."""
        self._scheduler.kv_cache.invalidate(sequence)
        sequence.num_nans += 1
        if sequence.num_nans <= MAX_NANS:
            self._scheduler.preempt(sequence)
            return
        self._fail(sequence, outputs, now, NO_TOKEN if sequence.request.pooling is None else NO_VECTOR)

    def end_failed(self, results: StepResults, outputs: dict[bytes, list[StreamOutput]], now: float) -> Outgoing:
        """End the sequences that cannot be sampled. A request that is the cause and has no token yet is rejected."""
        refused: Outgoing = []
        for sequence, failure in results.failed.items():
            request = sequence.request
            if not failure.param or any(each.output for each in request.sequences):
                self._fail(sequence, outputs, now, failure.reason, failure.param)
            elif sequence in request.live:  # else it was rejected with its request
                refused.append(self._reject(request, failure.reason, failure.param))
        return refused

    def end_held(self, use: AdapterUse, error: str, now: float) -> Outgoing:
        """End all requests that wait for an adapter that cannot be loaded."""
        outgoing: Outgoing = []
        for request in dict.fromkeys(sequence.request for sequence in use.held):
            adapter = request.adapter or use.adapter  # requests may name it differently
            reason = f"LoRA adapter {adapter.name!r} was not loaded: {error}"[:MAX_LONG_TEXT]
            if any(each.output for each in request.sequences):
                ended = dict.fromkeys(request.live, FinishReason.ERROR)
                outgoing += self.end_early(request.client, ended, now, reason)
            else:
                outgoing.append(self._reject(request, reason, "model"))
        return outgoing

    def _reject(self, request: Request, reason: str, param: str) -> tuple[bytes, RequestRejected]:
        self.remove(request)
        return request.client, RequestRejected(request.request_id, RejectReason.INVALID, reason, param)

    def remove(self, request: Request) -> None:
        """End a request without any token; its client learns that from another message."""
        sequences = request.live
        self._scheduler.finish(sequences)
        self._clients[request.client].remove([sequence.stream_id for sequence in sequences])
        self.remove_deadlines(sequences)

    def _fail(
        self, sequence: Sequence, outputs: dict[bytes, list[StreamOutput]], now: float, error: str, param: str = ""
    ) -> None:
        message = ending(sequence, FinishReason.ERROR, now, error, param)
        add_ending(outputs.setdefault(sequence.request.client, []), sequence, message)
        self.end([sequence])
