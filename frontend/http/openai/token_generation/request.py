"""The body of /inference/v1/generate: the tokens of a prompt, and a nested object of sampling parameters."""

from array import array
from typing import Annotated

import msgspec
from msgspec import Meta

from paged_serve.protocol.messages.message import TokenId

from ....admission import check_num_prompt_logprobs, check_token_ids, fitting_max_tokens
from ....conversation.messages import Label
from ....conversation.strict_json import decode_body
from ....parsers.thinking import with_thinking
from ...service import Service
from ..generation import Prompt
from ..request import fields
from ..request.sampling_params import size_of_work, token_params
from ..request.schemas import Sampling, SamplingFields, StreamOptions
from ..request.structured_outputs import grammar_of

FIELD = "token_ids"


class TokenSampling(Sampling, frozen=True, kw_only=True):
    max_tokens: fields.MaxTokens | None = None  # default: until the context is full
    logprobs: fields.TopLogprobs | None = None


class TokensRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. The model's recommended sampling parameters do not apply."""

    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    sampling_params: TokenSampling
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: fields.StreamInterval | None = None  # default: 1
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | None = None
    timeout: fields.Timeout | None = None  # or the header X-Request-Timeout
    request_id: fields.RequestId | None = None
    user: Label | None = None


class FlatTokensRequest(SamplingFields, frozen=True, kw_only=True):
    """The same body without nesting, as Generation needs it."""

    token_ids: list[int]
    max_tokens: int | None = None
    logprobs: int | None = None


def translate(raw: bytes, lenient: bool) -> tuple[bytes, list[str]]:
    """Translate the JSON of a TokensRequest to that of a FlatTokensRequest, and warnings. Raises InvalidRequest."""
    body, warnings = decode_body(TokensRequest, raw, lenient)
    flat = msgspec.structs.asdict(body)
    sampling = msgspec.structs.asdict(flat.pop("sampling_params"))
    return msgspec.json.encode({**flat, **sampling}), warnings


async def prompt_of(service: Service, body: FlatTokensRequest, size: int) -> Prompt:
    """`size`: the bytes of the body. Raises InvalidRequest."""
    vocab_size = service.engine.limits.vocab_size
    max_tokens = fitting_max_tokens(len(body.token_ids), body.max_tokens, None, service.max_model_len, FIELD)
    check_token_ids(body.token_ids, vocab_size, FIELD)
    grammar, warnings = await grammar_of(service, body)
    params = await service.off_loop(
        size_of_work(body, size), token_params, service, body, body.logprobs, max_tokens, grammar
    )
    params = with_thinking(params, service.formats, service.tokenizer, body.token_ids)
    params.check_vocabulary(vocab_size)
    check_num_prompt_logprobs(params, len(body.token_ids))
    return Prompt(array("i", body.token_ids), params, None, warnings)
