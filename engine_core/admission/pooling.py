"""Checks pooling requests against the tasks and dimensions that the model supports."""

from dataclasses import dataclass

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.loading.startup import WorkerReady
from paged_serve.protocol.messages.message import MAX_FRAME_BYTES, MAX_STEP_FRAME_BYTES, unpack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams, Tasks
from paged_serve.protocol.messages.sampling_params import SamplingParams

MAX_VECTORS_BYTES = MAX_FRAME_BYTES * 3 // 4  # of one answer
MAX_STEP_VECTORS_BYTES = MAX_STEP_FRAME_BYTES - MAX_FRAME_BYTES  # of a step's; one prompt more may have begun earlier
FLOAT_BYTES = 4
PER_TOKEN = ("token_embed", "token_classify")
UNSET = SamplingParams()


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """What the model supports in pooling; the fields are those of protocol.messages.loading.startup.WorkerReady."""

    tasks: Tasks = ("generate",)
    embedding_size: int = 0
    num_labels: int = 0
    needs_whole_prompt: bool = False
    is_bidirectional: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()

    @classmethod
    def of(cls, ready: WorkerReady) -> "PoolingFacts":
        return cls(
            ready.tasks,
            ready.embedding_size,
            ready.num_labels,
            ready.needs_whole_prompt,
            ready.is_bidirectional,
            ready.matryoshka_dimensions,
        )

    def reads_whole_prompt(self, pooling: PoolingParams) -> bool:
        """Whether the vector depends on every token's hidden state, which rules out the prefix cache."""
        return pooling.task in PER_TOKEN or self.needs_whole_prompt or pooling.skip_reading_prefix_cache

    def check(self, message: EngineCoreRequest, prompt_len: int, max_num_batched_tokens: int) -> None:
        """Raise InvalidRequest for a task or size that this model or this server does not support."""
        pooling, can = message.pooling_params, ", ".join(self.tasks)
        task = "generate" if pooling is None else pooling.task
        if task not in self.tasks:
            raise InvalidRequest(f"this model does not serve {task}; it serves {can}", "task")
        if pooling is None:
            return
        if message.sampling_params.n != 1:
            raise InvalidRequest(f"n is {message.sampling_params.n}; a prompt has one vector, so n must be 1", "n")
        if message.sampling_params != UNSET:
            raise InvalidRequest(
                f"sampling parameters are for tokens, and task {task} gives a vector; leave them out", "sampling_params"
            )
        if self.is_bidirectional and prompt_len > max_num_batched_tokens:
            raise InvalidRequest(
                f"the prompt has {prompt_len} tokens; this model computes a prompt in one step, which may have "
                f"{max_num_batched_tokens}. Shorten it or raise --max-num-batched-tokens",
                "prompt",
            )
        self._check_dimensions(pooling)
        self._check_steps(message, pooling)
        if pooling.second_text is not None and pooling.second_text >= prompt_len:
            raise InvalidRequest(
                f"second_text is {pooling.second_text}; the prompt's last token is {prompt_len - 1}", "second_text"
            )
        if task in PER_TOKEN:
            self._check_bytes(pooling, prompt_len, max_num_batched_tokens)

    def _check_dimensions(self, pooling: PoolingParams) -> None:
        wanted, allowed = pooling.dimensions, self.matryoshka_dimensions
        if wanted is None:
            return
        if pooling.task not in ("embed", "token_embed"):
            raise InvalidRequest(f"dimensions is {wanted}, but task {pooling.task} gives no embedding", "dimensions")
        if wanted > self.embedding_size:
            raise InvalidRequest(
                f"dimensions is {wanted}; this model's embeddings have {self.embedding_size}", "dimensions"
            )
        if allowed and wanted not in allowed:
            raise InvalidRequest(
                f"dimensions is {wanted}; this model supports {', '.join(map(str, allowed))}", "dimensions"
            )

    def _check_steps(self, message: EngineCoreRequest, pooling: PoolingParams) -> None:
        """Check the fields of step pooling."""
        tag, columns = pooling.step_tag_id, pooling.returned_token_ids
        if pooling.task != "token_classify" and (tag is not None or columns):
            name = "returned_token_ids" if tag is None else "step_tag_id"
            raise InvalidRequest(f"{name} is for task token_classify, and task is {pooling.task}", name)
        if wrong := [column for column in columns if column >= self.num_labels]:
            raise InvalidRequest(
                f"returned_token_ids has {wrong[0]}; this model's scores have the columns 0 to {self.num_labels - 1}",
                "returned_token_ids",
            )
        if tag is not None and tag not in unpack_ids(message.prompt_token_ids):
            raise InvalidRequest(
                f"step_tag_id is {tag}, and the prompt has no such token, so there is no step to score", "step_tag_id"
            )

    def _check_bytes(self, pooling: PoolingParams, prompt_len: int, max_num_batched_tokens: int) -> None:
        """Check the size of the answer, and of all vectors that one step may yield."""
        labels = len(pooling.returned_token_ids) or self.num_labels
        columns = labels if pooling.task == "token_classify" else pooling.dimensions or self.embedding_size
        num_bytes = FLOAT_BYTES * columns * prompt_len
        if num_bytes > MAX_VECTORS_BYTES:
            raise InvalidRequest(
                f"{prompt_len} vectors of {columns} numbers take {num_bytes} bytes; the limit is {MAX_VECTORS_BYTES}. "
                f"Shorten the prompt to {MAX_VECTORS_BYTES // (FLOAT_BYTES * columns)} tokens or ask for fewer "
                "dimensions",
                "prompt",
            )
        if FLOAT_BYTES * columns * max_num_batched_tokens > MAX_STEP_VECTORS_BYTES:
            raise InvalidRequest(
                f"a step of {max_num_batched_tokens} tokens with {columns} numbers each does not fit a message; "
                f"lower --max-num-batched-tokens to {MAX_STEP_VECTORS_BYTES // (FLOAT_BYTES * columns)}, or ask for "
                "fewer dimensions",
                "task",
            )
