"""Messages between the engine core and its workers (one a tensor-parallel rank): deltas down, tokens up.

A worker keeps one *row* per running request: its token ids, block table and sampling state. The core sends only
what changed. The *decode set* is the rows that take one token each step, ascending by row index; it persists from
step to step. In every step a worker, in this order:

1. resets each row in `new_rows`;
2. appends `extended_block_ids` to the block tables of `extended_rows`;
3. removes `decode_leaves` from the decode set, then adds `decode_joins`;
4. runs one forward pass over the decode set (each row: its one token not yet computed) and then `chunks` (each row:
   its next `num_tokens` tokens);
5. samples a token for each decode row, ascending, then for each chunk, in order, that reaches the end of its row's
   tokens; appends it to the row; and (rank 0) answers with ModelRunnerOutput in that order. A row with
   `pooling_params` samples nothing: the chunk that reaches its end gives a vector, in `pooled`.

A row that is in neither the decode set nor `chunks` lies still. A finished row just leaves: its index is free for a
NewRow. Steps run in the order they were sent; two are in flight, so a plan may name a token that the core has not
seen yet.
"""

from typing import Annotated, Literal

from msgspec import Meta

from .message import (
    MAX_ROWS,
    Bytes,
    Count,
    Epoch,
    Hello,
    LongText,
    Message,
    Record,
    Refused,
    Seconds,
    ShortText,
    Step,
    TokenBytes,
    TokenIds,
    check_int32,
    check_logprobs,
)
from .pooling_params import Dimensions, Pooled, PoolingParams, Tasks
from .sampling_params import SamplingParams

Row = Annotated[int, Meta(ge=0, le=MAX_ROWS - 1)]


class NewRow(Record, frozen=True):
    """A row's whole state, at admission or when it comes back after preemption or a restart."""

    row: Row
    token_ids: TokenBytes  # prompt, then output known so far
    prompt_len: Count  # of token_ids; output position p is sampled from token prompt_len + p - 1
    num_computed_tokens: Count  # already in the KV cache (prefix hit), < len(token_ids)
    block_ids: Bytes  # int32, in order of position
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # Philox key; the counter is the output position
    eos_token_ids: TokenIds  # masked while output is shorter than min_tokens; empty with ignore_eos
    sampling_params: SamplingParams
    pooling_params: PoolingParams | None = None  # the row ends with a vector and samples nothing

    def __post_init__(self) -> None:
        check_int32(self.token_ids, self.block_ids)
        num_tokens = len(self.token_ids) // 4
        if not (self.num_computed_tokens < num_tokens and self.prompt_len <= num_tokens):
            raise ValueError(
                f"{num_tokens} tokens, of these {self.prompt_len} prompt and {self.num_computed_tokens} computed"
            )


class Chunk(Record, frozen=True):
    """The next `num_tokens` uncomputed tokens of `row`; samples when they are the row's last."""

    row: Row
    num_tokens: Count


class Welcome(Message, frozen=True):
    """Handshake done; the worker loads its weights and answers WorkerReady."""

    epoch: Epoch


class CreateKVCache(Message, frozen=True):
    """All ranks are ready: allocate this many blocks. Answered by KVCacheReady."""

    num_blocks: Count


class SchedulerOutput(Message, frozen=True):
    """One step. A steady decode step carries its number and, for one row in sixteen, a block."""

    epoch: Epoch
    step: Step
    new_rows: Annotated[tuple[NewRow, ...], Meta(max_length=MAX_ROWS)] = ()
    extended_rows: Bytes = b""  # int32; a row may stand several times
    extended_block_ids: Bytes = b""  # int32; one appended to the block table of each of `extended_rows`
    decode_leaves: Bytes = b""  # int32 rows
    decode_joins: Bytes = b""  # int32 rows
    chunks: Annotated[tuple[Chunk, ...], Meta(max_length=MAX_ROWS)] = ()

    def __post_init__(self) -> None:
        check_int32(self.extended_rows, self.extended_block_ids, self.decode_leaves, self.decode_joins)
        if len(self.extended_rows) != len(self.extended_block_ids):
            raise ValueError(f"{len(self.extended_rows)} bytes of rows, {len(self.extended_block_ids)} of block ids")


class Shutdown(Message, frozen=True):
    """End now, cleanly."""


ToWorker = Welcome | Refused | CreateKVCache | SchedulerOutput | Shutdown


class WorkerReady(Message, frozen=True):
    """Weights are loaded. `num_blocks` is what fits this rank's memory by the configuration."""

    rank: Count
    num_blocks: Count
    kv_bytes_per_block: Count
    max_model_len: Count  # the model's own limit, cut by the configuration
    vocab_size: Count
    eos_token_ids: TokenIds
    dtype: ShortText
    device: ShortText
    weights_bytes: Step
    load_s: Seconds
    arithmetic: ShortText = ""  # in words, what bits depend on beside model and request; equal on all ranks
    tasks: Tasks = ("generate",)  # that the model can be asked for
    embedding_size: Count = 0  # columns of `embed` and `token_embed`; 0: it has none
    num_labels: Count = 0  # columns of `classify` and `token_classify`
    needs_whole_prompt: bool = False  # a prompt's vector is of more than its last token: none comes from a cache
    is_bidirectional: bool = False  # tokens see those behind them: a prompt is computed in one step
    matryoshka_dimensions: Dimensions = ()  # what `dimensions` may be; empty: not known


LoadStage = Literal["weights", "kernels", "graphs"]  # the last two on CUDA devices alone


class LoadProgress(Message, frozen=True):
    """For the loading bar; about ten a second at most."""

    rank: Count
    done: Step  # bytes of weights, or kernels, or graphs
    total: Step
    stage: LoadStage = "weights"


class KVCacheReady(Message, frozen=True):
    """The blocks are allocated; the worker waits for steps."""

    rank: Count


class RowLogprobs(Record, frozen=True):
    """For sampled token number `index` of the step's answer."""

    index: Count
    token_ids: Bytes  # [k + 1] int32; the sampled token first, then top k
    logprobs: Bytes  # [k + 1] float32
    rank: Count  # of the sampled token; 1 is the most likely

    def __post_init__(self) -> None:
        check_logprobs(self.token_ids, self.logprobs, rows=1)


class RowPromptLogprobs(Record, frozen=True):
    """Prompt tokens [start, start + rows) of `row`, computed in this step; the first prompt token has none."""

    row: Row
    start: Count
    token_ids: Bytes  # [rows, k + 1] int32
    logprobs: Bytes  # [rows, k + 1] float32
    ranks: Bytes  # [rows] int32

    def __post_init__(self) -> None:
        check_int32(self.ranks)
        check_logprobs(self.token_ids, self.logprobs, len(self.ranks) // 4)


class RowFailure(Record, frozen=True):
    """Sampled token number `index` of the step's answer is none: the row's grammar cannot go on."""

    index: Count
    reason: ShortText


class RowPooled(Record, frozen=True):
    """Of a row with pooling_params whose last token this step computed; None: a number was not finite."""

    row: Row
    pooled: Pooled | None


class ModelRunnerOutput(Message, frozen=True):
    """Rank 0's answer to one SchedulerOutput; the order of tokens is fixed by the plan (see the module's text)."""

    epoch: Epoch
    step: Step
    token_ids: Bytes  # int32
    step_s: Seconds
    logprobs: Annotated[tuple[RowLogprobs, ...], Meta(max_length=MAX_ROWS)] = ()
    prompt_logprobs: Annotated[tuple[RowPromptLogprobs, ...], Meta(max_length=MAX_ROWS)] = ()
    nan_indices: Bytes = b""  # int32 indices into token_ids whose logits were not finite: not to be emitted
    failures: Annotated[tuple[RowFailure, ...], Meta(max_length=MAX_ROWS)] = ()
    pooled: Annotated[tuple[RowPooled, ...], Meta(max_length=MAX_ROWS)] = ()  # in the order of their chunks

    def __post_init__(self) -> None:
        check_int32(self.token_ids, self.nan_indices)


class WorkerFailed(Message, frozen=True):
    """The worker is about to end."""

    rank: Count
    reason: LongText
    refused: bool = False  # the start was refused (bad model folder …): starting again will not help


ToCoreFromWorker = Hello | WorkerReady | LoadProgress | KVCacheReady | ModelRunnerOutput | WorkerFailed
