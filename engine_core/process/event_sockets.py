"""The sockets that publish events of the prefix cache: see protocol/kv_events/messages.py for what they carry."""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.kv_events.messages import END_OF_REPLAY, SEQUENCE_BYTES, sequence_bytes
from paged_serve.protocol.messages.config import KVEventsConfig
from paged_serve.protocol.process.lifecycle import ChildProcess
from paged_serve.protocol.transport.channel import SECONDS_PER_ITERATION, Context, Socket

from ..kv.event_log import EventLog, Numbered
from ..kv.kv_events import KVEvents

log = logging.getLogger(__name__)

QUEUE_BATCHES = 10_000  # of each subscriber; one that falls further behind loses batches and asks for a replay
QUEUE_REPLAYED = 16  # batches of a replay that its reader has not taken; further ones wait until it has room
QUEUE_REQUESTS = 16  # of each reader of replays
MAX_REPLAYS = 4  # at a time; a snapshot is in memory until it is sent
RETRY_S = 0.005  # between two looks whether a reader has room again
STALLED_S = 10.0  # a replay whose reader takes nothing for so long is cut
QUIET_S = 10.0  # then a batch without events tells those that have fallen behind that they have
SUBSCRIBED = b"\x01"  # the first byte of a message that reports a subscription
MAX_RECEIVED_BYTES = 64 << 10  # of a frame; topics and requests are short


@dataclass(slots=True)
class _Replay:
    answers: Iterator[list[bytes]]
    taken_s: float  # when the reader last had room
    waiting: list[bytes] | None = None  # an answer for which it had none


class EventSockets:
    """A socket that publishes, and a ROUTER socket for replays. Neither authenticates its peers, as subscribers expect.

    The first is an XPUB socket: a PUB socket that reports subscriptions. A subscriber whose connection broke, by the
    death of the last engine core for instance, does not know what was published meanwhile.
    """

    def __init__(self, context: Context, config: KVEventsConfig):
        self._config = config
        self._topic = config.topic.encode()
        self._pub = _bind(context, zmq.XPUB, "kv_events_endpoint", config.endpoint, QUEUE_BATCHES)
        self._router: Socket | None = None
        if config.replay_endpoint:
            try:
                bound = _bind(context, zmq.ROUTER, "kv_events_replay_endpoint", config.replay_endpoint, QUEUE_REPLAYED)
                self._router = bound
            except ConfigError:
                self.close()
                raise
        self._log: EventLog | None = None
        self._replays: dict[bytes, _Replay] = {}  # by reader
        self.wake_at = math.inf  # when `publish` is to be called even without a message
        self._next_quiet = 0.0

    @property
    def sockets(self) -> list[Socket]:
        """The sockets to poll for reading."""
        return [self._pub] if self._router is None else [self._pub, self._router]

    def begin(self, events: KVEvents) -> None:
        """Publish `events` from now on. Time numbers the batches, so that those of a later engine core are greater."""
        self._log = EventLog(events, time.time_ns(), self._config.buffer_batches)

    def publish(self, now: float) -> None:
        """Publish the events since the last call, and continue replays; `now` in seconds, monotonic.

        After a subscription, and now and then in a quiet time, there is a batch even without events: its number tells
        the subscriber what it has missed.
        """
        if self._log is None:
            return
        is_due = self._has_new_subscriber() or now >= self._next_quiet
        if (batch := self._log.take(time.time(), even_without_events=is_due)) is not None:
            self._next_quiet = now + QUIET_S
            self._pub.send_multipart([self._topic, sequence_bytes(batch[0]), batch[1]], zmq.NOBLOCK)
        if self._router is not None:
            if self._router.poll(0, zmq.POLLIN):  # one per iteration: a snapshot takes time
                self._begin_replay(self._router, self._log, now)
            self._advance_replays(self._router, now)

    def _has_new_subscriber(self) -> bool:
        """Reads subscriptions for at most 2 ms; the rest waits for the next iteration."""
        found, ends = False, time.monotonic() + SECONDS_PER_ITERATION
        while self._pub.poll(0, zmq.POLLIN):
            found |= self._pub.recv().startswith(SUBSCRIBED)
            if time.monotonic() >= ends:
                break
        return found

    def _begin_replay(self, router: Socket, events: EventLog, now: float) -> None:
        """A reader's request replaces its last one; one reader too many, the one that has had no room for longest."""
        match router.recv_multipart():
            case [peer, b"", wanted] if len(wanted) == SEQUENCE_BYTES:
                self._replays.pop(peer, None)
                if len(self._replays) >= MAX_REPLAYS:
                    self._cut(min(self._replays, key=lambda each: self._replays[each].taken_s))
                batches = events.replay(int.from_bytes(wanted, "big"), time.time())
                self._replays[peer] = _Replay(_answers(batches), now)
            case _:
                log.warning("a request to the replay socket of KV events has another form")

    def _advance_replays(self, router: Socket, now: float) -> None:
        """Send what the readers have room for, for at most 2 ms; the rest waits for the next iteration."""
        ends = time.monotonic() + SECONDS_PER_ITERATION
        for peer, replay in list(self._replays.items()):
            while self._send_next(router, peer, replay):
                replay.taken_s = now
                if time.monotonic() >= ends:
                    break
            if peer in self._replays and now - replay.taken_s > STALLED_S:
                self._cut(peer)
        self.wake_at = now + RETRY_S if self._replays else math.inf

    def _send_next(self, router: Socket, peer: bytes, replay: _Replay) -> bool:
        """Send one answer; False: the reader has no room, or the replay is over."""
        answer = replay.waiting or next(replay.answers, None)
        try:
            if answer is not None:
                router.send_multipart([peer, b"", *answer], zmq.NOBLOCK)
                replay.waiting = None
                return True
        except zmq.Again:
            replay.waiting = answer
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # the reader has gone
                raise
        del self._replays[peer]
        return False

    def _cut(self, peer: bytes) -> None:
        del self._replays[peer]
        log.warning(
            "a replay of KV events was cut: its reader is too slow, or more than %d were asked for", MAX_REPLAYS
        )

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)


def _answers(batches: Iterator[Numbered | None]) -> Iterator[list[bytes]]:
    """Without the end, if a batch was dropped from the log before the reader had room for it."""
    for batch in batches:
        if batch is None:
            log.warning("a replay of KV events was cut: its reader is slower than new batches come")
            return
        yield [sequence_bytes(batch[0]), batch[1]]
    yield [END_OF_REPLAY, b""]


def open_event_sockets(child: ChildProcess) -> EventSockets | None:
    """None if no events are configured. Raises ConfigError if an address is taken, but not in a core that replaces
    another, which goes on without events: requests are to be continued."""
    if not child.config.kv_events.endpoint:
        return None
    try:
        return EventSockets(child.context, child.config.kv_events)
    except ConfigError as error:
        if not child.epoch:
            raise
        log.error("this engine core publishes no KV events; the next one tries again: %s", error)
        return None


def _bind(context: Context, kind: int, field: str, endpoint: str, hwm: int) -> Socket:
    socket = context.socket(kind)
    socket.sndhwm = hwm
    socket.maxmsgsize = MAX_RECEIVED_BYTES
    if kind == zmq.ROUTER:
        socket.rcvhwm = QUEUE_REQUESTS
        socket.router_mandatory = True  # a full queue would drop batches, and perhaps not the end of their replay
    if kind == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # report a second subscription to the same topic, too
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(
            f"{field}={endpoint!r} cannot be bound: {error.strerror}; use tcp://ADDRESS:PORT with a free "
            "port, or ipc://PATH"
        ) from error
    return socket
