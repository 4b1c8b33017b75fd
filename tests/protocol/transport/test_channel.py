"""Channels over real unix sockets: only authenticated peers connect, no silent loss, no invalid message delivered."""

import itertools
import os
import stat
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from paged_serve.protocol.errors import ConfigError, ProtocolError
from paged_serve.protocol.messages.engine_core import (
    ClientHeartbeat,
    EngineCoreRequest,
    EngineHeartbeat,
    OutputsReceived,
    ToEngineCore,
)
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.transport import channel
from paged_serve.protocol.transport.authentication import USER, ZAP_DOMAIN, Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context, take
from paged_serve.protocol.transport.run_dir import endpoint


def connected(link, **options):
    """A dealer known to the bound end, and its name there."""
    dealer = link.dealer(**options)
    assert dealer.wait_connected(60)
    assert dealer.send(handshake_hello("client", 0, 0))
    peer, _ = link.deliver()
    return dealer, peer


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.002)


def raw_dealer(link):
    """An authenticated peer that may send any frames."""
    socket = link.context.socket(zmq.DEALER)
    socket.linger = 0
    socket.plain_username, socket.plain_password, socket.zap_domain = USER, link.secret.encode(), ZAP_DOMAIN
    socket.connect(link.endpoint)
    link.opened.append(socket)
    return socket


def test_messages_pass_both_ways_between_authenticated_peers(link):
    dealer, peer = connected(link)
    request = EngineCoreRequest(7, pack_ids([1, 2, 3]), SamplingParams(temperature=0.5))
    assert dealer.send(request)
    assert link.deliver() == (peer, request)
    assert link.router.send(peer, EngineHeartbeat(5))
    assert dealer.receive(timeout_s=60) == EngineHeartbeat(5)


@pytest.mark.parametrize("secret", ["wrong", "correct horse battery staple!", "correct horse battery stapl", "\0"])
def test_a_wrong_password_delivers_nothing_and_the_right_one_still_does(link, secret):
    intruder = link.dealer(secret=secret)
    wait_until(lambda: link.authenticator.num_denied)
    assert not intruder.send(ClientHeartbeat())
    assert link.router.receive() is None
    connected(link)


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ, zmq.ROUTER])
def test_a_peer_without_a_password_delivers_nothing(link, kind):
    with link.context.socket(kind) as bare:
        bare.linger = 0
        bare.connect(link.endpoint)
        if kind != zmq.ROUTER:
            bare.send(msgspec.msgpack.encode(ClientHeartbeat()))
        connected(link)
        assert link.deliver(timeout_s=0.1) is None


def test_without_an_authenticator_no_peer_is_accepted(link):
    link.authenticator.close()
    dealer = link.dealer()
    assert not dealer.wait_connected(0.2)
    assert link.router.receive() is None


def test_nothing_is_queued_for_an_absent_peer(link):
    link.endpoint = endpoint(link.run_dir, "absent.sock")
    assert not link.dealer().send(ClientHeartbeat())


def test_sending_to_an_unknown_or_departed_peer_is_reported(link):
    assert not link.router.send(b"unknown", EngineHeartbeat(0))
    dealer, peer = connected(link)
    dealer.close()
    wait_until(lambda: not link.router.send(peer, EngineHeartbeat(0)))


def test_a_full_queue_refuses_and_loses_nothing_towards_the_bound_end(link):
    dealer, peer = connected(link)
    sent = 0
    while dealer.wait_connected(0.05):  # the other side's queue fills behind our own
        sent += dealer.send(OutputsReceived(sent))
        assert sent < 100_000, "the queue is not bounded"
    assert not dealer.send(OutputsReceived(sent))
    for expected in range(sent):
        assert link.deliver() == (peer, OutputsReceived(expected))
    assert link.router.receive() is None
    assert dealer.wait_connected(60)
    assert dealer.send(ClientHeartbeat())


def test_a_full_queue_refuses_and_loses_nothing_towards_the_connecting_end(link):
    dealer, peer = connected(link)
    sent = 0
    while link.router.send(peer, EngineHeartbeat(sent)):
        sent += 1
        assert sent < 100_000, "the queue is not bounded"
    for expected in range(sent):
        assert dealer.receive(timeout_s=60) == EngineHeartbeat(expected)
    assert dealer.receive() is None


def test_one_stopped_reader_does_not_delay_another(link):
    _, stopped = connected(link)
    reader, peer = connected(link)
    while link.router.send(stopped, EngineHeartbeat(0)):
        pass
    assert link.router.send(peer, EngineHeartbeat(1))
    assert reader.receive(timeout_s=60) == EngineHeartbeat(1)


def test_a_frame_over_the_limit_disconnects_only_its_sender(link):
    good, good_peer = connected(link)
    bad = raw_dealer(link)
    bad.send(msgspec.msgpack.encode(ClientHeartbeat()))
    assert link.deliver() is not None
    bad.send(bytes(5 << 20))
    assert link.deliver(timeout_s=0.2) is None
    assert link.router.num_invalid == 0
    assert good.send(ClientHeartbeat())
    assert link.deliver() == (good_peer, ClientHeartbeat())


def test_a_message_over_the_limit_raises_and_is_not_sent(link):
    dealer, peer = connected(link)
    big = EngineCoreRequest(1, bytes(4 << 20), SamplingParams())
    with pytest.raises(ProtocolError, match=r"takes 41943.. bytes; this link carries 4194304"):
        dealer.send(big)
    assert dealer.send(ClientHeartbeat())
    assert link.deliver() == (peer, ClientHeartbeat())


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_a_message_of_several_frames_is_dropped_whole(link, count):
    raw = raw_dealer(link)
    frame = msgspec.msgpack.encode(ClientHeartbeat())
    raw.send_multipart([frame] * count)
    raw.send(frame)
    first, second = link.deliver(), link.deliver(timeout_s=0.1)
    assert first is not None
    assert first[1] == ClientHeartbeat()
    assert second is None
    assert link.router.num_invalid == 1


def test_frames_that_do_not_decode_are_counted_and_the_next_good_one_is_delivered(link):
    raw = raw_dealer(link)
    nan = {"temperature": float("nan")}
    for frame in (b"", b"\xc1", b"GET / HTTP/1.1", b"\x91" * 100_000, b"\x92\xa5Hello\xff"):
        raw.send(frame)
    raw.send(msgspec.msgpack.encode(["EngineCoreRequest", 1, b"abcd", nan]))
    raw.send(msgspec.msgpack.encode(["EngineCoreRequest", 1, b"abcde", {}]))
    raw.send(msgspec.msgpack.encode(["EngineHeartbeat", 1]))  # a message, but of the other direction
    raw.send(msgspec.msgpack.encode(["EngineCoreRequest", 1, b"abcd", {}]))
    delivered = link.deliver()
    while delivered is None:
        delivered = link.deliver()
    assert delivered[1] == EngineCoreRequest(1, b"abcd", SamplingParams())
    assert link.router.num_invalid == 8


@pytest.mark.parametrize(("ms_per_frame", "most"), [(0, 64), (1, 3)])
def test_a_flood_of_invalid_frames_ends_an_iteration_after_64_or_2_ms(link, monkeypatch, ms_per_frame, most):
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * ms_per_frame / 1000)
    raw, sent = raw_dealer(link), 80
    for _ in range(sent):
        raw.send(b"\xc1")

    def take_and_wait(socket, expected):
        frames = take(socket, expected)
        assert socket.poll(60_000)  # the thread of the socket may be late, and an iteration ends where nothing waits
        return frames

    assert link.router.socket.poll(60_000)
    with monkeypatch.context() as patched:
        patched.setattr(channel, "time", clock)
        patched.setattr(channel, "take", take_and_wait)
        assert link.router.receive() is None
    assert link.router.num_invalid == most
    while link.router.num_invalid < sent:
        assert link.router.socket.poll(60_000)
        assert link.router.receive() is None


def test_a_second_connection_cannot_take_over_an_identity(link):
    first, peer = connected(link, identity=b"worker:0:0:1234")
    thief = link.dealer(identity=b"worker:0:0:1234")
    thief.wait_connected(60)
    thief.send(ClientHeartbeat())
    assert link.deliver(timeout_s=0.2) is None
    assert link.router.send(peer, EngineHeartbeat(1))
    assert first.receive(timeout_s=60) == EngineHeartbeat(1)
    assert thief.receive(timeout_s=0.1) is None


def test_a_client_finds_the_next_server_on_the_same_path(link):
    dealer, _ = connected(link)
    link.router.close()
    wait_until(lambda: not dealer.takes_messages())
    assert not dealer.send(ClientHeartbeat())
    link.router = RouterChannel(link.context, link.endpoint, ToEngineCore)
    link.opened.append(link.router)
    assert dealer.wait_connected(60)
    assert dealer.takes_messages()
    assert dealer.send(ClientHeartbeat())
    assert link.deliver() is not None


def test_receive_waits_for_the_given_time(link):
    dealer, peer = connected(link)
    started = time.monotonic()
    assert dealer.receive(timeout_s=0.05) is None
    assert time.monotonic() - started >= 0.05
    timer = threading.Timer(0.05, link.router.send, (peer, EngineHeartbeat(1)))
    timer.start()
    assert dealer.receive(timeout_s=None) == EngineHeartbeat(1)
    timer.join()


def test_messages_sent_before_closing_with_a_linger_arrive(link):
    dealer, peer = connected(link)
    for count in range(50):
        assert dealer.send(OutputsReceived(count))
    dealer.close(linger_s=30)
    for count in range(50):
        assert link.deliver() == (peer, OutputsReceived(count))


def test_only_this_user_can_open_the_socket_file(link):
    mode = stat.S_IMODE(os.stat(link.endpoint.removeprefix("ipc://")).st_mode)
    assert mode & 0o077 == 0


def test_binding_leaves_the_umask_as_it_was(run_dir):
    before = os.umask(0o022)
    try:
        with new_context() as context:
            RouterChannel(context, f"ipc://{run_dir}/a.sock", ToEngineCore).close()
            for name, reason in (("x" * 100, "more than 100 bytes"), ("missing/a.sock", "No such file")):
                with pytest.raises(ConfigError, match=reason):
                    RouterChannel(context, f"ipc://{run_dir}/{name}", ToEngineCore)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        ("", 0o600, "has 0 characters"),
        (" \n", 0o600, "has 0 characters"),
        ("x" * 256, 0o600, "has 256 characters"),
        ("secret", 0o644, "other users can read it"),
        (None, 0o600, "is a server running"),
    ],
)
def test_an_unsafe_secret_is_refused(tmp_path, content, mode, reason):
    if content is not None:
        (tmp_path / "secret").write_text(content)
        (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=reason):
        read_secret(str(tmp_path))


def test_an_authenticator_refuses_an_empty_secret_and_ends_with_its_context():
    context = new_context()
    with pytest.raises(ConfigError):
        Authenticator(context, "")
    authenticator = Authenticator(context, "secret")
    context.term()
    authenticator.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "authenticator"]


def test_identity_names_role_index_and_epoch():
    assert identity("worker", 2, 3).startswith(b"worker:2:3:")
