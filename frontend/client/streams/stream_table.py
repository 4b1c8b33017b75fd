"""The requests of a client, with a journal of received tokens per stream that also serves as its queue.

Sans-I/O: messages in, deltas out. A slow consumer finds everything since its last read in one delta, so only the
tokens themselves accumulate. Positions make delivery exact: repeated tokens are dropped, missing ones are detected, and
after a restart of the core the journal tells where to continue.
"""

import weakref
from array import array
from collections.abc import Callable, Sequence

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.errors import PagedServeError
from paged_serve.protocol.messages.engine_core import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    TokenColumns,
)
from paged_serve.protocol.messages.message import MAX_FRAME_BYTES, pack_ids, unpack_ids, unpack_int64
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..request_terms import RequestTerms
from .packed_logprobs import PackedLogprobs, check_shape, num_rows, rows_from
from .request_streams import RequestStreams, Stream, UndeliveredCount

MAX_RESUMED_BYTES = MAX_FRAME_BYTES * 3 // 4  # of prompt and outputs; the parameters need room in the frame, too
MIN_TTL_S = 0.001  # of one that has expired on its way: the core rejects it, with its own text


class StreamTable:
    """All unfinished requests of one client, and the routing of outputs to them."""

    def __init__(self) -> None:
        self.requests: dict[int, RequestStreams] = {}
        self.streams: dict[int, Stream] = {}
        self.broken: list[RequestStreams] = []  # a token is missing: to be sent again under new ids
        self.undelivered = UndeliveredCount()
        self._ended_unread: weakref.WeakSet[RequestStreams] = weakref.WeakSet()  # all of which may be taken by now
        self._next_id = 1
        self._unknown = Stream(RequestStreams(0, b"", SamplingParams()), 0)  # takes tokens of unknown streams
        self._column_ids: bytes | None = None  # stream ids of the columns below; None: a stream has ended since
        self._column_firsts = b""
        self._columns: list[tuple[Stream, int]] = []

    def add(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        terms: RequestTerms | None = None,
        on_output: Callable[[RequestStreams], None] | None = None,
        pooling_params: PoolingParams | None = None,
    ) -> RequestStreams:
        """Register a request; it owns sampling_params.n consecutive ids."""
        packed = pack_ids(prompt_token_ids)
        terms = terms or RequestTerms()
        request = RequestStreams(0, packed, sampling_params, pooling_params, terms, on_output=on_output)
        request.undelivered = self.undelivered
        request.streams = [Stream(request, index) for index in range(sampling_params.n)]
        request.num_unfinished = sampling_params.n
        self._number(request)
        return request

    def add_failed(
        self,
        error: PagedServeError,
        sampling_params: SamplingParams,
        terms: RequestTerms | None = None,
        on_output: Callable[[RequestStreams], None] | None = None,
    ) -> RequestStreams:
        """A request that fails before it starts, so that its readers find the error; without its prompt."""
        request = self.add((), sampling_params, terms, on_output)
        self.fail(request, error)
        return request

    def renumber(self, request: RequestStreams) -> None:
        """Give a request new ids, so that outputs of its previous start cannot match it."""
        self._remove(request)
        self._number(request)

    def stream_ids(self, request: RequestStreams) -> tuple[int, ...]:
        return tuple(range(request.request_id, request.request_id + len(request.streams)))

    def finished_ids(self, request: RequestStreams) -> tuple[int, ...]:
        """Ids of the request's finished sequences, while others still run."""
        return tuple(request.request_id + s.index for s in request.streams if s.last is not None)

    def message(self, request: RequestStreams, now: float, isolation_tokens: int = 0) -> EngineCoreRequest:
        """The message that starts the request, or continues it after the last token received.

        If the outputs exceed a frame, their ends are left out and computed again, to the same tokens.
        """
        received = tuple(pack_ids(stream.received) for stream in request.streams)
        room = max(0, MAX_RESUMED_BYTES - len(request.prompt_token_ids))
        if sum(map(len, received)) > room:
            kept = room // len(received) // TOKEN_BYTES
            isolation_tokens += max(len(ids) // TOKEN_BYTES - kept for ids in received) if isolation_tokens else 0
            received = tuple(ids[: kept * TOKEN_BYTES] for ids in received)
        terms = request.terms
        # never more than was asked for, which the difference of two rounded times may be
        left_s = min(terms.timeout_s, max(request.expires_at - now, MIN_TTL_S))
        return EngineCoreRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=request.sampling_params,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            resume_token_ids=received if any(received) else (),
            tenant=terms.tenant,
            weight=terms.weight,
            ttl_s=left_s if request.may_expire else 0.0,
            isolation_tokens=isolation_tokens,
            pooling_params=request.pooling_params,
            adapter=terms.adapter,
            resumed=request.resumed,
        )

    def receive(self, message: EngineCoreOutputs) -> None:
        """Route tokens and finishes to their streams. Raises ValueError if the columns have inconsistent lengths."""
        columns = message.columns
        complete = columns is None or self._receive_columns(columns, final=not message.outputs)
        for output in message.outputs:
            self._receive_output(output)
        if columns is not None and not complete:  # outputs of the same frame may fill the gap; the rest is repetition
            self._receive_columns(columns, final=True)

    def finish(self, stream: Stream, output: EngineCoreOutput) -> None:
        """End the stream; `output` holds the reason."""
        request = stream.request
        stream.last = output
        self.streams.pop(request.request_id + stream.index, None)
        self._column_ids = None
        request.num_unfinished -= 1
        if request.num_unfinished == 0:
            self.requests.pop(request.request_id, None)
            self._ended_unread.add(request)
        request.note_output(stream)
        stream.request = self._unknown.request  # else the two would live until a garbage collection

    def fail(self, request: RequestStreams, error: PagedServeError) -> None:
        """End the whole request: its reader gets the outputs received so far, then `error`."""
        self._remove(request)
        for stream in request.streams:
            stream.request = self._unknown.request
        request.error = error
        if request.on_output is not None:
            request.on_output(request)

    def abort(self, stream: Stream, reason: FinishReason) -> None:
        """Deliver no further tokens; the engine's finish is still awaited."""
        stream.aborted = reason
        self._column_ids = None

    def unread(self) -> list[RequestStreams]:
        """Requests with output that may wait for a reader, the largest first."""
        return sorted((*self.requests.values(), *self._ended_unread), key=lambda request: -request.undelivered_bytes)

    def drop_undelivered(self, request: RequestStreams) -> None:
        """Free the unread outputs of a request whose reader is gone, and store no more."""
        for stream in request.ready:
            self.undelivered.num_bytes -= stream.undelivered_bytes
            stream.delivered, stream.logprobs, stream.prompt_logprobs = len(stream.received), None, None
            stream.pooled = None
            stream.queued = False
        request.ready.clear()

    def _number(self, request: RequestStreams) -> None:
        request.request_id = self._next_id
        self._next_id += len(request.streams)
        self.requests[request.request_id] = request
        self.streams.update((request.request_id + s.index, s) for s in request.streams if s.last is None)

    def _remove(self, request: RequestStreams) -> None:
        self.requests.pop(request.request_id, None)
        for stream_id in self.stream_ids(request):
            self.streams.pop(stream_id, None)
        self._column_ids = None

    def _receive_columns(self, columns: TokenColumns, final: bool) -> bool:
        """Deliver one token per stream; False if a stream lacks an earlier token. `final`: such a stream is broken."""
        if columns.stream_ids != self._column_ids or columns.first_positions != self._column_firsts:
            self._resolve(columns)
        tokens, advance, complete, count = unpack_ids(columns.token_ids), columns.advance, True, 0
        for (stream, first), token in zip(self._columns, tokens, strict=True):
            received = stream.received
            if len(received) == first + advance:
                received.append(token)
                count += 1
                if not stream.queued:
                    stream.queued = True
                    request = stream.request
                    request.ready.append(stream)
                    if request.on_output is not None:
                        request.on_output(request)
            elif len(received) < first + advance:
                complete = False
                if final:
                    self._break(stream)
        self.undelivered.num_bytes += TOKEN_BYTES * count
        return complete

    def _resolve(self, columns: TokenColumns) -> None:
        ids, firsts = unpack_int64(columns.stream_ids), unpack_ids(columns.first_positions)
        found = [self.streams.get(stream_id, self._unknown) for stream_id in ids]
        known = [self._unknown if stream.aborted is not None else stream for stream in found]
        never = -2 << 62  # a position that no `advance` brings to 0
        self._columns = [
            (stream, never if stream is self._unknown else first) for stream, first in zip(known, firsts, strict=True)
        ]
        self._column_ids, self._column_firsts = columns.stream_ids, columns.first_positions

    def _receive_output(self, output: EngineCoreOutput) -> None:
        stream = self.streams.get(output.stream_id)
        if stream is None:
            return
        if stream.aborted is not None:
            if output.finish_reason is not None:  # perhaps its own end, which came first; the reader stopped before
                last = EngineCoreOutput(output.stream_id, output.position, b"", stream.aborted, times=output.times)
                self.finish(stream, last)
            return
        tokens = unpack_ids(output.token_ids)
        repeated = len(stream.received) - output.position
        if repeated < 0:
            self._break(stream)
        elif repeated < len(tokens) or output.finish_reason is not None or not stream.started:
            self._store(stream, output, tokens[repeated:], repeated)
            if output.finish_reason is not None:
                self.finish(stream, _without_vector(output))
            else:
                stream.request.note_output(stream)

    def _store(self, stream: Stream, output: EngineCoreOutput, tokens: "array[int]", repeated: int) -> None:
        for packed in (output.logprobs, output.prompt_logprobs):
            if packed is not None:
                check_shape(packed)
        logprobs = output.logprobs
        if logprobs is not None:
            if num_rows(logprobs) != len(tokens) + repeated:
                raise ValueError(f"stream {output.stream_id}: {len(tokens)} tokens, {num_rows(logprobs)} with logprobs")
            logprobs = rows_from(logprobs, repeated) if repeated else logprobs
        if not stream.started:  # a resumed stream has a second first output; the reader keeps the facts of the first
            stream.started = True
            if output.prompt_logprobs is not None:
                stream.prompt_logprobs = PackedLogprobs()
                self.undelivered.num_bytes += stream.prompt_logprobs.add(output.prompt_logprobs)
            if stream.index == 0:  # the others find the first one's blocks in the prefix cache
                stream.request.num_cached_tokens = output.num_cached_tokens
        if logprobs is not None:
            stream.logprobs = stream.logprobs or PackedLogprobs()
            if tokens:
                self.undelivered.num_bytes += stream.logprobs.add(logprobs)
        if output.pooled is not None:
            stream.pooled = output.pooled
            self.undelivered.num_bytes += len(output.pooled.values)
        stream.received.extend(tokens)
        self.undelivered.num_bytes += TOKEN_BYTES * len(tokens)

    def _break(self, stream: Stream) -> None:
        if stream.request not in self.broken:
            self.broken.append(stream.request)


def _without_vector(output: EngineCoreOutput) -> EngineCoreOutput:
    """The last output of a stream without its vector, which only the reader keeps."""
    return output if output.pooled is None else msgspec.structs.replace(output, pooled=None)
