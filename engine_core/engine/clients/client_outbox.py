"""Output to one client: columns while it keeps up, one coalesced output per stream after it fell behind.

A client may leave MAX_UNACKNOWLEDGED_FRAMES messages unacknowledged. Beyond that, no messages are built for it: the
core only records how far each stream was delivered, since the sequences hold the tokens anyway.
"""

from collections import deque
from collections.abc import Iterator

from paged_serve.protocol.messages.engine_core import (
    MAX_UNACKNOWLEDGED_FRAMES,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    TokenColumns,
)
from paged_serve.protocol.messages.message import unpack_int64
from paged_serve.protocol.messages.stats import SchedulerStats

from ...requests.request import Request, Sequence
from ..outputs import StreamOutput
from .pending_output import OUTPUT_OVERHEAD_BYTES, PendingOutput, output_bytes
from .unacknowledged import UnacknowledgedBudget

MAX_OUTPUT_BYTES = 1 << 20  # of one message; a quarter of the largest frame


class ClientOutbox:
    """One client's streams and credit. `budget` is that of all clients together."""

    def __init__(self, epoch: int, now: float, budget: UnacknowledgedBudget):
        self.epoch = epoch
        self.streams: dict[int, Sequence] = {}  # live ones by stream id
        self.heard_s = now
        self.credit = MAX_UNACKNOWLEDGED_FRAMES
        self.stats_sent_s = float("-inf")
        self.unacknowledged_bytes = 0  # of messages sent, and of what is pending
        self._budget = budget
        self._sent_bytes: deque[int] = deque()  # of each message that is not acknowledged
        self._pending: dict[int, PendingOutput] | None = None  # by stream id; None while the client keeps up

    @property
    def is_behind(self) -> bool:
        return self._pending is not None

    @property
    def num_ended_pending(self) -> int:
        """Streams that have ended but whose end is not delivered yet."""
        return sum(stream_id not in self.streams for stream_id in self._pending or ())

    def running(self, message: EngineCoreRequest) -> Request | None:
        """The running request that `message` repeats, or None if it is new. A client repeats a request if it does not
        know which core received it."""
        ids = range(message.request_id, message.request_id + message.sampling_params.n)
        known = {self.streams[stream_id].request for stream_id in ids if stream_id in self.streams}
        asked = message.request_id, message.prompt_token_ids, message.sampling_params, message.pooling_params
        for each in known:
            if (each.request_id, each.prompt, each.params, each.pooling) == asked and each.adapter == message.adapter:
                return each
        return None

    def remove(self, stream_ids: list[int]) -> None:
        """Drop ended streams whose end the client already knows, or learns from another message."""
        for stream_id in stream_ids:
            del self.streams[stream_id]
            if self._pending is not None and (entry := self._pending.pop(stream_id, None)) is not None:
                self._hold(-entry.num_bytes)

    def close(self) -> None:
        """Release everything held for a client that is gone."""
        self._hold(-self.unacknowledged_bytes)
        self._pending = None
        self._sent_bytes.clear()

    def deliver(
        self, step: int, columns: TokenColumns | None, streams: list[StreamOutput], stats: SchedulerStats | None = None
    ) -> list[EngineCoreOutputs]:
        """Messages with these outputs, or none when the client must catch up first.

        A stream is in `columns` or in `streams`, never in both.
        """
        outputs = tuple([output for _, output in streams])
        if self._pending is None and self.credit and (size := sum(map(output_bytes, outputs))) <= MAX_OUTPUT_BYTES:
            self._send(size if columns is None else size + 4 * len(columns.token_ids))
            return [EngineCoreOutputs(self.epoch, step, columns, outputs, stats)]
        pending = self._pending = self._fall_behind(columns) if self._pending is None else self._pending
        for sequence, output in streams:
            entry = pending.setdefault(output.stream_id, PendingOutput.of(sequence, output.position))
            entry.position = min(entry.position, output.position)  # delivered up to here when it fell behind just now
            before = entry.num_bytes
            entry.merge(output)
            self._hold(entry.num_bytes - before)
        return self.catch_up(step)

    def acknowledge(self, frames: int, step: int) -> list[EngineCoreOutputs]:
        """Return credit for `frames` messages; the result brings the client up to date."""
        self.credit = min(self.credit + frames, MAX_UNACKNOWLEDGED_FRAMES)
        for _ in range(min(frames, len(self._sent_bytes))):
            self._hold(-self._sent_bytes.popleft())
        return self.catch_up(step)

    def catch_up(self, step: int) -> list[EngineCoreOutputs]:
        """Send as much as the credit allows. Once everything is sent, the client receives columns again."""
        messages: list[EngineCoreOutputs] = []
        pending = self._pending
        if pending is None or not self.credit:
            return messages
        parts = self._take_parts(pending)
        while self.credit and (part := next(parts, None)):
            outputs, size = part
            self._send(size)
            messages.append(EngineCoreOutputs(self.epoch, step, None, outputs))
        if all(entry.is_delivered for entry in pending.values()):
            self._pending = None
        return messages

    def _send(self, size: int) -> None:
        """Account for a message of about `size` bytes sent to the client."""
        self.credit -= 1
        self._sent_bytes.append(OUTPUT_OVERHEAD_BYTES + size)
        self._hold(OUTPUT_OVERHEAD_BYTES + size)

    def _hold(self, num_bytes: int) -> None:
        """Add `num_bytes`, possibly negative, to the unacknowledged bytes of this client and of all."""
        self.unacknowledged_bytes += num_bytes
        self._budget.num_bytes += num_bytes

    def _fall_behind(self, columns: TokenColumns | None) -> dict[int, PendingOutput]:
        """Keep positions from here on. The tokens of this step are appended already but not delivered."""
        in_columns = set(unpack_int64(columns.stream_ids)) if columns else set()
        return {
            stream_id: PendingOutput.of(sequence, len(sequence.output) - (stream_id in in_columns))
            for stream_id, sequence in self.streams.items()
        }

    def _take_parts(self, pending: dict[int, PendingOutput]) -> Iterator[tuple[tuple[EngineCoreOutput, ...], int]]:
        """Yield the outputs of one message at a time, with their size in bytes. Lazy: nothing is taken in advance.

        A message counts as full at half its limit; an output with prompt logprobs or vectors, up to 3 MiB, starts a
        new message if it would overfill the current one.
        """
        outputs: list[EngineCoreOutput] = []
        size = 0
        for stream_id, entry in list(pending.items()):
            while not entry.is_delivered:
                if outputs and size + entry.whole_bytes >= MAX_OUTPUT_BYTES // 2:
                    yield tuple(outputs), size
                    outputs, size = [], 0
                before = entry.num_bytes
                outputs.append(entry.take(MAX_OUTPUT_BYTES // 2))
                size += output_bytes(outputs[-1])
                if outputs[-1].finish_reason is not None:
                    del pending[stream_id]
                    self._hold(-before)
                    break
                self._hold(entry.num_bytes - before)
        if outputs:
            yield tuple(outputs), size

    def check(self) -> None:
        held = sum(self._sent_bytes) + sum(entry.num_bytes for entry in (self._pending or {}).values())
        assert self.unacknowledged_bytes == held, "the unacknowledged bytes of a client are miscounted"
