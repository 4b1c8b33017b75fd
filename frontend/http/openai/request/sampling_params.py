"""Translates the fields of a body into SamplingParams; errors name the field of the body."""

from typing import Any

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.samplers import Dry, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar

from ....text.breakers import with_breakers
from ....text.off_loop import LONG
from ....text.tokenizer import words_to_token_ids
from ...service import Service
from .schemas import ChatCompletionRequest, CompletionRequest, DryAndXtc, SamplingFields

COMPLETION_MAX_TOKENS = 16
_SAME_NAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "min_tokens", "ignore_eos", "include_stop_str_in_output", "logit_bias"),
    *("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids", "detokenize"),
    *("skip_special_tokens", "skip_reading_prefix_cache", "repetition_detection", "thinking_token_budget"),
    "logits_processors",
)


def completion_params(
    service: Service, body: CompletionRequest, max_tokens: int | None, grammar: Grammar | None
) -> SamplingParams:
    """`max_tokens`: the limit that fits. An echo without output still generates one token, which is not returned."""
    values = {**service.sampling_defaults, "logprobs": body.logprobs, "grammar": grammar}
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return _params(service, body, values, max(max_tokens or 1, 1))


def chat_params(
    service: Service, body: ChatCompletionRequest, max_tokens: int | None, grammar: Grammar | None
) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest(f"top_logprobs is {body.top_logprobs}; it needs logprobs to be true", "top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = service.config.server.max_logprobs
    if logprobs is not None and logprobs > limit and not body.logprob_token_ids:
        raise _too_many_logprobs(service, "top_logprobs", logprobs)
    values = {**service.sampling_defaults, "logprobs": logprobs, "grammar": grammar}
    return _params(service, body, values, max_tokens)


def token_params(
    service: Service, body: SamplingFields, logprobs: int | None, max_tokens: int | None, grammar: Grammar | None
) -> SamplingParams:
    """The parameters of /inference/v1/generate, without the model's recommended values."""
    return _params(service, body, {"logprobs": logprobs, "grammar": grammar}, max_tokens)


def _params(service: Service, body: SamplingFields, values: dict[str, Any], max_tokens: int | None) -> SamplingParams:
    """SamplingParams from `values`, overridden by the fields of the body."""
    named = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    values = {"prompt_logprobs": body.prompt_logprobs, **values, **named, "max_tokens": max_tokens}
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed; leave out stream", "prompt_logprobs")
    for name in ("logprobs", "prompt_logprobs"):
        if name == "logprobs" and body.logprob_token_ids:
            continue
        if (count := values.get(name)) is not None and count > service.config.server.max_logprobs:
            raise _too_many_logprobs(service, name, count)
    if values["prompt_logprobs"] is not None:
        values["skip_reading_prefix_cache"] = True  # cached prompt tokens are not computed, so they have no logprobs
    if body.bad_words:
        values["bad_words_token_ids"] = words_to_token_ids(service.tokenizer, body.bad_words)
    values["dry"] = with_breakers(_dry(body), service.tokenizer)
    values["xtc"] = _xtc(body)
    return SamplingParams(**values)


def size_of_work(body: SamplingFields, size: int) -> int:
    """The work of making SamplingParams from a body of `size` characters, expressed in characters."""
    return size if _dry(body) is None else LONG


def _dry(body: SamplingFields) -> Dry | None:
    given = _extra(body, "dry_")
    if not given.get("multiplier"):
        return None
    if "sequence_breakers" in given:
        given["sequence_breakers"] = tuple(given["sequence_breakers"])
    return Dry(**given)


def _xtc(body: SamplingFields) -> Xtc | None:
    given = _extra(body, "xtc_")
    return Xtc(**given) if given.get("probability") else None


def _extra(body: SamplingFields, prefix: str) -> dict[str, Any]:
    """The fields with this prefix, of the body or else of its vllm_xargs, by the rest of their names."""
    given = {}
    for source in (body.vllm_xargs, body):
        for name in DryAndXtc.__struct_fields__ if source is not None else ():
            if name.startswith(prefix) and (value := getattr(source, name)) is not None:
                given[name.removeprefix(prefix)] = value
    return given


def _too_many_logprobs(service: Service, field: str, count: int) -> InvalidRequest:
    limit, size = service.config.server.max_logprobs, service.engine.limits.vocab_size
    asked = f"asks for all {size} tokens of the vocabulary" if count == size else f"is {count}"  # -1 was sent
    return InvalidRequest(f"{field} {asked}; this server returns at most {limit} (--max-logprobs)", field)
