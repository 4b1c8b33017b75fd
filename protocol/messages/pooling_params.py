"""Which vector of its prompt a request asks for; names and defaults are vLLM's, so that requests are portable."""

from typing import Annotated, Literal

from msgspec import Meta

from ..parameter_keywords import WithKeywords
from .message import MAX_STEP_FRAME_BYTES, Bytes, Count, Record, TokenId

MAX_DIMENSIONS = 65536

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
Task = Literal["generate", "embed", "classify", "token_embed", "token_classify"]
Tasks = Annotated[tuple[Task, ...], Meta(max_length=8)]
Dimensions = Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)], ...], Meta(max_length=256)]


class PoolingParams(Record, frozen=True, metaclass=WithKeywords):
    """One vector for the prompt (`embed`, `classify`), or one for each token (`token_embed`, `token_classify`)."""

    task: PoolingTask = "embed"
    dimensions: Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)] | None = None  # keeps the first values of an embedding
    use_activation: bool = True  # normalise an embedding, where the model has that module; scores as probabilities
    second_text: Count | None = None  # the first token of a pair's second text, for models with token types
    skip_reading_prefix_cache: bool = False
    step_tag_id: TokenId | None = None  # token_classify: only this token's places have a vector, one per step
    returned_token_ids: Annotated[
        tuple[Count, ...], Meta(max_length=256)
    ] = ()  # token_classify: the columns of the answer, in this order; empty: all


class Pooled(Record, frozen=True):
    """The vectors, [rows, columns] float32: one row for the whole prompt, or one per token."""

    rows: Count
    columns: Count
    values: Bytes  # little-endian float32

    def __post_init__(self) -> None:
        if len(self.values) != 4 * self.rows * self.columns or len(self.values) > MAX_STEP_FRAME_BYTES:
            raise ValueError(f"{len(self.values)} bytes are not {self.rows} rows of {self.columns} float32 numbers")
