"""A client program: the real session, its link, and readers that know the correct output of each of their requests."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_serve.engine_core.engine.endings import DEADLY
from paged_serve.engine_core.simulation.client import output_alone, pooling_stream
from paged_serve.engine_core.simulation.scenarios.drawn_requests import draw_params, draw_prompt, for_pooling
from paged_serve.engine_core.simulation.scenarios.scenario import Scenario, capacity_tokens
from paged_serve.frontend.client.request_terms import RequestTerms
from paged_serve.frontend.client.session.dispatch import DEADLY as DEADLY_FOR_CORES
from paged_serve.frontend.client.session.session import ClientSession
from paged_serve.frontend.client.streams.request_streams import RequestStreams
from paged_serve.protocol.errors import NO_TOKEN, NO_VECTOR, InvalidRequest, Overloaded, RequestExpired
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, FromEngineCore, ToEngineCore
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from .core_host import core_dies_of


@dataclass(slots=True)
class Reading:
    """One request as its reader sees it; lists have one entry per sequence."""

    streams: RequestStreams
    tokens: list[list[int]]
    reasons: list[FinishReason | None]
    aborted: set[int] = field(default_factory=set)
    seeds: list[int] = field(default_factory=list)
    given_up: dict[int, str] = field(default_factory=dict)  # the reasons with which the engine ended sequences
    expected: list[tuple[list[int], FinishReason]] = field(default_factory=list)  # set when the core has accepted it
    vector: Pooled | None = None  # the expected vector; None: text is expected
    received_vector: Pooled | None = None

    @property
    def has_expired(self) -> bool:
        return isinstance(self.streams.error, RequestExpired)


class Reader:
    """`to_core` and `to_client` are the messages in the link; `stale` are those of a former core."""

    def __init__(self, name: bytes, scenario: Scenario, now: float, core_poison: int):
        self.name = name
        self._core_poison = core_poison
        self.session = ClientSession(handshake_hello("client", 0, 0), now, 1e9, 1e9)
        self.to_core: deque[ToEngineCore] = deque()
        self.to_client: deque[FromEngineCore] = deque()
        self.stale: deque[FromEngineCore] = deque()
        self.asleep_until = now
        self.readings: list[Reading] = []
        self._scenario = scenario

    def submit(self, rng: random.Random) -> None:
        params, facts = draw_params(rng, self._scenario.facts), self._scenario.facts
        prompt = draw_prompt(rng, facts)
        if rng.random() < self._scenario.pooling:
            request = for_pooling(EngineCoreRequest(0, pack_ids(prompt), params), rng, self._scenario)
            vector, pooling = pooling_stream(request).vector, request.pooling_params
            self._submit(unpack_ids(request.prompt_token_ids), SamplingParams(), rng, pooling).vector = vector
            return
        if params.max_tokens is not None and len(prompt) + params.max_tokens > facts.max_model_len:
            prompt = prompt[: max(1, facts.max_model_len - params.max_tokens)]
        self._submit(prompt, params, rng)

    def _submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        rng: random.Random,
        pooling: PoolingParams | None = None,
    ) -> Reading:
        tenant, weight = rng.choice(self._scenario.tenants)
        timeout_s = rng.uniform(0.1, 5.0) if rng.random() < self._scenario.ttl else 0.0
        terms = RequestTerms(0, rng.choice(("", "", "salt")), tenant, weight, timeout_s)
        streams = self.session.submit(prompt, params, terms, pooling_params=pooling)
        n = params.n
        self.readings.append(Reading(streams, [[] for _ in range(n)], [None] * n))
        return self.readings[-1]

    def taken(self, message: EngineCoreRequest, seeds: list[int]) -> None:
        """Record a request that the core has accepted; its output follows from the seeds."""
        facts, params = self._scenario.facts, message.sampling_params
        reading = next((r for r in self.readings if r.streams.request_id == message.request_id), None)
        if reading is None:  # it has other ids, or has ended, since the message was sent
            return
        if reading.vector is not None:
            assert message.pooling_params is not None, "a request for a vector has become one for text"
            reading.expected, reading.seeds = [([], FinishReason.STOP)], seeds
            return
        prompt_len = len(message.prompt_token_ids) // 4
        limit = capacity_tokens(self._scenario) + 1 if params.max_tokens is None else prompt_len + params.max_tokens
        limit = min(facts.max_model_len, limit)
        expected = [output_alone(message, seed, limit, facts.vocab_size) for seed in seeds]
        assert not reading.expected or reading.expected == expected, "a request has other seeds after a restart"
        reading.expected, reading.seeds = expected, seeds

    def abort(self, rng: random.Random) -> None:
        living = [reading for reading in self.readings if not reading.streams.ended]
        if living:
            reading = rng.choice(living)
            index = rng.randrange(len(reading.tokens))
            self.session.abort(reading.streams, index)
            reading.aborted.add(index)

    def read(self, rng: random.Random) -> None:
        for reading in self.readings:
            while rng.random() < 0.9 and (delta := reading.streams.take()) is not None:
                assert reading.reasons[delta.index] is None, "output after the end"
                reading.tokens[delta.index] += delta.token_ids
                reading.reasons[delta.index] = delta.finish_reason
                assert reading.received_vector is None or delta.pooled is None, "a second vector"
                reading.received_vector = reading.received_vector or delta.pooled
                if delta.finish_reason is FinishReason.ERROR:
                    reading.given_up[delta.index] = delta.error
                if reading.expected:
                    whole, _ = reading.expected[delta.index]
                    received = reading.tokens[delta.index]
                    assert received == whole[: len(received)], f"received {received}, expected {whole}"

    @property
    def is_done(self) -> bool:
        return all(reading.streams.done for reading in self.readings)

    def check(self) -> None:
        """Every stream received its end, and the correct one."""
        for reading in self.readings:
            if (error := reading.streams.error) is not None:
                assert isinstance(error, Overloaded | InvalidRequest) or self._may_expire(reading), error
                assert not any(reading.tokens), f"an accepted request was refused: {error}"
                assert "in use" not in str(error), error
                continue
            for index, (tokens, reason) in enumerate(zip(reading.tokens, reading.reasons, strict=True)):
                assert reason is not None, "a stream never received its end"
                if reason is FinishReason.ERROR:
                    self._check_error(reading, index)
                    continue
                if (reason, index in reading.aborted) != (FinishReason.ABORT, True):
                    assert (tokens, reason) == reading.expected[index]
                    assert reading.received_vector == reading.vector

    def _may_expire(self, reading: Reading) -> bool:
        return reading.has_expired and reading.streams.terms.timeout_s > 0

    def _check_error(self, reading: Reading, index: int) -> None:
        """Only a poison request, or a request with two results that were not finite, may end with an error."""
        if reading.given_up[index] == DEADLY:
            assert reading.seeds[index] == self._scenario.poison, "a request that is not the poison failed as poison"
        elif reading.given_up[index] == DEADLY_FOR_CORES:
            deadly = [core_dies_of(self._core_poison, seed, seed % 4) for seed in reading.seeds]
            assert any(deadly), "a request that is not the poison failed as poison"
        else:
            why = NO_TOKEN if reading.vector is None else NO_VECTOR
            assert reading.given_up[index] == why, reading.given_up[index]
