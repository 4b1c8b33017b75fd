"""The effect of clients on the core's loop: each iteration does little work, and no message ends the loop."""

from collections import deque

import msgspec
import pytest

from paged_serve.engine_core.admission.core_poison import IDLE_TURN_S
from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.engine import CLIENT_LEASE_S, EngineCore
from paged_serve.engine_core.process.client_link import ClientLink
from paged_serve.engine_core.process.client_sockets import ClientSockets
from paged_serve.engine_core.process.invalid_requests import rejection
from paged_serve.engine_core.process.loop_clock import TIMER_S, LoopClock
from paged_serve.engine_core.simulation.links import SimulatedSockets
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.config import Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    CandidatesWithheld,
    ClientHeartbeat,
    CoreFailure,
    EngineCoreRequest,
    EngineHeartbeat,
    RejectReason,
    RequestRejected,
    ToEngineCore,
    Welcome,
)
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.transport.channel import _Codec

from .test_worker_link import Clock

CLIENT = b"lclient"


class LinkUnderTest:
    def __init__(self, failures=(), **scheduler):
        self.sent = []
        self.too_large = ()
        self.ports = SimulatedSockets(self._deliver)
        self.client_link = ClientLink(self.ports, failures, Clock())
        self.engine = EngineCore(
            Config(scheduler=SchedulerConfig(**scheduler)),
            ModelFacts(100, 16, 1000, 1000, frozenset({0})),
            len(failures),
        )
        self.client_link.open(self.engine, 0.0)
        self.say(handshake_hello("client", 0, 0))
        assert isinstance(self.sent.pop()[1], Welcome)

    def _deliver(self, client, message):
        if isinstance(message, self.too_large):
            raise ProtocolError("EngineCoreOutputs takes 5000000 bytes; this link carries 4194304")
        self.sent.append((client, message))
        return True

    def say(self, *messages, now=0.0, client=CLIENT):
        self.ports.to_core.extend((client, message) for message in messages)
        self.client_link.receive(now)


def request(number, **fields):
    return EngineCoreRequest(number, pack_ids([1, 2, 3]), SamplingParams(max_tokens=10), **fields)


def test_an_iteration_ends_after_two_milliseconds_and_the_next_handles_the_rest():
    client_link = LinkUnderTest()
    client_link.say(*(request(number) for number in range(1, 21)))
    taken = len(client_link.engine.clients[CLIENT].streams)
    assert 1 <= taken <= 4
    while client_link.ports.to_core:
        before = len(client_link.ports.to_core)
        client_link.client_link.receive(0.0)
        assert before - len(client_link.ports.to_core) <= 4
    assert len(client_link.engine.clients[CLIENT].streams) == 20


def test_messages_deferred_during_isolation_are_admitted_in_portions():
    client_link = LinkUnderTest(failures=(object(),))
    client_link.say(CandidatesWithheld(1))
    client_link.engine.admission.core_poison.record(1)
    client_link.client_link.advance_isolation(0.0)
    while len(client_link.engine.admission.core_poison._deferred) < 20:
        client_link.say(request(1 + len(client_link.engine.admission.core_poison._deferred)))
    client_link.say(CandidatesWithheld(0))
    client_link.engine.admission.core_poison.record(0)
    assert client_link.client_link.has_work, "no socket will wake the loop"
    client_link.client_link.advance_isolation(0.0)
    assert 1 <= len(client_link.engine.clients[CLIENT].streams) <= 4
    while client_link.client_link.has_work:
        client_link.client_link.advance_isolation(0.0)
    assert len(client_link.engine.clients[CLIENT].streams) == 20


class OnePort:
    def __init__(self, name, count):
        self.left = [(name, number) for number in range(count)]

    def receive(self):
        return self.left.pop(0) if self.left else None


def test_neither_port_starves_the_other_at_one_message_per_iteration():
    ports = ClientSockets.__new__(ClientSockets)
    ports._ports = {b"l": OnePort(b"a", 50), b"r": OnePort(b"b", 50)}
    ports._order = deque(ports._ports)
    taken = [next(ports.receive())[0] for _ in range(20)]
    assert taken.count(b"la") == taken.count(b"rb") == 10
    assert len(list(ports.receive())) == 80


def test_a_halt_of_the_core_does_not_end_the_isolation_turn_of_a_client():
    """It would get no other turn, and its requests would wait forever."""
    link = LinkUnderTest((CoreFailure(0, 0),))
    core_poison = link.engine.admission.core_poison
    link.say(CandidatesWithheld(1))
    core_poison.record(1)
    link.client_link.advance_isolation(0.0)
    assert core_poison.turn_number == 1
    halt_s = 2 * IDLE_TURN_S
    link.client_link.extend_leases(halt_s)
    link.client_link.advance_isolation(halt_s)
    assert core_poison.turn_number == 1, "the candidate may lie unread"
    link.client_link.advance_isolation(halt_s + IDLE_TURN_S + 0.1)
    assert core_poison.turn_number == 0


def test_a_halt_of_the_core_does_not_count_as_client_silence():
    client_link, clock = LinkUnderTest(), LoopClock(0.0)
    client_link.say(ClientHeartbeat(), now=5.0)
    assert clock.begin_iteration(5.0, 5.0) == 0.0
    now = 5.0 + CLIENT_LEASE_S + 10.0
    client_link.client_link.extend_leases(clock.begin_iteration(now, 0.25))
    client_link.client_link.heartbeat(client_link.engine, now, computes=True)
    assert CLIENT in client_link.engine.clients
    client_link.client_link.extend_leases(clock.begin_iteration(now + CLIENT_LEASE_S + TIMER_S, CLIENT_LEASE_S))
    client_link.client_link.heartbeat(client_link.engine, now + CLIENT_LEASE_S + 2 * TIMER_S + 0.3, computes=True)
    assert CLIENT not in client_link.engine.clients, "its own silence is"


def test_a_message_too_large_for_a_frame_disconnects_only_its_client():
    client_link = LinkUnderTest()
    client_link.say(handshake_hello("client", 1, 0), client=b"lother")
    client_link.too_large = RequestRejected
    client_link.say(request(1, priority=3))
    assert client_link.engine.clients.keys() == {b"lother"}
    for now in (1.0, 1.25):
        client_link.client_link.heartbeat(client_link.engine, now, computes=True)
    client, message = client_link.sent[-1]
    assert client == b"lother"
    assert isinstance(message, EngineHeartbeat)


def invalid(message=None, **changes):
    """A message encoded as by a client in another language, and the rejection that results from decoding it."""
    message = request(77) if message is None else message
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    for index, value in changes.items():
        fields[int(index[1:])] = value
    found = []
    codec = _Codec(ToEngineCore, 1 << 22)
    frame = msgspec.msgpack.encode(fields)
    assert codec.decode([b"peer", frame], lambda peer, payload, error: found.append(rejection(payload, error))) is None
    [rejected] = found
    return rejected


def test_a_parameter_out_of_range_is_refused_by_name():
    rejected = invalid(_3={"temperature": 3.0})
    assert (rejected.request_id, rejected.reason, rejected.param) == (77, RejectReason.INVALID, "temperature")
    assert "between 0 and 2" in rejected.message


@pytest.mark.parametrize("changes", [{"_2": b"12345"}, {"_3": {"temprature": 1.0}}, {"_4": "high"}, {"_8": -1.0}])
def test_any_invalid_field_is_refused(changes):
    rejected = invalid(**changes)
    assert (rejected.request_id, rejected.reason) == (77, RejectReason.INVALID)
    assert rejected.message


@pytest.mark.parametrize(
    ("message", "changes"),
    [(None, {"_1": "seventy-seven"}), (None, {"_1": -5}), (None, {"_0": "Unheard"}), (AbortRequests((1,)), {"_1": 5})],
)
def test_a_message_without_a_request_id_gets_no_answer(message, changes):
    assert invalid(message, **changes) is None


def test_an_answer_is_sent_only_to_a_known_client():
    client_link = LinkUnderTest()
    rejected = RequestRejected(77, RejectReason.INVALID, "temperature is 3")
    client_link.ports.rejections.extend([(CLIENT, rejected), (b"lstranger", rejected)])
    client_link.client_link.receive(0.0)
    assert client_link.sent == [(CLIENT, rejected)]
