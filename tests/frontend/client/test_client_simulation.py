"""A session and a toy core under a virtual clock, with every fault that a link can have: streams are still exact."""

import random

import pytest

from paged_serve.frontend.client.session.session import ClientSession
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineHeartbeat,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    Welcome,
)
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.message import Hello, pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import LIMITS, columns, token

LEASE_S = 10.0
STEP_S = 0.1


class ToyCore:
    """One incarnation of a core. Each step sends every live stream the next token of the fake model."""

    def __init__(self, epoch, rng):
        self.epoch, self.rng = epoch, rng
        self.known = False  # whether the client has sent Hello
        self.heard = 0.0
        self.credit = 256
        self.live = {}  # stream id -> [prompt, index, position, limit]

    def receive(self, message, now):
        if isinstance(message, Hello):
            known, self.known, self.heard = self.known, True, now
            return [Welcome(self.epoch, **LIMITS, known=known)]
        if not self.known:
            return []
        self.heard = now
        match message:
            case EngineCoreRequest():
                return self._add(message)
            case AbortRequests(stream_ids=ids, finish_reason=reason):
                return [self._finish(stream_id, reason) for stream_id in ids if stream_id in self.live]
            case OutputsReceived(frames=frames):
                self.credit += frames
        return []

    def _add(self, message):
        if self.rng.random() < 0.1 and message.resume_token_ids:
            return [RequestRejected(message.request_id, RejectReason.OVERLOADED, "full", retry_after_s=0.3)]
        n, limit = message.sampling_params.n, message.sampling_params.max_tokens
        prompt = list(unpack_ids(message.prompt_token_ids))
        resume = [list(unpack_ids(ids)) for ids in message.resume_token_ids] or [[] for _ in range(n)]
        answers = []
        for index, received in enumerate(resume):
            assert received == [token(prompt, index, position) for position in range(len(received))]
            self.live[message.request_id + index] = [prompt, index, len(received), limit]
            if len(received) == limit:
                answers.append(self._finish(message.request_id + index, FinishReason.LENGTH))
        return answers

    def _finish(self, stream_id, reason, ids=()):
        position = self.live.pop(stream_id)[2]
        self.credit -= 1
        return EngineCoreOutputs(self.epoch, 0, outputs=(EngineCoreOutput(stream_id, position, pack_ids(ids), reason),))

    def step(self, now):
        """Frames of one step; none while the credit is spent."""
        queue_is_full = self.rng.random() < 0.002
        if self.known and (queue_is_full or now - self.heard > LEASE_S):
            self.known, self.credit, self.live = False, 256, {}
        if not self.known:
            return []
        frames, rows = [EngineHeartbeat(0)], []
        for stream_id, state in list(self.live.items()):
            prompt, index, position, limit = state
            if self.credit < 2:
                return frames
            if position == limit - 1:
                frames.append(self._finish(stream_id, FinishReason.LENGTH, [token(prompt, index, position)]))
            else:
                rows.append((stream_id, position, token(prompt, index, position)))
                state[2] += 1
        if rows:
            self.credit -= 1
            frames.append(columns(self.epoch, 0, rows))
        return frames


class World:
    """A client, a core, and the faults between them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now = 50.0
        self.epoch = 0
        self.core = ToyCore(0, self.rng)
        self.session = ClientSession(handshake_hello("client", 0, 0), self.now, 1e6, 1e6)
        self.to_core, self.to_client = [], []
        self.core_silent_until = self.client_asleep_until = 0.0
        self.requests = []  # (streams, prompt, read tokens, finish reasons, indices the reader aborted)

    def submit(self):
        n, limit = self.rng.randint(1, 3), self.rng.randint(1, 300)
        prompt = [self.rng.randrange(50) for _ in range(3)]
        streams = self.session.submit(prompt, SamplingParams(n=n, max_tokens=limit))
        self.requests.append((streams, prompt, [[] for _ in range(n)], [None] * n, set()))

    def turn(self, calm):
        self.now += STEP_S
        if self.now >= self.core_silent_until:
            for message in self.to_core:
                self.to_client += self.core.receive(message, self.now)
            self.to_core = []
            self.to_client += self.core.step(self.now)
        if not calm:
            self.break_something()
        if self.now >= self.client_asleep_until:
            for message in self.to_client:
                self.session.receive(message, self.now)
            self.to_client = []
            self.session.tick(self.now)
            self.session.flush(lambda message: self.to_core.append(message) or True)
            self.read()

    def break_something(self):
        match self.rng.randrange(150):
            case 0 | 1:
                self.epoch += 1
                self.to_core = []
                self.to_client += [EngineFailed("restarting")] if self.rng.random() < 0.5 else []
                self.core = ToyCore(self.epoch, self.rng)
            case 2:
                self.core_silent_until = self.now + self.rng.uniform(0, 20)
            case 3:
                self.client_asleep_until = self.now + self.rng.uniform(0, 20)
            case 4 if self.to_client:
                lost = self.rng.choice(self.to_client)
                if isinstance(lost, EngineCoreOutputs) and not lost.outputs:  # a lost end is a lost link
                    self.to_client.remove(lost)
                    self.core.credit += 1
            case 5 if self.to_client:
                again = self.rng.choice(self.to_client)
                if isinstance(again, EngineCoreOutputs):
                    self.to_client.append(again)
            case 6 | 7 | 8 | 11 | 12 | 13:
                self.submit()
            case 9 | 10 if self.requests:
                streams, *_, aborted = self.rng.choice(self.requests)
                index = self.rng.randrange(len(streams.streams))
                self.session.abort(streams, index)
                aborted.add(index)

    def read(self):
        for streams, _, tokens, reasons, _ in self.requests:
            while self.rng.random() < 0.9 and (delta := streams.take()) is not None:
                assert reasons[delta.index] is None
                tokens[delta.index] += delta.token_ids
                reasons[delta.index] = delta.finish_reason


@pytest.mark.parametrize(
    "seed", [*range(24), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(24, 50))]
)
def test_streams_are_exact_under_every_fault(seed):
    world = World(seed)
    for _ in range(4):
        world.submit()
    for _ in range(600):
        world.turn(calm=False)
    for _ in range(3000):
        if all(streams.done for streams, *_ in world.requests):
            break
        world.turn(calm=True)
    for _ in range(150):  # until the last silence is over and the core has heard of every abort
        world.turn(calm=True)
    for streams, prompt, tokens, reasons, aborted in world.requests:
        assert streams.error is None
        for index, ids in enumerate(tokens):
            assert ids == [token(prompt, index, position) for position in range(len(ids))]
            if reasons[index] == FinishReason.LENGTH:
                assert len(ids) == streams.sampling_params.max_tokens
            else:
                assert (reasons[index], index in aborted) == (FinishReason.ABORT, True)
    assert not world.session.table.requests
    assert not world.core.live
