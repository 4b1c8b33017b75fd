"""Messages between the engine core and its workers (one per tensor-parallel rank): deltas down, tokens up.

A worker keeps one *row* per running request: its token ids, block table and sampling state. The core sends only
what changed. The *decode set* is the rows that take one token each step, ascending by row index; it persists from
step to step. In every step a worker, in this order:

1. copies whole blocks, `copied_blocks`;
2. resets each row in `new_rows`;
3. appends `extended_block_ids` to `extended_tables`;
4. removes `decode_leaves` from the decode set, then adds `decode_joins`;
5. runs one forward pass over the decode set (one uncomputed token per row) and then over `chunks` (the next
   `num_tokens` tokens of each row);
6. samples one token for each decode row, in ascending order, then one for each chunk, in order, that reaches the end
   of its row's tokens. It appends each token to its row, and rank 0 answers with ModelRunnerOutput in that order. A
   row with `pooling_params` samples nothing: the chunk that reaches its end yields a vector, in `pooled`.

A chunk with `num_drafts` *verifies*: it starts from the row's last token, and the worker appends up to `num_drafts`
tokens of its own choice, the drafts, before the forward pass. It then samples the positions one after the other, each
with the parameters, rules and random number of that position, as if the drafts before it were output. It stops after
the first token that differs from the draft at its position, or that cannot be emitted. These tokens, one more than
the drafts that agreed, are the chunk's: they equal those of plain decoding, bit for bit, whatever the drafts were.
All ranks have the same drafts. The core does not know the row's length until the answer, so the row is in no decode
set meanwhile, and its block tables hold the longest possible result of all plans sent.

A row that is in neither the decode set nor `chunks` is idle in that step. A finished row leaves the decode set, and a
NewRow may reuse its index. Steps run in the order in which they were sent. Two steps are in flight, so a plan may
refer to a token that the core has not seen yet.

Layers with the same attention window or attention chunk form a *KV group*. A row has one block table per group, in
WorkerReady's order: the table of a row in a group has index row * groups + group. All groups allocate blocks from one
pool; a block holds `block_size` tokens of one group's layers. In the table of a group with a window, blocks wholly
behind the window of the first uncomputed token, or before its attention chunk, are never read and may belong to other
rows; a NewRow has -1 in their place.

The layers of a *state group* are recurrent: instead of keys and values they keep a state. Block i of a row holds the
state after the last computed token among positions [i * block_size, (i + 1) * block_size). The token at position p
starts from the state in block (p - 1) // block_size, or from zero if p = 0, and leaves its own in block
p // block_size; so a worker leaves the state at each border of blocks that a chunk crosses. A full block is never
written again: the prefix cache shares it like any other block. Drafts count as computed once they are accepted: after
a step that verifies, the row's blocks hold the states up to its last accepted draft, and no block one after a draft
that was not accepted.

`copied_blocks` lets a row start within a block: it gets a copy of another row's block, of which it needs the positions
before its `num_computed_tokens`. All of these are final: computed by earlier steps, whose answers the core may not have
yet. The other row may still write later positions of its own block, in this step or later, which changes nothing for a
block of keys and values. A state is overwritten by the row's next token. So a block of a state group is copied only if
the last token that it was sent for is the one before the new row's first: the row has ended, or its next token is
computed in this very step, after the copy. A source is no destination of the same step, and destinations are distinct
and belong to rows in `new_rows`. A source may be overwritten from the next step on.
"""

from typing import Annotated

from msgspec import Meta

from .loading.adapters import AdapterLoaded, AdapterPlace, LoadAdapter
from .loading.kv_tiers import BlocksMoved, DropBlocks, LoadBlocks, OpenTier, StoreBlocks, TierContents
from .loading.startup import MAX_KV_GROUPS, CreateKVCache, KVCacheReady, LoadProgress, WorkerReady
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
from .pooling_params import Pooled, PoolingParams
from .sampling_params import SamplingParams

Row = Annotated[int, Meta(ge=0, le=MAX_ROWS - 1)]
History = Annotated[bytes, Meta(max_length=32)]


class NewRow(Record, frozen=True):
    """The whole state of a row, sent at admission and when the row returns after preemption or a restart."""

    row: Row
    token_ids: TokenBytes  # the prompt, then the output known so far
    prompt_len: Count  # of token_ids; output position p is sampled from token prompt_len + p - 1
    num_computed_tokens: Count  # already in the KV cache (prefix hit), < len(token_ids)
    block_tables: Annotated[tuple[Bytes, ...], Meta(min_length=1, max_length=MAX_KV_GROUPS)]  # int32; -1: released
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # Philox key; the counter is the output position
    eos_token_ids: TokenIds  # masked while output is shorter than min_tokens; empty with ignore_eos
    sampling_params: SamplingParams
    pooling_params: PoolingParams | None = None  # the row ends with a vector and samples nothing
    adapter: AdapterPlace = 0  # of the LoRA adapter that the row is computed with
    history: History = b""  # rows with the same one may be drafted from each other's answers; b"": from its own text

    def __post_init__(self) -> None:
        check_int32(self.token_ids, *self.block_tables)
        num_tokens = len(self.token_ids) // 4
        if not (self.num_computed_tokens < num_tokens and self.prompt_len <= num_tokens):
            raise ValueError(
                f"{num_tokens} tokens, of these {self.prompt_len} prompt and {self.num_computed_tokens} computed"
            )


class Chunk(Record, frozen=True):
    """The next `num_tokens` uncomputed tokens of `row`; a token is sampled when they include the row's last."""

    row: Row
    num_tokens: Count
    num_drafts: Count = 0  # the most drafts that follow; num_tokens is 1: the row's last token

    def __post_init__(self) -> None:
        if self.num_drafts and self.num_tokens != 1:
            raise ValueError(f"a chunk of {self.num_tokens} tokens with {self.num_drafts} drafts")


class Welcome(Message, frozen=True):
    """The handshake is done; the worker loads its weights and answers with WorkerReady."""

    epoch: Epoch


class SchedulerOutput(Message, frozen=True):
    """One step. A steady decode step carries its number and, for about one row in `block_size`, a new block."""

    epoch: Epoch
    step: Step
    new_rows: Annotated[tuple[NewRow, ...], Meta(max_length=MAX_ROWS)] = ()
    copied_blocks: Bytes = b""  # int32 pairs: the block to copy from, the block to copy to
    extended_tables: Bytes = b""  # int32, row * groups + group; a table may occur several times
    extended_block_ids: Bytes = b""  # int32; one block for each entry of `extended_tables`
    decode_leaves: Bytes = b""  # int32 rows
    decode_joins: Bytes = b""  # int32 rows
    chunks: Annotated[tuple[Chunk, ...], Meta(max_length=MAX_ROWS)] = ()

    def __post_init__(self) -> None:
        check_int32(
            self.copied_blocks, self.extended_tables, self.extended_block_ids, self.decode_leaves, self.decode_joins
        )
        if len(self.copied_blocks) % 8:
            raise ValueError(f"{len(self.copied_blocks)} bytes of copied_blocks; a pair takes 8")
        if len(self.extended_tables) != len(self.extended_block_ids):
            raise ValueError(
                f"{len(self.extended_tables)} bytes of tables, {len(self.extended_block_ids)} of block ids"
            )


class Shutdown(Message, frozen=True):
    """The worker exits, cleanly and at once."""


ToWorker = (
    Welcome
    | Refused
    | CreateKVCache
    | SchedulerOutput
    | LoadAdapter
    | OpenTier
    | StoreBlocks
    | LoadBlocks
    | DropBlocks
    | Shutdown
)


class RowLogprobs(Record, frozen=True):
    """Log-probabilities at sampled token number `index` of the step's answer."""

    index: Count
    token_ids: Bytes  # [k + 1] int32; the sampled token first, then top k
    logprobs: Bytes  # [k + 1] float32
    rank: Count  # of the sampled token; 1 is the most likely

    def __post_init__(self) -> None:
        check_logprobs(self.token_ids, self.logprobs, rows=1)


class RowPromptLogprobs(Record, frozen=True):
    """Log-probabilities of prompt tokens [start, start + rows) of `row`, computed in this step.

    The first prompt token has none.
    """

    row: Row
    start: Count
    token_ids: Bytes  # [rows, k + 1] int32
    logprobs: Bytes  # [rows, k + 1] float32
    ranks: Bytes  # [rows] int32

    def __post_init__(self) -> None:
        check_int32(self.ranks)
        check_logprobs(self.token_ids, self.logprobs, len(self.ranks) // 4)


class RowFailure(Record, frozen=True):
    """No token could be sampled at `index` of the step's answer: the row's grammar allows no continuation, its other
    rules forbid every token, or a logits processor failed."""

    index: Count
    reason: ShortText
    param: ShortText = ""  # the parameter of the request that is the cause; "": none is


class RowPooled(Record, frozen=True):
    """The vector of a row with pooling_params whose last token this step computed; None: a value was not finite."""

    row: Row
    pooled: Pooled | None


class ModelRunnerOutput(Message, frozen=True):
    """Rank 0's answer to one SchedulerOutput; the plan fixes the order of its tokens (see the module docstring)."""

    epoch: Epoch
    step: Step
    token_ids: Bytes  # int32
    step_s: Seconds
    logprobs: Annotated[tuple[RowLogprobs, ...], Meta(max_length=MAX_ROWS)] = ()
    prompt_logprobs: Annotated[tuple[RowPromptLogprobs, ...], Meta(max_length=MAX_ROWS)] = ()
    nan_indices: Bytes = b""  # int32 indices into token_ids whose logits were not finite: never emitted
    failures: Annotated[tuple[RowFailure, ...], Meta(max_length=MAX_ROWS)] = ()
    pooled: Annotated[tuple[RowPooled, ...], Meta(max_length=MAX_ROWS)] = ()  # in the order of their chunks
    num_drafted: Bytes = b""  # int32; for each chunk with `num_drafts`, in order: drafts made, at most so many
    num_sampled: Bytes = b""  # int32; likewise: tokens of the chunk in token_ids, 1 to drafts made + 1

    def __post_init__(self) -> None:
        check_int32(self.token_ids, self.nan_indices, self.num_drafted, self.num_sampled)
        if len(self.num_drafted) != len(self.num_sampled):
            raise ValueError(f"{len(self.num_drafted)} bytes of num_drafted, {len(self.num_sampled)} of num_sampled")


class WorkerFailed(Message, frozen=True):
    """The worker is about to exit after an error."""

    rank: Count
    reason: LongText
    refused: bool = False  # the configuration is at fault (a bad model folder, say): a restart does not help


ToCoreFromWorker = (
    Hello
    | WorkerReady
    | LoadProgress
    | KVCacheReady
    | ModelRunnerOutput
    | AdapterLoaded
    | TierContents
    | BlocksMoved
    | WorkerFailed
)
