"""Turns the texts, tokens or messages of a body into prompts for the engine."""

from array import array
from collections.abc import Callable, Iterator, Sequence

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.pooling_params import PoolingParams, PoolingTask

from ....admission import MAX_TOKENS_PER_REQUEST
from ....conversation.messages import Conversation
from ....pooling.texts import Limit, entry_names
from ....text.off_loop import LONG
from ...service import Service
from ..request.prompts import chat_tokens, of_one_type
from ..request.truncation import Limit as ChatLimit
from .schemas import MAX_INPUTS, Input, InputFields, PoolingFields
from .work import PoolingPrompt


def params_of(body: PoolingFields, task: PoolingTask, dimensions: int | None = None) -> PoolingParams:
    return PoolingParams(
        task=task,
        dimensions=dimensions,
        use_activation=body.use_activation is not False,
        skip_reading_prefix_cache=bool(body.skip_reading_prefix_cache),
    )


def limit_of(service: Service, body: PoolingFields) -> Limit:
    """Raises InvalidRequest."""
    return service.pooling.limit(service.max_model_len, body.truncate_prompt_tokens, body.truncation_side)


async def input_prompts(
    service: Service, body: InputFields, raw: bytes, moment: int, params: PoolingParams
) -> list[PoolingPrompt]:
    """The prompts of `input`, or the prompt that the chat template writes for `messages` at time `moment`.

    Raises InvalidRequest.
    """
    limit = limit_of(service, body)
    if (body.input is None) == (body.messages is None):
        given = "both input and messages are given" if body.input is not None else "input is required"
        raise InvalidRequest(f"{given}; send either input, or messages for the model's chat template", "input")
    if body.messages is not None:
        return [await _chat_prompt(service, body, raw, moment, params, limit)]
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"{name} applies only to messages; leave it out", name)
    assert body.input is not None
    inputs = split_input(body.input, limit)
    special = body.add_special_tokens is not False
    prefix = service.pooling.files.prompt(body.prompt_name)
    return await text_prompts(service, inputs, limit, params, "input", prefix, add_special_tokens=special)


def split_input(given: Input, limit: Limit) -> list[str | list[int]]:
    """One entry per prompt: a text, or its tokens. A list of integers is one prompt; any other list is one prompt
    per entry."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):  # a list of millions is refused by its length, before its entries are read
        if len(given) > limit.most:
            raise limit.too_long(f"{len(given)}", "input")
    elif len(given) > MAX_INPUTS:
        raise InvalidRequest(f"input has {len(given)} entries; a request may have at most {MAX_INPUTS}", "input")
    return of_one_type(given, "input")


async def text_prompts(
    service: Service,
    inputs: Sequence[str | list[int]],
    limit: Limit,
    params: PoolingParams,
    field: str,
    prefix: str = "",
    *,
    add_special_tokens: bool = True,
    kept: int | None = None,
) -> list[PoolingPrompt]:
    """Each input as a prompt. `prefix` is put before texts; `kept`: the tokens that a longer one is cut to."""
    limit, names = limit.shortened(kept), entry_names(field, len(inputs))
    for name, each in zip(names, inputs, strict=True):
        if isinstance(each, str):
            limit.check_text(prefix + each, service.longest_token_chars, name)

    def encode() -> Iterator[tuple[list[int], PoolingParams]]:
        texts, vocab_size = service.pooling, service.engine.limits.vocab_size
        for name, each in zip(names, inputs, strict=True):
            if isinstance(each, str):
                yield texts.prompt(prefix + each, limit, name, add_special_tokens), params
            else:
                yield texts.tokens(each, limit, vocab_size, name), params

    size = LONG if service.encoder.may_take_long(inputs) else sum(map(len, inputs)) + len(inputs) * (16 + len(prefix))
    return await collected(service, size, encode, field)


async def collected(
    service: Service, size: int, encode: Callable[[], Iterator[tuple[list[int], PoolingParams]]], field: str
) -> list[PoolingPrompt]:
    """The prompts that `encode` yields, up to the limit of tokens per request. `size`: its work, in characters."""

    def collect() -> list[PoolingPrompt]:
        found, num_tokens = list[PoolingPrompt](), 0
        most = max(MAX_TOKENS_PER_REQUEST, service.max_model_len)
        for ids, params in encode():
            found.append(PoolingPrompt(array("i", ids), params))
            num_tokens += len(ids)
            if num_tokens > most:
                raise InvalidRequest(
                    f"the first {len(found)} prompts have {num_tokens} tokens; a request may have at most {most}. "
                    "Send fewer prompts per request",
                    field,
                )
        return found

    return await service.off_loop(size, collect)


async def _chat_prompt(
    service: Service, body: InputFields, raw: bytes, moment: int, params: PoolingParams, limit: Limit
) -> PoolingPrompt:
    if body.prompt_name is not None:
        raise InvalidRequest("prompt_name applies only to input; put the prompt into messages", "prompt_name")
    assert body.messages is not None
    conversation = Conversation(
        messages=body.messages,
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    ids, _ = await chat_tokens(
        service,
        conversation,
        raw,
        add_special_tokens=bool(body.add_special_tokens),
        moment=moment,
        limit=ChatLimit(limit.most, limit.kept, limit.side),
    )
    limit.check(len(ids), "messages")
    if not ids:
        raise InvalidRequest("the chat template writes no token for these messages; at least one is needed", "messages")
    return PoolingPrompt(array("i", ids), params)
