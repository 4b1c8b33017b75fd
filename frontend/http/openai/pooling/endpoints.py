"""The pooling endpoints: the vectors that a body asks for, and the writer of its answer."""

from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.pooling_params import PoolingTask

from ....buffer_budget import Lease
from ....pooling.io_processors import IOProcessor, io_processor, prompts_of
from ....pooling.texts import Limit
from ....text.off_loop import LONG
from ...exchange.errors import HttpError
from ...service import Service
from ..endpoints import Endpoint, Sender, Work, terms_of
from .inputs import input_prompts, limit_of, params_of, text_prompts
from .pairs import pairs_of
from .schemas import (
    ClassificationRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingFields,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    VectorFields,
)
from .work import PoolingPrompt, PoolingWork
from .writers import ClassificationWriter, CohereWriter, EmbeddingWriter, PoolingWriter, RankWriter, ScoreWriter

VECTOR_BYTES = 4  # per number: as float32, kept until the other vectors have come
DECIMAL_BYTES = 2 * 24  # per number: its text, in its list and in the body
BASE64_BYTES = 2 * 6
SIGN_BYTES = 2  # eight make a number of up to four characters
_TYPE_BYTES: dict[Any, int] = {"base64": BASE64_BYTES, "binary": SIGN_BYTES, "ubinary": SIGN_BYTES}
_BY_TOKEN: tuple[PoolingTask, ...] = ("token_embed", "token_classify", "embed", "classify")
_NOT_OF_DATA = (  # fields of /pooling that have no effect on what an IO processor makes
    *("add_special_tokens", "prompt_name", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *("dimensions", "encoding_format", "step_tag_id", "returned_token_ids"),
)


def _answer_bytes(body: Any) -> int:
    """The bytes that one number of a vector takes in the answer to `body`."""
    if isinstance(body, ScoreRequest | RerankRequest):
        return VECTOR_BYTES
    kinds = [getattr(body, "encoding_format", None)]
    if isinstance(body, CohereEmbedRequest):
        kinds = [*(body.embedding_types or kinds)]
    return VECTOR_BYTES + sum(_TYPE_BYTES.get(kind, DECIMAL_BYTES) for kind in kinds)


class PoolingEndpoint(Endpoint):
    async def decode(self, service: Service, raw: bytes) -> tuple[Any, bytes, str, list[str]]:
        body, model, warnings = await service.decoded(self.body, raw)
        return body, raw, model, warnings

    def begin(
        self, service: Service, sender: Sender, body: Any, prompts: list[Any], lease: Lease, *, in_turn: bool = False
    ) -> Work:
        request_id = body.request_id or sender.request_id
        terms = terms_of(service, sender, body, service.adapter_of(body.model))
        number_bytes, kept_bytes = _answer_bytes(body), 4 * _num_chars(body)
        return PoolingWork(service, prompts, terms, request_id, sender.arrival, lease, number_bytes, kept_bytes)


async def _embedding_prompts(service: Service, body: EmbeddingRequest, raw: bytes, moment: int) -> list[PoolingPrompt]:
    return await _vector_prompts(service, body, raw, moment, "embed")


async def _pooling_prompts(service: Service, body: PoolingRequest, raw: bytes, moment: int) -> list[PoolingPrompt]:
    able = service.engine.limits.tasks
    processor = None if body.io_processor is None else io_processor(service.io_processors, body.io_processor)
    task = processor.task if processor else body.task or next(task for task in _BY_TOKEN if task in able)
    if task not in able:
        raise HttpError(400, f"task is {task}; {service.model_names[0]} serves {', '.join(able)}.", "task")
    if processor is not None:
        return await _processed_prompts(service, body, processor)
    if body.data is not None:
        raise InvalidRequest("data requires an IO processor: name one in io_processor, or send input instead", "data")
    columns = tuple(body.returned_token_ids or ())
    return await _vector_prompts(service, body, raw, moment, task, body.step_tag_id, columns)


async def _processed_prompts(service: Service, body: PoolingRequest, processor: IOProcessor) -> list[PoolingPrompt]:
    for name in ("input", "messages", "task"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"{name} is produced by the IO processor from data; leave it out", name)
    for name in _NOT_OF_DATA:
        if getattr(body, name) not in (None, "float"):
            raise InvalidRequest(f"{name} does not apply to the prompts of an IO processor; leave it out", name)
    prompts = await service.off_loop(LONG, prompts_of, processor, body.data)
    return await text_prompts(service, prompts, limit_of(service, body), params_of(body, processor.task), "data")


async def _vector_prompts(
    service: Service,
    body: VectorFields,
    raw: bytes,
    moment: int,
    task: PoolingTask,
    step_tag_id: int | None = None,
    returned_token_ids: tuple[int, ...] = (),
) -> list[PoolingPrompt]:
    if body.dimensions is not None and not task.endswith("embed"):
        raise InvalidRequest(
            f"dimensions is {body.dimensions}; only embeddings take it, and task is {task}", "dimensions"
        )
    service.pooling.files.check_dimensions(body.dimensions, service.engine.limits.embedding_size)
    params = params_of(body, task, body.dimensions)
    params = msgspec.structs.replace(params, step_tag_id=step_tag_id, returned_token_ids=returned_token_ids)
    return await input_prompts(service, body, raw, moment, params)


async def _classification_prompts(
    service: Service, body: ClassificationRequest, raw: bytes, moment: int
) -> list[PoolingPrompt]:
    return await input_prompts(service, body, raw, moment, params_of(body, "classify"))


async def _pair_prompts(
    service: Service, body: ScoreRequest | RerankRequest, raw: bytes, moment: int
) -> list[PoolingPrompt]:
    return await pairs_of(body).prompts(service, body)


async def _cohere_prompts(service: Service, body: CohereEmbedRequest, raw: bytes, moment: int) -> list[PoolingPrompt]:
    files, longest = service.pooling.files, service.pooling.limit(service.max_model_len, None, None).longest
    if body.truncate_prompt_tokens is not None or body.truncation_side is not None:
        raise InvalidRequest(
            "this route truncates texts by truncate: NONE, START or END; leave out the other fields for it", "truncate"
        )
    files.check_dimensions(body.output_dimension, service.engine.limits.embedding_size, "output_dimension")
    kept = None if body.truncate == "NONE" else min(body.max_tokens or longest, longest)
    limit = Limit(longest, kept, "left" if body.truncate == "START" else "right", remedy="truncate: END")
    params = params_of(body, "embed", body.output_dimension)
    return await text_prompts(service, body.texts, limit, params, "texts", files.prompt_for(body.input_type))


def _num_chars(body: PoolingFields) -> int:
    """The number of characters of the texts that an answer repeats."""
    if isinstance(body, CohereEmbedRequest):
        return sum(map(len, body.texts))
    return sum(map(len, pairs_of(body).second)) if isinstance(body, RerankRequest) else 0


EMBEDDINGS = PoolingEndpoint("embd-", EmbeddingRequest, _embedding_prompts, EmbeddingWriter)
POOLING = PoolingEndpoint("pool-", PoolingRequest, _pooling_prompts, PoolingWriter)
CLASSIFICATION = PoolingEndpoint("classify-", ClassificationRequest, _classification_prompts, ClassificationWriter)
SCORE = PoolingEndpoint("score-", ScoreRequest, _pair_prompts, ScoreWriter)
RERANK = PoolingEndpoint("rerank-", RerankRequest, _pair_prompts, RankWriter)
COHERE_EMBED = PoolingEndpoint("embd-", CohereEmbedRequest, _cohere_prompts, CohereWriter)
