"""What goes to one client: columns while it keeps up, one coalesced output per stream after it fell behind.

A client may leave MAX_UNACKNOWLEDGED_FRAMES messages unacknowledged. From then on nothing is built for it; the core
only remembers how far each stream was told, and the tokens themselves lie in the sequences anyway.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from paged_serve.protocol.engine_core import (
    MAX_UNACKNOWLEDGED_FRAMES,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Logprobs,
    RequestTimes,
    SchedulerStats,
    TokenColumns,
)
from paged_serve.protocol.message import pack_ids, unpack_int64
from paged_serve.protocol.sampling_params import FinishReason

from .request import Request, Sequence

MAX_OUTPUT_BYTES = 1 << 20  # of one message; a quarter of the largest frame
OUTPUT_OVERHEAD_BYTES = 128

News = tuple[Sequence, EngineCoreOutput]


@dataclass(slots=True)
class Untold:
    """A stream's news since the client was last told: tokens from `position` on, and what goes with them."""

    sequence: Sequence
    position: int
    logprobs: list[Logprobs] = field(default_factory=list)  # one token each
    prompt_logprobs: Logprobs | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    times: RequestTimes | None = None
    error: str = ""

    def merge(self, output: EngineCoreOutput) -> None:
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens or self.num_cached_tokens
        if output.finish_reason is not None:
            self.finish_reason, self.stop_token_id = output.finish_reason, output.stop_token_id
            self.times, self.error = output.times, output.error

    def take(self, max_bytes: int) -> EngineCoreOutput:
        """The next part, of about `max_bytes` at most; `position` moves past it."""
        end = min(len(self.sequence.output), self.position + max_bytes // 4)
        if self.logprobs:
            per_token = max(1, 8 + len(self.logprobs[0].token_ids) * 2)
            end = min(end, self.position + max(1, max_bytes // per_token))
        is_last = end == len(self.sequence.output)
        count = end - self.position
        output = EngineCoreOutput(
            stream_id=self.sequence.stream_id,
            position=self.position,
            token_ids=pack_ids(self.sequence.output[self.position : end]),
            finish_reason=self.finish_reason if is_last else None,
            stop_token_id=self.stop_token_id if is_last else None,
            logprobs=_concatenate(self.logprobs[:count]) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            times=self.times if is_last else None,
            error=self.error if is_last else "",
        )
        self.position, self.prompt_logprobs, self.num_cached_tokens = end, None, 0
        del self.logprobs[:count]
        return output

    @property
    def has_news(self) -> bool:
        told = self.position == len(self.sequence.output) and self.prompt_logprobs is None
        return not told or self.finish_reason is not None


class ClientOutbox:
    """One client's streams and credit."""

    def __init__(self, epoch: int, now: float):
        self.epoch = epoch
        self.streams: dict[int, Sequence] = {}  # live ones by stream id
        self.heard_s = now
        self.credit = MAX_UNACKNOWLEDGED_FRAMES
        self.stats_told_s = float("-inf")
        self._untold: dict[int, Untold] | None = None  # by stream id; None while the client keeps up

    @property
    def is_behind(self) -> bool:
        return self._untold is not None

    @property
    def num_ended_untold(self) -> int:
        """Streams that are over but for telling it."""
        return sum(stream_id not in self.streams for stream_id in self._untold or ())

    def running(self, message: EngineCoreRequest) -> Request | None:
        """What the client repeats, if it does: it had said this to us when it still took us for our predecessor."""
        ids = range(message.request_id, message.request_id + message.sampling_params.n)
        known = {self.streams[stream_id].request for stream_id in ids if stream_id in self.streams}
        asked = message.request_id, message.prompt_token_ids, message.sampling_params
        return next((each for each in known if (each.request_id, each.prompt, each.params) == asked), None)

    def forget(self, stream_ids: list[int]) -> None:
        """These have ended, and the client knows or is told otherwise."""
        for stream_id in stream_ids:
            del self.streams[stream_id]
            if self._untold is not None:
                self._untold.pop(stream_id, None)

    def deliver(
        self, step: int, columns: TokenColumns | None, news: list[News], stats: SchedulerStats | None = None
    ) -> list[EngineCoreOutputs]:
        """Messages that tell this, or none when the client must catch up first.

        A stream is in `columns` or in `news`, never in both.
        """
        outputs = tuple([output for _, output in news])
        if self._untold is None and self.credit and sum(map(_num_bytes, outputs)) <= MAX_OUTPUT_BYTES:
            self.credit -= 1
            return [EngineCoreOutputs(self.epoch, step, columns, outputs, stats)]
        untold = self._untold = self._fall_behind(columns) if self._untold is None else self._untold
        for sequence, output in news:
            entry = untold.setdefault(output.stream_id, Untold(sequence, output.position))
            entry.position = min(entry.position, output.position)  # told up to here when it fell behind just now
            entry.merge(output)
        return self.catch_up(step)

    def acknowledge(self, frames: int, step: int) -> list[EngineCoreOutputs]:
        """Credit returns; the client is told what it missed."""
        self.credit = min(self.credit + frames, MAX_UNACKNOWLEDGED_FRAMES)
        return self.catch_up(step)

    def catch_up(self, step: int) -> list[EngineCoreOutputs]:
        """Tell as much as the credit allows. Once everything is told the client goes on with columns."""
        messages: list[EngineCoreOutputs] = []
        untold = self._untold
        if untold is None:
            return messages
        parts = self._take_news(untold)
        while self.credit and (outputs := next(parts, None)):
            self.credit -= 1
            messages.append(EngineCoreOutputs(self.epoch, step, None, outputs))
        if not any(entry.has_news for entry in untold.values()):
            self._untold = None
        return messages

    def _fall_behind(self, columns: TokenColumns | None) -> dict[int, Untold]:
        """From here on positions are kept. This step's tokens are appended already but were not told."""
        in_columns = set(unpack_int64(columns.stream_ids)) if columns else set()
        return {
            stream_id: Untold(sequence, len(sequence.output) - (stream_id in in_columns))
            for stream_id, sequence in self.streams.items()
        }

    def _take_news(self, untold: dict[int, Untold]) -> Iterator[tuple[EngineCoreOutput, ...]]:
        """Messages' worth of news. Nothing is taken before it is asked for."""
        outputs: list[EngineCoreOutput] = []
        for stream_id, entry in list(untold.items()):
            while entry.has_news:
                if sum(map(_num_bytes, outputs)) >= MAX_OUTPUT_BYTES // 2:
                    yield tuple(outputs)
                    outputs = []
                outputs.append(entry.take(MAX_OUTPUT_BYTES // 2))
                if outputs[-1].finish_reason is not None:
                    del untold[stream_id]
                    break
        if outputs:
            yield tuple(outputs)


def _num_bytes(output: EngineCoreOutput) -> int:
    size = OUTPUT_OVERHEAD_BYTES + len(output.token_ids)
    for part in (output.logprobs, output.prompt_logprobs):
        if part is not None:
            size += len(part.token_ids) + len(part.logprobs) + len(part.ranks)
    return size


def _concatenate(parts: list[Logprobs]) -> Logprobs:
    return Logprobs(
        b"".join(part.token_ids for part in parts),
        b"".join(part.logprobs for part in parts),
        b"".join(part.ranks for part in parts),
    )
