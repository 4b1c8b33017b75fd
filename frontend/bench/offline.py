"""Shared by `throughput` and `latency`: starts a model and times one batch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError, EngineDead
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..config.options import resolve
from ..config.settings import SETTINGS
from ..offline.llm import LLM, RequestOutput
from .load.load import LoadRequest


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One batch: its size and its times."""

    elapsed_s: float
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token_s: float  # until all requests had their first token
    decode_s: float  # of the slowest request, from first to last token


def start_llm(flags: dict[str, Any]) -> LLM:
    """Start the model that the configuration options name. Raises ConfigError, EngineDead."""
    resolved = resolve(flags)
    options = {}
    for setting in SETTINGS:
        if resolved.origins[setting.key] != "default":
            layer, field = setting.key.split(".")
            options[setting.name.replace("-", "_")] = getattr(getattr(resolved.config, layer), field)
    return LLM(options.pop("model", ""), **options)


def engine_config(llm: LLM) -> dict[str, Any]:
    """The configuration for a result's JSON."""
    config: dict[str, Any] = msgspec.json.decode(llm.config.for_print())
    return {**config, "served": {"vocab_size": llm.limits.vocab_size, "max_model_len": llm.limits.max_model_len}}


def run_batch(llm: LLM, requests: Sequence[LoadRequest], temperature: float) -> BatchRun:
    """Run all requests at once, to their full lengths. Raises ConfigError for one that does not fit the context."""
    limit = llm.limits.max_model_len
    _check_lengths(requests, limit)
    params = [
        SamplingParams(temperature=temperature, max_tokens=request.max_tokens, ignore_eos=True) for request in requests
    ]
    began = time.perf_counter()
    outputs = _generate(llm, requests, params)
    elapsed_s = time.perf_counter() - began
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    short = sum(length < request.max_tokens for length, request in zip(lengths, requests, strict=True))
    if short:
        raise EngineDead(
            f"{short} of {len(outputs)} requests ended before their full length; the context holds {limit} tokens, "
            "prompt and output"
        )
    times = [output.metrics for output in outputs if output.metrics is not None]
    return BatchRun(
        elapsed_s=elapsed_s,
        num_requests=len(outputs),
        prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        cached_tokens=sum(output.num_cached_tokens for output in outputs),
        output_tokens=sum(lengths),
        first_token_s=max((t.queued_s + t.prefill_s for t in times), default=0.0),
        decode_s=max((t.decode_s for t in times), default=0.0),
    )


def _check_lengths(requests: Sequence[LoadRequest], limit: int) -> None:
    """Refuse an output that the context would cut: times per token are of the length that was asked for."""
    for request in requests:
        is_tokens = isinstance(request.prompt, list) and isinstance(request.prompt[0], int)
        if is_tokens and len(request.prompt) + request.max_tokens > limit:
            raise ConfigError(
                f"a request of {len(request.prompt)} + {request.max_tokens} tokens exceeds the context of {limit}, "
                "prompt and output; lower --input-len, --output-len or max_tokens, or raise --max-model-len"
            )


def _generate(llm: LLM, requests: Sequence[LoadRequest], params: list[SamplingParams]) -> list[RequestOutput]:
    prompts = [request.prompt for request in requests]
    kinds = {isinstance(prompt, list) and isinstance(prompt[0], dict) for prompt in prompts}
    if kinds == {True, False}:
        raise ConfigError("a load without a server has either prompts or conversations; this file mixes them")
    return llm.chat(prompts, params) if True in kinds else llm.generate(prompts, params)
