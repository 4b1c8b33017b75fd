"""The output types that a reader of a request receives."""

from array import array
from dataclasses import dataclass, replace

from paged_serve.protocol.messages.engine_core import Logprobs, RequestTimes
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token itself first, then the top k, most likely first."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of the token itself; 1 is the most likely


@dataclass(slots=True)
class SequenceDelta:
    """The output of one sequence since its last delta: tokens of several steps if the reader is slow."""

    index: int  # of the sequence, 0..n-1
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one per token
    prompt_logprobs: list[TokenLogprobs] | None = None  # sent once; one per prompt token except the first
    finish_reason: FinishReason | None = None  # on the sequence's last delta
    stop_token_id: int | None = None
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    times: RequestTimes | None = None
    error: str = ""  # with FinishReason.ERROR: the engine gave this sequence up
    param: str = ""  # with `error`: the parameter of the request that is the cause; "": none is
    pooled: Pooled | None = None  # of a pooling request, with FinishReason.STOP


def tokens_then_error(delta: SequenceDelta) -> list[SequenceDelta]:
    """The same, but an error comes after the tokens: whether a reader gets both at once depends on timing."""
    if delta.finish_reason is not FinishReason.ERROR or not delta.token_ids:
        return [delta]
    end = SequenceDelta(
        delta.index, [], finish_reason=delta.finish_reason, times=delta.times, error=delta.error, param=delta.param
    )
    return [replace(delta, finish_reason=None, times=None, error="", param=""), end]


def decode_logprobs(packed: Logprobs) -> list[TokenLogprobs]:
    """One entry per token. Raises ValueError if the columns have inconsistent lengths."""
    ranks, ids, values = unpack_ids(packed.ranks), unpack_ids(packed.token_ids), array("f", packed.logprobs)
    if len(ids) != len(values) or (len(ids) % len(ranks) if ranks else len(ids)):
        raise ValueError(f"logprobs of {len(ranks)} tokens with {len(ids)} ids and {len(values)} values")
    width = len(ids) // len(ranks) if ranks else 1
    starts = range(0, len(ids), width)
    return [
        TokenLogprobs(ids[start : start + width].tolist(), values[start : start + width].tolist(), rank)
        for start, rank in zip(starts, ranks, strict=True)
    ]
