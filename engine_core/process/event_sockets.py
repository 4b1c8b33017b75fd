"""The sockets that publish events of the prefix cache: see protocol/kv_events/messages.py for what they carry."""

import logging
import time

import zmq

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.kv_events.messages import END_OF_REPLAY, SEQUENCE_BYTES, sequence_bytes
from paged_serve.protocol.messages.config import KVEventsConfig
from paged_serve.protocol.process.lifecycle import ChildProcess
from paged_serve.protocol.transport.channel import SECONDS_PER_ITERATION, Context, Socket

from ..kv.event_log import EventLog
from ..kv.kv_events import KVEvents

log = logging.getLogger(__name__)

QUEUE_BATCHES = 10_000  # of each subscriber; one that falls further behind loses batches and asks for a replay
QUIET_S = 10.0  # then a batch without events tells those that have fallen behind that they have
SUBSCRIBED = b"\x01"  # the first byte of a message that reports a subscription
MAX_RECEIVED_BYTES = 64 << 10  # of a frame; topics and requests are short


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
            hwm = config.buffer_batches + QUEUE_BATCHES
            try:
                self._router = _bind(context, zmq.ROUTER, "kv_events_replay_endpoint", config.replay_endpoint, hwm)
            except ConfigError:
                self.close()
                raise
        self._log: EventLog | None = None
        self._next_quiet = 0.0

    @property
    def sockets(self) -> list[Socket]:
        """The sockets to poll for reading."""
        return [self._pub] if self._router is None else [self._pub, self._router]

    def begin(self, events: KVEvents) -> None:
        """Publish `events` from now on. Time numbers the batches, so that those of a later engine core are greater."""
        self._log = EventLog(events, time.time_ns(), self._config.buffer_batches)

    def publish(self, now: float) -> None:
        """Publish the events since the last call, and answer a replay request; `now` in seconds, monotonic.

        After a subscription, and now and then in a quiet time, there is a batch even without events: its number tells
        the subscriber what it has missed.
        """
        if self._log is None:
            return
        is_due = self._has_new_subscriber() or now >= self._next_quiet
        if (batch := self._log.take(time.time(), even_without_events=is_due)) is not None:
            self._next_quiet = now + QUIET_S
            self._pub.send_multipart([self._topic, sequence_bytes(batch[0]), batch[1]], zmq.NOBLOCK)
        if self._router is not None and self._router.poll(0, zmq.POLLIN):  # one per iteration: a snapshot takes time
            self._answer(self._router, self._log)

    def _has_new_subscriber(self) -> bool:
        """Reads subscriptions for at most 2 ms; the rest waits for the next iteration."""
        found, ends = False, time.monotonic() + SECONDS_PER_ITERATION
        while self._pub.poll(0, zmq.POLLIN):
            found |= self._pub.recv().startswith(SUBSCRIBED)
            if time.monotonic() >= ends:
                break
        return found

    def _answer(self, router: Socket, events: EventLog) -> None:
        match router.recv_multipart():
            case [peer, b"", wanted] if len(wanted) == SEQUENCE_BYTES:
                frames = [
                    [sequence_bytes(number), batch]
                    for number, batch in events.replay(int.from_bytes(wanted, "big"), time.time())
                ]
                try:
                    for each in [*frames, [END_OF_REPLAY, b""]]:
                        router.send_multipart([peer, b"", *each], zmq.NOBLOCK)
                except zmq.Again:
                    log.warning("a replay of %d batches of KV events was cut: its reader is too slow", len(frames))
                except zmq.ZMQError as error:
                    if error.errno != zmq.EHOSTUNREACH:  # the reader has gone
                        raise
            case _:
                log.warning("a request to the replay socket of KV events has another form")

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)


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
    if kind == zmq.ROUTER:  # otherwise batches to a full queue are dropped, and the end of their replay perhaps is not
        socket.router_mandatory = True
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
