"""A worker's start: it reports the progress of loading and what its memory holds, then allocates its KV cache."""

from typing import Annotated, Literal

from msgspec import Meta

from ..message import Count, Message, Record, Seconds, ShortText, Step, TokenIds
from ..pooling_params import Dimensions, Tasks

MAX_KV_GROUPS = 256
LoadStage = Literal["weights", "kernels", "graphs"]  # the last two on CUDA devices only


class LoadProgress(Message, frozen=True):
    """Progress of loading, for the progress bar; at most about ten messages per second."""

    rank: Count
    done: Step  # bytes of weights, or kernels, or graphs
    total: Step
    stage: LoadStage = "weights"


class KVGroup(Record, frozen=True):
    """Layers with the same attention window or attention chunk, or with states; they share a block table per row."""

    window: Count = 0  # positions that a token attends to, itself included; 0: all
    attention_chunk: Count = 0  # a token attends to positions from the last multiple of this on; 0: no limit
    is_state: bool = False  # the layers are recurrent: a block holds a state

    def __post_init__(self) -> None:
        if self.is_state and (self.window or self.attention_chunk):
            raise ValueError(
                f"a state group with window={self.window} and attention_chunk={self.attention_chunk}: it has neither"
            )
        if self.window and self.attention_chunk:
            raise ValueError(f"a KV group with window={self.window} and attention_chunk={self.attention_chunk}")

    @property
    def is_full(self) -> bool:
        """Whether every token attends to all tokens before it."""
        return not (self.window or self.attention_chunk or self.is_state)


class WorkerReady(Message, frozen=True):
    """The weights are loaded. `num_blocks` is how many blocks this rank's memory holds under the configuration."""

    rank: Count
    num_blocks: Count
    block_size: Count  # tokens; at least the configured number
    kv_bytes_per_block: Count
    max_model_len: Count  # the model's own limit, cut by the configuration
    vocab_size: Count
    eos_token_ids: TokenIds
    dtype: ShortText
    device: ShortText
    weights_bytes: Step
    load_s: Seconds
    arithmetic: ShortText = ""  # what results depend on besides model and request, as text; equal on all ranks
    kv_groups: Annotated[tuple[KVGroup, ...], Meta(min_length=1, max_length=MAX_KV_GROUPS)] = (KVGroup(),)
    tasks: Tasks = ("generate",)  # that the model supports
    embedding_size: Count = 0  # columns of `embed` and `token_embed`; 0: no embeddings
    num_labels: Count = 0  # columns of `classify` and `token_classify`
    needs_whole_prompt: bool = False  # pooling reads more than the last token: no prefix cache
    is_bidirectional: bool = False  # tokens attend to later tokens: a prompt is computed in one step
    matryoshka_dimensions: Dimensions = ()  # allowed values of `dimensions`; empty: not known
    grammar_end_token_ids: TokenIds = ()  # the end of outputs with a grammar: a model may have no end token; of rank 0


class CreateKVCache(Message, frozen=True):
    """All ranks are ready: allocate this many blocks. Answered by KVCacheReady."""

    num_blocks: Count


class KVCacheReady(Message, frozen=True):
    """The blocks are allocated; the worker waits for steps."""

    rank: Count
