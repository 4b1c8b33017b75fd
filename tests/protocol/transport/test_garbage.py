"""Arbitrary bytes on the sockets: no invalid message is delivered, and the next valid peer is served."""

import contextlib
import itertools
import os
import random
import socket
import struct
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from paged_serve.protocol.messages.engine_core import ClientHeartbeat
from paged_serve.protocol.messages.handshake import UNIONS, handshake_hello, identity
from paged_serve.protocol.transport.authentication import USER, ZAP_DOMAIN
from paged_serve.protocol.transport.channel import DealerChannel, RouterChannel
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, ENGINE_SOCKET, WORKERS_SOCKET, endpoint

from ..frame_fuzz import ROUND_FRAMES, Outcomes, fuzz_round, samples
from ..frame_mutator import FrameMutator, token_starts

CI_COUNT = 20_000
NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_TEST_FUZZ_COUNT", 1_000_000))
NIGHTLY_FRAMES = 10 * NIGHTLY_COUNT  # scripts/faults/fuzz_frames.py does a hundred million
COUNTS = [CI_COUNT, pytest.param(NIGHTLY_COUNT, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
BOUND = {  # socket file -> (what its owner receives, what it sends)
    ENGINE_SOCKET: ("client to engine core", "engine core to client"),
    WORKERS_SOCKET: ("worker to engine core", "engine core to worker"),
    CONTROL_SOCKET: ("child to supervisor", "supervisor to child"),
}
BATCH = 4000  # frames; divides the counts
HEARTBEAT = msgspec.msgpack.encode(["ClientHeartbeat"])


def greeting(mechanism: bytes, *, version: bytes = b"\x03\x01", as_server: bool = False) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f" + version + mechanism.ljust(20, b"\0") + bytes([as_server]) + bytes(31)


def command(name: bytes, body: bytes) -> bytes:
    content = bytes([len(name)]) + name + body
    return b"\x04" + bytes([len(content)]) + content


def plain_hello(user: bytes, password: bytes) -> bytes:
    return command(b"HELLO", bytes([len(user)]) + user + bytes([len(password)]) + password)


READY = b"\x0bSocket-Type\x00\x00\x00\x06DEALER"
FRAME = b"\x00" + bytes([len(HEARTBEAT)]) + HEARTBEAT
ATTACKS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    "http upgrade": b"POST /v1/completions HTTP/1.1\r\nContent-Length: 4096\r\n\r\n" + b"A" * 4096,
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
    "zmtp 1.0, no identity": b"\x01\x00" + (bytes([1 + len(HEARTBEAT)]) + b"\x00" + HEARTBEAT) * 50,
    "zmtp 1.0, identity": b"\x06\x00hello" + (bytes([1 + len(HEARTBEAT)]) + b"\x00" + HEARTBEAT) * 50,
    "zmtp 1.0, long frames": b"\x01\x00" + b"\xff" + struct.pack(">Q", 1 + len(HEARTBEAT)) + b"\x00" + HEARTBEAT,
    "zmtp 1.0, endless frame": b"\x01\x00" + b"\xff" + b"\x7f" * 8 + b"\x00" * 4096,
    "zmtp 2.0": b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00\x00" + FRAME * 50,
    "zmtp 3 null": greeting(b"NULL") + command(b"READY", READY) + FRAME * 50,
    "zmtp 3 curve": greeting(b"CURVE") + bytes(200),
    "zmtp 3 unknown mechanism": greeting(b"GSSAPI") + FRAME,
    "zmtp 9": greeting(b"PLAIN", version=b"\x09\x09") + FRAME,
    "as server": greeting(b"PLAIN", as_server=True) + command(b"WELCOME", b"") + FRAME,
    "frames before hello": greeting(b"PLAIN") + FRAME * 50,
    "initiate before hello": greeting(b"PLAIN") + command(b"INITIATE", READY) + FRAME * 50,
    "wrong password": greeting(b"PLAIN") + plain_hello(USER, b"x") + command(b"INITIATE", READY) + FRAME * 50,
    "no password": greeting(b"PLAIN") + plain_hello(b"", b"") + command(b"INITIATE", READY) + FRAME * 50,
    "password too long for its field": greeting(b"PLAIN") + command(b"HELLO", b"\x01a\xffx") + FRAME,
    "error, then frames": greeting(b"PLAIN") + command(b"ERROR", b"\x03no!") + FRAME * 50,
    "endless command": greeting(b"PLAIN") + b"\x06" + b"\x7f" * 8 + b"A" * 4096,
    "silence": b"",
}

HOSTILE_BYTES = [0, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC4, 0xCB, 0xD9, 0xDC, 0xDD, 0xDF, 0xFF]


def mutate(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few random edits: bits, bytes, lengths, cuts, and parts of other messages."""
    edited = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(edited) + 1)
        match rng.randrange(7):
            case 0 if at < len(edited):
                edited[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(edited):
                edited[at] = rng.choice(HOSTILE_BYTES)
            case 2:
                edited[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                del edited[at : at + rng.randint(1, 8)]
            case 4:
                del edited[at:]
            case 5:
                other = rng.choice(others)
                edited[at:at] = other[rng.randrange(len(other)) :]
            case 6:
                edited[at : at + 9] = rng.choice(
                    [b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8, b"\xdd\x7f\xff\xff\xff"]
                )
    return bytes(edited)


class Bound:
    """One of our bound sockets, with its real union and an accepted client."""

    def __init__(self, link, name: str):
        receives, sends = BOUND[name]
        self.link = link
        self.path = f"{link.run_dir}/{name}"
        if name == ENGINE_SOCKET:
            self.router = link.router
        else:
            self.router = RouterChannel(link.context, endpoint(link.run_dir, name), UNIONS[receives])
            link.opened.append(self.router)
        self.sends = UNIONS[sends]

    def inject(self, blob: bytes) -> None:
        # Disconnected while data was still being sent, as expected.
        with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.connect(self.path)  # waits where the backlog is full
            raw.sendall(blob)

    def drain(self) -> int:
        """Messages delivered so far."""
        delivered = 0
        while self.router.receive() is not None:
            delivered += 1
        return delivered

    def assert_serves_the_next_client(self) -> None:
        name = identity("client", 0, 0)
        client = DealerChannel(self.link.context, f"ipc://{self.path}", self.link.secret, name, self.sends)
        assert client.wait_connected(60), "the next client was not accepted"
        hello = handshake_hello("client", 0, 0)
        assert client.send(hello)
        self.router.socket.poll(60_000)
        assert self.router.receive() == (name, hello)
        client.close()


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_known_attack_delivers_anything(link, name, attack):
    bound = Bound(link, name)
    for _ in range(5):
        bound.inject(ATTACKS[attack])
    with socket.socket(socket.AF_UNIX) as patient:  # also when it stays to wait for an answer
        patient.connect(bound.path)
        patient.sendall(ATTACKS[attack])
        bound.assert_serves_the_next_client()
        assert bound.drain() == 0
    assert bound.router.num_invalid == 0


@pytest.mark.parametrize("right", [True, False])
def test_an_attackers_conversation_is_valid_except_for_the_password(link, right):
    """The same bytes with the right password are delivered, so the wrong password is the reason that they are not."""
    password = link.secret.encode() if right else b"x" * len(link.secret)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(link.endpoint.removeprefix("ipc://"))
        raw.sendall(greeting(b"PLAIN") + plain_hello(USER, password))
        received = b""
        while b"WELCOME" not in received and (more := raw.recv(4096)):
            received += more
        assert (b"WELCOME" in received) == right
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(command(b"INITIATE", READY) + FRAME)
        delivered = link.deliver(timeout_s=60 if right else 0.2)
    assert (delivered is not None and delivered[1] == ClientHeartbeat()) == right


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", BOUND)
def test_no_random_or_mutated_blob_delivers_anything(link, name, count):
    if count == CI_COUNT:
        count //= len(BOUND)
    bound, rng = Bound(link, name), random.Random(name)
    attacks = [attack or b"\0" for attack in ATTACKS.values()]
    started = time.monotonic()
    for number in range(count):
        if rng.random() < 0.5:
            blob = rng.randbytes(rng.choice([1, 10, 64, 500, 4096]))
        else:
            blob = mutate(rng.choice(attacks), rng, attacks)
        bound.inject(blob)
        if number % 1000 == 0:
            assert bound.drain() == 0
    bound.assert_serves_the_next_client()
    assert bound.drain() == 0
    assert bound.router.num_invalid == 0
    print(f"{name}: {count} blobs in {time.monotonic() - started:.1f} s, 0 delivered")


@pytest.mark.parametrize("seed", range(3))
def test_token_starts_finds_every_msgpack_token(seed):
    rng = random.Random(seed)
    for frame in samples(list(UNIONS), rng):
        firsts = [frame[start] for start in token_starts(frame)]
        scalars = [first for first in firsts if not (0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF)]
        assert scalars == [msgspec.msgpack.encode(value)[0] for value in leaves(msgspec.msgpack.decode(frame))]


def leaves(value: object) -> Iterator[object]:
    parts = itertools.chain(*value.items()) if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        yield value
        return
    for part in parts:
        yield from leaves(part)


def test_the_same_seed_damages_frames_in_the_same_way():
    frames = samples(list(UNIONS), random.Random(0))
    first, again, other = (FrameMutator(frames, frames, seed).mutate(4000) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first) - set(frames)) > 3500


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(NIGHTLY_FRAMES, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
def test_no_damaged_frame_raises_and_what_decodes_is_valid(count):
    total, started = Outcomes(), time.monotonic()
    while total.frames < count:
        total.add(fuzz_round(total.frames, min(count, ROUND_FRAMES)))
    # Text that is not UTF-8 is a UnicodeDecodeError to msgspec until 0.22, and a DecodeError since.
    assert set(total.refused) - {"UnicodeDecodeError"} == {"ValidationError", "DecodeError"}
    rare = ("requests accepted",) if count > 1_000_000 else ()  # about three of 100,000 frames
    assert min(total.behind[what] for what in ("requests refused", "answers refused", *rare)) > 0
    print(f"{total}, {time.monotonic() - started:.1f} s")


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_frames_of_an_authenticated_peer_do_not_stop_the_socket(link, count):
    bound = Bound(link, ENGINE_SOCKET)
    frames = samples([BOUND[ENGINE_SOCKET][0]], random.Random(2))
    mutator = FrameMutator(frames, frames, 2)
    peer = link.context.socket(zmq.DEALER)
    link.opened.append(peer)
    peer.linger, peer.plain_username, peer.plain_password, peer.zap_domain = 0, USER, link.secret.encode(), ZAP_DOMAIN
    peer.connect(link.endpoint)
    delivered, started = 0, time.monotonic()
    for _ in range(0, count, BATCH):
        for frame in mutator.mutate(BATCH):
            while not peer.poll(0, zmq.POLLOUT):
                delivered += bound.drain()
            peer.send(frame)
    while delivered + bound.router.num_invalid < count:
        assert bound.router.socket.poll(60_000), "frames were lost"
        delivered += bound.drain()
    bound.assert_serves_the_next_client()
    print(f"{count} damaged frames sent in {time.monotonic() - started:.1f} s, {delivered} still valid, 0 lost")
