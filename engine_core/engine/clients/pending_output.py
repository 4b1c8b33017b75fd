"""Output of one stream not yet sent to its client: the sequence holds the tokens, packed columns the logprobs."""

from array import array
from dataclasses import dataclass, field

from paged_serve.protocol.messages.engine_core import EngineCoreOutput, Logprobs, RequestTimes
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason

from ...requests.request import Sequence

OUTPUT_OVERHEAD_BYTES = 128  # of an output in a message, and of a stream's entry here


@dataclass(slots=True)
class PendingOutput:
    """The tokens from `position` on, with their logprobs, vector and end."""

    stream_id: int
    position: int
    output: "list[int] | array[int]"  # the live sequence's own; packed once it has ended
    prompt_logprobs: Logprobs | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    times: RequestTimes | None = None
    error: str = ""
    param: str = ""
    pooled: Pooled | None = None
    _token_ids: bytearray = field(default_factory=bytearray)  # of logprobs, one row a token
    _logprobs: bytearray = field(default_factory=bytearray)
    _ranks: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, sequence: Sequence, position: int) -> "PendingOutput":
        return cls(sequence.stream_id, position, sequence.output)

    @property
    def num_bytes(self) -> int:
        """Bytes held only because the client has not been sent this output."""
        size = len(self._token_ids) + len(self._logprobs) + len(self._ranks) + self.whole_bytes
        if self.finish_reason is not None:
            size += OUTPUT_OVERHEAD_BYTES + 4 * len(self.output)
        return size

    @property
    def whole_bytes(self) -> int:
        """Bytes of the parts that are never split over several messages."""
        return logprobs_bytes(self.prompt_logprobs) + pooled_bytes(self.pooled)

    def merge(self, output: EngineCoreOutput) -> None:
        if output.logprobs is not None:
            self._token_ids += output.logprobs.token_ids
            self._logprobs += output.logprobs.logprobs
            self._ranks += output.logprobs.ranks
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens or self.num_cached_tokens
        if output.finish_reason is not None:
            self.finish_reason, self.stop_token_id = output.finish_reason, output.stop_token_id
            self.times, self.error, self.param = output.times, output.error, output.param
            self.pooled = output.pooled
            self.output = array("i", self.output)

    def take(self, max_bytes: int) -> EngineCoreOutput:
        """The next part, of at most about `max_bytes` but at least one token; `position` moves past it."""
        rows = len(self._ranks) // 4
        row_bytes = len(self._token_ids) // rows if rows else 0
        room = max_bytes - logprobs_bytes(self.prompt_logprobs)
        count = max(1, room // (4 + (2 * row_bytes + 4 if rows else 0)))
        end = min(len(self.output), self.position + count)
        count, is_last = end - self.position, end == len(self.output)
        output = EngineCoreOutput(
            stream_id=self.stream_id,
            position=self.position,
            token_ids=pack_ids(self.output[self.position : end]),
            finish_reason=self.finish_reason if is_last else None,
            stop_token_id=self.stop_token_id if is_last else None,
            logprobs=self._take_logprobs(count, row_bytes) if rows else None,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            times=self.times if is_last else None,
            error=self.error if is_last else "",
            param=self.param if is_last else "",
            pooled=self.pooled if is_last else None,
        )
        self.position, self.prompt_logprobs, self.num_cached_tokens = end, None, 0
        return output

    @property
    def is_delivered(self) -> bool:
        """Nothing is left to send for now."""
        is_sent = self.position == len(self.output) and self.prompt_logprobs is None
        return is_sent and self.finish_reason is None

    def _take_logprobs(self, count: int, row_bytes: int) -> Logprobs:
        columns = ((self._token_ids, row_bytes), (self._logprobs, row_bytes), (self._ranks, 4))
        taken = [bytes(column[: count * width]) for column, width in columns]
        for column, width in columns:
            del column[: count * width]
        return Logprobs(*taken)


def output_bytes(output: EngineCoreOutput) -> int:
    """The approximate size of `output` in a message."""
    size = OUTPUT_OVERHEAD_BYTES + len(output.token_ids) + len(output.error)
    if output.logprobs is not None or output.prompt_logprobs is not None:
        size += logprobs_bytes(output.logprobs) + logprobs_bytes(output.prompt_logprobs)
    return size if output.pooled is None else size + pooled_bytes(output.pooled)


def logprobs_bytes(logprobs: Logprobs | None) -> int:
    return 0 if logprobs is None else len(logprobs.token_ids) + len(logprobs.logprobs) + len(logprobs.ranks)


def pooled_bytes(pooled: Pooled | None) -> int:
    return 0 if pooled is None else len(pooled.values)
