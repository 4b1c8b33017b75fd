"""The seeds of requests and of their sequences. A request without a seed gets one that is derived from its contents."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

_encode = msgspec.msgpack.Encoder().encode
_DEFAULTS = msgspec.structs.asdict(SamplingParams())
_OF_OUTPUTS = ("output_kind", "flat_logprobs")  # how a client shows what it gets
_SETS = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids", "allowed_token_ids", "logprob_token_ids")


def seed_of(message: EngineCoreRequest, server_seed: int, vocab_size: int) -> int:
    """The given seed, or one derived from the server's seed and the request, so that a repetition is identical."""
    params = message.sampling_params
    if params.seed is not None and params.seed != -1:
        return params.seed if params.seed >= 0 else _positive_int63(_digest(f"seed {params.seed}"))
    digest = hashlib.sha256(server_seed.to_bytes(8, "little"))
    digest.update(_encode(_contents(params, vocab_size)))
    digest.update(message.prompt_token_ids)
    return _positive_int63(digest.digest())


def sequence_seed(seed: int, index: int) -> int:
    """The seed of sequence `index`. The first has the request's seed, so it equals the output with n=1."""
    if index == 0:
        return seed
    return _positive_int63(_digest(f"sequence {index} of seed {seed}"))


def _contents(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    """The parameters that differ from their defaults.

    Clients write the same request in several ways: with a default or without it, with -1 for none or for the whole
    vocabulary, with biases and the entries of sets in any order. Reading the prefix cache changes no answer, and the
    frontends turn it off themselves where prompt logprobs are requested.
    """
    given = {name: value for name, default in _DEFAULTS.items() if (value := getattr(params, name)) != default}
    for name in ("skip_reading_prefix_cache", *_OF_OUTPUTS):
        given.pop(name, None)
    for name in ("seed", "top_k", "thinking_token_budget"):
        if given.get(name) == -1:
            del given[name]
    for name in ("logprobs", "prompt_logprobs"):
        if given.get(name) == -1:
            given[name] = vocab_size
    if biases := given.pop("logit_bias", None):
        given["logit_bias"] = sorted(biases.items())
    for name in given.keys() & _SETS:
        given[name] = _unique(given[name])
    if (dry := given.get("dry")) is not None:
        texts, ids = _unique(dry.sequence_breakers), _unique(dry.breaker_token_ids)
        given["dry"] = msgspec.structs.replace(dry, sequence_breakers=texts, breaker_token_ids=ids)
    return given


def _unique(entries: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(entries)))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _positive_int63(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 1
