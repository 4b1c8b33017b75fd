"""DRY's sequence breakers as tokens of one model."""

import msgspec

from paged_serve.protocol.messages.samplers import Dry

from .tokenizer import Tokenizer


def with_breakers(dry: Dry | None, tokenizer: Tokenizer) -> Dry | None:
    """`dry` with the tokens that end a repetition filled in; None when DRY is off."""
    if dry is None or not dry.is_on:
        return None
    ids = {token for text in dry.sequence_breakers for token in tokenizer.tokens_with(text)}
    return msgspec.structs.replace(dry, breaker_token_ids=tuple(sorted({*ids, *dry.breaker_token_ids})))
