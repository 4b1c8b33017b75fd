"""Turns `structured_outputs` into `grammar` in the calling program, for LLM and the client library."""

from functools import lru_cache

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar, StructuredOutputsParams

from .helper_messages import AddedTokens

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StructuredOutputsParams).decode


def with_grammar(
    params: SamplingParams, added: AddedTokens | None = None, field: str = "structured_outputs"
) -> SamplingParams:
    """Fill in `grammar`. Without the tokenizer's added tokens, only the worker compiles it. `field`: where the caller
    gave the form. Raises InvalidRequest."""
    if params.structured_outputs is None:
        return params
    try:
        source = _source(_encode(params.structured_outputs), None if added is None else _encode(added))
    except InvalidRequest as refused:
        raise InvalidRequest(f"{field}: {refused}", field) from None
    return msgspec.structs.replace(params, structured_outputs=None, grammar=Grammar(source))


@lru_cache(maxsize=64)
def _source(form: bytes, added_tokens: bytes | None) -> str:
    from .lowering import bytes_tokenizer, check, lowered  # imported late: large, and few requests need it

    if added_tokens is None:
        return lowered(_decode(form)).source
    added = msgspec.json.decode(added_tokens, type=AddedTokens)
    source = lowered(_decode(form), added).source
    check(source, bytes_tokenizer(added))
    return source
