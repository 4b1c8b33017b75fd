"""An engine core scripted by a test, over real ipc sockets."""

import asyncio
import os
import queue
import threading
import time
from array import array

import zmq

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHeartbeat,
    ToEngineCore,
    TokenColumns,
    Welcome,
)
from paged_serve.protocol.messages.message import Hello, Refused, pack_ids, pack_int64, unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import ENGINE_SOCKET, endpoint

LIMITS = {"max_model_len": 4096, "vocab_size": 1000, "block_size": 16, "num_blocks": 64, "max_num_seqs": 8}
POOLING = {
    "tasks": ("embed", "classify", "token_embed", "token_classify"),
    "embedding_size": 8,
    "num_labels": 3,
}  # limits of a pooling model


def token(prompt, index, position):
    """The fake model: a token depends only on the prompt, the sequence's index and the position."""
    return (sum(prompt) + 31 * index + 7 * position) % LIMITS["vocab_size"]


def output(epoch, stream_id, position, ids, finish=None, step=0, **fields):
    item = EngineCoreOutput(stream_id, position, pack_ids(ids), finish, **fields)
    return EngineCoreOutputs(epoch, step, outputs=(item,))


def columns(epoch, advance, rows, step=0):
    """`rows`: (stream id, first position, token)."""
    ids, firsts, tokens = zip(*rows, strict=True)
    return EngineCoreOutputs(epoch, step, TokenColumns(pack_int64(ids), pack_ids(firsts), advance, pack_ids(tokens)))


def vector(prompt: list[int], params: PoolingParams, limits: dict = POOLING) -> Pooled:
    """The fake model: each number depends only on its column, the tokens and the parameters."""
    is_embedding = params.task.endswith("embed")
    columns = (params.dimensions or limits["embedding_size"]) if is_embedding else limits["num_labels"]
    rows = [prompt] if params.task in ("embed", "classify") else [prompt[: i + 1] for i in range(len(prompt))]
    scale = 1.0 if params.use_activation else 2.0
    numbers = [
        scale * ((sum((k + 3) * t for k, t in enumerate(row)) + (params.second_text or 0)) * (column + 1) % 97 + 1) / 97
        for row in rows
        for column in range(columns)
    ]
    return Pooled(len(rows), columns, array("f", numbers).tobytes())


class FakeCore:
    """Welcomes clients, sends heartbeats, records messages, and passes the others to `script(core, peer, message)`."""

    def __init__(self, run_dir, epoch=1, script=None, heartbeat_s=0.1, **limits):
        """`limits`: fields of the Welcome that differ."""
        self.limits = LIMITS | limits
        self.epoch, self.script, self.heartbeat_s = epoch, script or (lambda core, peer, message: None), heartbeat_s
        self.received: list[tuple[bytes, ToEngineCore]] = []
        self.error: BaseException | None = None
        self._grown = threading.Condition()
        self._commands: queue.Queue = queue.Queue()
        self._wake_read, self._wake_write = os.pipe()
        self._context = new_context()
        self._authenticator = Authenticator(self._context, read_secret(run_dir))
        self._channel = RouterChannel(self._context, endpoint(run_dir, ENGINE_SOCKET), ToEngineCore)
        self._peers: list[bytes] = []
        self.mute = False  # sends nothing, like a stopped process
        self.computes = True  # the value that heartbeats report
        self.refusal = ""
        self._alive = True
        self._thread = threading.Thread(target=self._run, name="fake-core")
        self._thread.start()

    def send(self, message, peer=None):
        """Send from the script, in the core's thread. Returns False if the client accepts no more messages now."""
        return self._channel.send(peer or self._peers[-1], message)

    def do(self, message):
        """Send from the test's thread."""
        self._commands.put(message)
        os.write(self._wake_write, b".")

    def all(self, kind):
        return [message for _, message in list(self.received) if isinstance(message, kind)]

    def wait_for(self, kind, count=1, timeout_s=60.0):
        """The messages of `kind` so far, once there are `count`."""
        with self._grown:
            ok = self._grown.wait_for(lambda: len(self.all(kind)) >= count or self.error, timeout_s)
        assert ok, f"{len(self.all(kind))} of {count} {kind.__name__} arrived; the last messages: {self.received[-5:]}"
        assert self.error is None, self.error
        return self.all(kind)

    def kill(self):
        """End without a message, as a killed process does."""
        if self._alive:
            self._alive = False
            os.write(self._wake_write, b".")
            self._thread.join()
            self._channel.close()
            self._authenticator.close()
            self._context.term()
            os.close(self._wake_read)
            os.close(self._wake_write)
        assert self.error is None, self.error

    def _run(self):
        try:
            poller = zmq.Poller()
            poller.register(self._channel.socket, zmq.POLLIN)
            poller.register(self._wake_read, zmq.POLLIN)
            next_beat = 0.0
            while self._alive:
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self.heartbeat_s
                    for peer in self._peers if not self.mute else ():
                        self._channel.send(peer, EngineHeartbeat(0, None, self.computes))
                if self.mute:
                    time.sleep(self.heartbeat_s)
                ready = dict(poller.poll(1000 * self.heartbeat_s))
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                while not self._commands.empty():
                    self.send(self._commands.get())
                while not self.mute and (item := self._channel.receive()) is not None:
                    self._take(*item)
        except BaseException as error:
            self.error = error

    def _take(self, peer, message):
        if isinstance(message, Hello):
            if peer not in self._peers:
                self._peers.append(peer)
            self._channel.send(peer, Refused(self.refusal) if self.refusal else Welcome(self.epoch, **self.limits))
        elif peer not in self._peers:
            return  # a message for the core before this one
        with self._grown:
            self.received.append((peer, message))
            self._grown.notify_all()
        self.script(self, peer, message)


def generate(frames_left=None, pause_s=0.0):
    """A script that answers each request with the fake model's tokens, one column per step, then the finishes.

    `frames_left` ([n]) stops it for good after n frames, whatever it is doing.
    """

    def script(core, peer, message):
        if not isinstance(message, EngineCoreRequest):
            return
        prompt, params = unpack_ids(message.prompt_token_ids), message.sampling_params
        resume = [unpack_ids(ids) for ids in message.resume_token_ids] or [[]] * params.n
        for step in range(min(map(len, resume)), params.max_tokens):
            rows = [
                (message.request_id + i, len(resume[i]), token(prompt, i, step))
                for i in range(params.n)
                if step >= len(resume[i])
            ]
            for stream_id, first, value in rows:
                if frames_left is not None:
                    if frames_left[0] == 0:
                        return
                    frames_left[0] -= 1
                time.sleep(pause_s)
                core.send(columns(core.epoch, step - first, [(stream_id, first, value)], step), peer)
        for i in range(params.n):
            core.send(output(core.epoch, message.request_id + i, params.max_tokens, [], FinishReason.LENGTH), peer)

    return script


def pool(core, peer, message):
    """A script that answers each request with the fake model's vector."""
    if isinstance(message, EngineCoreRequest):
        pooled = vector([*unpack_ids(message.prompt_token_ids)], message.pooling_params, core.limits)
        core.send(output(core.epoch, message.request_id, 0, [], FinishReason.STOP, pooled=pooled), peer)


def start_one_token(core, peer, message):
    if isinstance(message, EngineCoreRequest):
        core.send(output(core.epoch, message.request_id, 0, [1]), peer)


PROMPT = [5, 6, 7]


def expected(prompt, index, count):
    return [token(prompt, index, position) for position in range(count)]


def tokens_of(deltas):
    return [token for delta in deltas for token in delta.token_ids]


async def collect(request, n=1):
    """Token ids and finish reason of each sequence."""
    tokens, reasons = [[] for _ in range(n)], [None] * n
    async for delta in request:
        tokens[delta.index] += delta.token_ids
        reasons[delta.index] = delta.finish_reason
    return tokens, reasons


def with_client(run_dir, body, **options):
    async def main():
        async with await AsyncClient.connect(run_dir, timeout_s=60, **options) as client:
            return await asyncio.wait_for(body(client), 100)

    return asyncio.run(main())


def aborted_ids(core, count=1):
    return [stream_id for message in core.wait_for(AbortRequests, count) for stream_id in message.stream_ids]
