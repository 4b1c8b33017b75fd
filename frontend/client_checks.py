"""What a client can know to be wrong before it sends: the engine core drops what breaks a message's bounds unread."""

from collections.abc import Sequence

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.message import MAX_TOKENS_PER_MESSAGE
from paged_serve.protocol.messages.sampling_params import SamplingParams

from .client_terms import RequestTerms

_encode = msgspec.msgpack.Encoder().encode
_decode_params = msgspec.msgpack.Decoder(SamplingParams).decode


def check_request(prompt: Sequence[int], params: SamplingParams, terms: RequestTerms, limits: Welcome | None) -> None:
    """Raise InvalidRequest for what the core would refuse; `limits` is None before the first Welcome."""
    if not len(prompt):
        raise InvalidRequest("the prompt is empty; give at least one token", "prompt_token_ids")
    terms.check()
    try:
        _decode_params(_encode(params))  # a Struct made in Python has not had its types checked
    except (msgspec.MsgspecError, TypeError, OverflowError, UnicodeError) as error:
        raise InvalidRequest(f"sampling_params: {error}", "sampling_params") from None
    _check_length(len(prompt), limits)
    if limits is not None and not 0 <= min(prompt) <= max(prompt) < limits.vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < limits.vocab_size)
        raise InvalidRequest(
            f"the prompt has token {wrong}; the vocabulary is 0..{limits.vocab_size - 1}", "prompt_token_ids"
        )


def _check_length(num_tokens: int, limits: Welcome | None) -> None:
    longest = MAX_TOKENS_PER_MESSAGE if limits is None else min(limits.max_model_len, MAX_TOKENS_PER_MESSAGE)
    if num_tokens >= longest:
        raise InvalidRequest(
            f"the prompt has {num_tokens} tokens; this server's context holds {longest}, output included "
            f"(max_model_len={longest}). Shorten it or raise --max-model-len",
            "prompt_token_ids",
        )
