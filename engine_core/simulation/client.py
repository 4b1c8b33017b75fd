"""A client that knows the expected tokens of each of its streams and checks every message."""

import math
import random
from collections import deque
from dataclasses import dataclass, field

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.errors import NO_TOKEN, NO_VECTOR
from paged_serve.protocol.messages.engine_core import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    RejectReason,
    RequestRejected,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids, unpack_int64
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..engine.endings import DEADLY
from ..requests.stopping import repeats
from .correct_results import extend_hash, masked_ids, pooling_mark, sample, start_hash, vector
from .fake_workers.failures import is_failure
from .scenarios.adapters import may_be_refused
from .scenarios.scenario import EOS, Scenario, capacity_tokens


@dataclass(slots=True)
class Stream:
    """The expected output of a stream, and what was received."""

    request: EngineCoreRequest
    index: int
    seed: int
    expected: list[int]
    expected_reason: FinishReason
    received: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    abort_reason: FinishReason | None = None  # that the client requested
    has_prompt_logprobs: bool = False
    has_expired: bool = False
    vector: Pooled | None = None  # expected instead of tokens


def output_alone(
    request: EngineCoreRequest, seed: int, token_limit: int, vocab_size: int
) -> tuple[list[int], FinishReason]:
    """A sequence's expected output, computed without the engine."""
    params, prefix, output = request.sampling_params, _start_of(request), list[int]()
    for token in unpack_ids(request.prompt_token_ids):
        prefix = extend_hash(prefix, token)
    eos_ids = frozenset[int]() if params.ignore_eos else frozenset({EOS})
    while True:
        token = sample(prefix, seed, len(output), vocab_size, masked_ids(params, eos_ids, len(output)))
        prefix = extend_hash(prefix, token)
        output.append(token)
        if (token in eos_ids or token in params.stop_token_ids) and len(output) > params.min_tokens:
            return output, FinishReason.STOP
        if len(request.prompt_token_ids) // 4 + len(output) == token_limit:
            return output, FinishReason.LENGTH
        detection = params.repetition_detection
        if detection is not None and len(output) >= params.min_tokens and repeats(output, detection):
            return output, FinishReason.REPETITION


def pooling_stream(request: EngineCoreRequest) -> Stream:
    """The expected vector of a pooling request, computed without the engine."""
    assert request.pooling_params is not None
    prefixes, prefix = list[int](), _start_of(request)
    for token in unpack_ids(request.prompt_token_ids):
        prefix = extend_hash(prefix, token)
        prefixes.append(prefix)
    answer = vector(prefixes, request.pooling_params)
    return Stream(request, 0, pooling_mark(prefix), [], FinishReason.STOP, vector=answer)


def _start_of(request: EngineCoreRequest) -> int:
    return start_hash("" if request.adapter is None else request.adapter.digest)


class SimulatedClient:
    """Reads its messages at its own pace, acknowledges them, and may fall silent permanently."""

    def __init__(self, name: bytes, scenario: Scenario):
        self.name = name
        self.streams: dict[int, Stream] = {}
        self.deadlines: dict[int, float] = {}  # by request id
        self.inbox: deque[EngineCoreOutputs | RequestRejected] = deque()
        self.is_silent = False
        self.epoch = 0
        self.num_errors = 0
        self.num_poisoned = 0
        self.num_refused = 0
        self.num_failed = 0
        self.num_vectors = 0
        self._scenario = scenario

    def next_turn(self, request: EngineCoreRequest, rng: random.Random) -> EngineCoreRequest:
        """`request` with the prompt and output of an earlier one before its prompt, as in a chat."""
        streams = [stream for stream in self.streams.values() if stream.received]
        if not streams or request.pooling_params is not None:
            return request
        before = rng.choice(streams)
        prompt = before.request.prompt_token_ids + pack_ids(before.received) + request.prompt_token_ids
        longest = TOKEN_BYTES * (self._scenario.facts.max_model_len - 1)
        return msgspec.structs.replace(request, prompt_token_ids=prompt[:longest], cache_salt=before.request.cache_salt)

    def submitted(self, request: EngineCoreRequest, now: float, seeds: list[int]) -> None:
        """Record an accepted request; `seeds` are those of its sequences."""
        self.deadlines[request.request_id] = now + request.ttl_s if request.ttl_s else math.inf
        facts, params = self._scenario.facts, request.sampling_params
        if request.pooling_params is not None:
            self.streams[request.request_id] = pooling_stream(request)
            return
        prompt_len = len(request.prompt_token_ids) // 4
        if params.max_tokens is None:
            token_limit = min(facts.max_model_len, capacity_tokens(self._scenario) + 1)
        else:
            token_limit = min(facts.max_model_len, prompt_len + params.max_tokens)
        for index, seed in enumerate(seeds):
            output, reason = output_alone(request, seed, token_limit, facts.vocab_size)
            self.streams[request.request_id + index] = Stream(request, index, seed, output, reason)

    @property
    def num_tokens_unfinished(self) -> int:
        """Tokens of streams that have not ended."""
        return sum(len(self.streams[stream_id].received) for stream_id in self.unfinished())

    def unfinished(self) -> list[int]:
        return [stream_id for stream_id, stream in self.streams.items() if stream.finish_reason is None]

    def unfinished_requests(self, now: float) -> list[EngineCoreRequest]:
        """The requests to send to a new core, with the tokens received so far; finished siblings are included."""
        requests = {self.streams[stream_id].request.request_id: stream_id for stream_id in self.unfinished()}
        again = []
        for request_id, stream_id in requests.items():
            old = self.streams[stream_id].request
            siblings = [self.streams[request_id + index] for index in range(old.sampling_params.n)]
            again.append(
                EngineCoreRequest(
                    request_id,
                    old.prompt_token_ids,
                    old.sampling_params,
                    old.priority,
                    old.cache_salt,
                    tuple(pack_ids(sibling.received) for sibling in siblings),
                    old.tenant,
                    old.weight,
                    self._ttl_left(request_id, siblings, now),
                    pooling_params=old.pooling_params,
                    adapter=old.adapter,
                    resumed=True,
                )
            )
        return again

    def repeated_requests(self, rng: random.Random, now: float) -> list[EngineCoreRequest]:
        """The unfinished requests as another client repeats them; some with other parameters for the same prompt."""
        again = []
        for request in self.unfinished_requests(now):
            params = request.sampling_params
            if rng.random() < 0.3 and request.pooling_params is None:
                params = msgspec.structs.replace(params, seed=rng.randrange(12))
            again.append(msgspec.structs.replace(request, sampling_params=params, resume_token_ids=(), resumed=False))
        return again

    def take(self) -> int:
        """Read the next message; returns the frames to acknowledge."""
        message = self.inbox.popleft()
        if isinstance(message, RequestRejected):
            self._expire(message)
            return 0
        assert message.epoch == self.epoch, "a message from a former core"
        named = [output.stream_id for output in message.outputs]
        if message.columns is not None:
            columns = message.columns
            ids, first_positions = unpack_int64(columns.stream_ids), unpack_ids(columns.first_positions)
            named += ids
            for stream_id, first, token in zip(ids, first_positions, unpack_ids(columns.token_ids), strict=True):
                self._receive(self.streams[stream_id], first + columns.advance, [token])
        assert len(named) == len(set(named)), "a stream is named twice in one message"
        for output in message.outputs:
            self._check_output(self.streams[output.stream_id], output)
        return 1

    def _ttl_left(self, request_id: int, siblings: list[Stream], now: float) -> float:
        deadline = self.deadlines[request_id]
        if deadline == math.inf or any(sibling.received for sibling in siblings):
            return 0.0
        return max(0.001, deadline - now)

    def _expire(self, message: RequestRejected) -> None:
        first = self.streams[message.request_id]
        is_refused = may_be_refused(first.request, message.message)
        has_failed = is_failure(self._scenario, message.message, message.param)
        if is_refused or has_failed:
            self.num_refused += is_refused
            self.num_failed += has_failed
        else:
            assert message.reason is RejectReason.EXPIRED, f"rejected after acceptance: {message}"
            assert self.deadlines[message.request_id] < math.inf, "no time limit was set"
        for index in range(first.request.sampling_params.n):
            stream = self.streams[message.request_id + index]
            assert not stream.received, "expired after its first token"
            if not (is_refused or has_failed) or stream.finish_reason is None:
                stream.finish_reason, stream.has_expired = FinishReason.ABORT, True

    def _receive(self, stream: Stream, position: int, tokens: list[int]) -> None:
        if stream.finish_reason is not None:
            is_old = stream.has_expired and stream.abort_reason is not None  # it ended after its request had expired
            assert is_old or stream.request.resume_token_ids or self.epoch, "output of a stream that has ended"
            return
        assert position == len(stream.received), f"token {position} came after {len(stream.received)} tokens"
        stream.received += tokens
        assert stream.received == stream.expected[: len(stream.received)], "wrong tokens"

    def _check_output(self, stream: Stream, output: EngineCoreOutput) -> None:
        tokens, params = unpack_ids(output.token_ids).tolist(), stream.request.sampling_params
        if stream.finish_reason is not None:
            return self._receive(stream, output.position, tokens)
        self._receive(stream, output.position, tokens)
        self._check_logprobs(stream, params, output, tokens)
        reason = output.finish_reason
        if reason is None:
            return None
        stream.finish_reason = reason
        assert output.times is not None
        if reason is FinishReason.ERROR:
            if output.error == DEADLY:
                assert stream.seed == self._scenario.poison, "a request that is not the poison failed as poison"
                self.num_poisoned += 1
            elif may_be_refused(stream.request, output.error):
                self.num_refused += 1
            elif is_failure(self._scenario, output.error, output.param):
                self.num_failed += 1
            else:
                assert output.error == (NO_TOKEN if stream.vector is None else NO_VECTOR)
                self.num_errors += 1
        elif stream.vector is not None:
            is_answer = output.pooled == stream.vector and reason is FinishReason.STOP
            assert is_answer or (output.pooled is None and reason is stream.abort_reason), "wrong vector"
            self.num_vectors += is_answer
        elif stream.received == stream.expected and reason is stream.expected_reason:
            last, is_stop = stream.received[-1], reason is FinishReason.STOP
            is_own = last in params.stop_token_ids and (params.ignore_eos or last != EOS)
            assert output.stop_token_id == (last if is_stop and is_own else None), "wrong stop_token_id"
        else:
            assert reason is stream.abort_reason, f"ended by {reason.name} after {len(stream.received)} tokens"
        return None

    def _check_logprobs(
        self, stream: Stream, params: SamplingParams, output: EngineCoreOutput, tokens: list[int]
    ) -> None:
        assert (output.logprobs is not None) == (params.logprobs is not None and bool(tokens)), "logprobs"
        if output.logprobs is not None and params.logprobs is not None:
            ids = unpack_ids(output.logprobs.token_ids).tolist()
            assert ids == [token for token in tokens for _ in range(params.logprobs + 1)], "logprobs of other tokens"
            ranks = unpack_ids(output.logprobs.ranks).tolist()
            assert ranks == list(range(output.position, output.position + len(tokens))), "logprobs out of order"
        if output.prompt_logprobs is not None:
            prompt = unpack_ids(stream.request.prompt_token_ids).tolist()
            assert unpack_ids(output.prompt_logprobs.ranks).tolist() == list(range(1, len(prompt))), "prompt logprobs"
            assert params.prompt_logprobs is not None
            stream.has_prompt_logprobs = True
        if params.prompt_logprobs is not None and stream.received:
            assert stream.has_prompt_logprobs, "tokens arrived before the prompt's logprobs"
