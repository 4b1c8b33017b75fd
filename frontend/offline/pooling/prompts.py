"""Turns the arguments of the pooling methods into token prompts with their parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import PoolingParams, PoolingTask

from ...adapters.lora_requests import LoRARequest, LoraRequests
from ...client.request_terms import instance_of
from ...pooling.texts import Limit, PoolingTexts
from ..prompts import Tokenization, checked_text, one_each, parse_prompts, tokenization

BY_TOKEN: tuple[PoolingTask, ...] = ("token_embed", "token_classify", "embed", "classify")


@dataclass(frozen=True, slots=True)
class PoolingJob:
    """One prompt, ready for the engine."""

    token_ids: list[int]
    params: PoolingParams
    cache_salt: str = ""
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class PoolingOptions:
    """How texts become tokens, and the adapters that compute them; the names are those of the methods' parameters."""

    truncate_prompt_tokens: int | None = None  # -1: the model's maximum
    tokenization_kwargs: Mapping[str, Any] | None = None
    prompt_name: str | None = None
    lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None

    def limit(self, texts: PoolingTexts, limits: Welcome) -> Limit:
        """Raises InvalidRequest."""
        how, truncate = self.tokenization(), self.truncate_prompt_tokens
        if truncate is None:
            truncate = how.truncate_prompt_tokens
        else:
            instance_of(int, truncate, "truncate_prompt_tokens")
        return texts.limit(limits.max_model_len, truncate, how.truncation_side)

    def tokenization(self) -> Tokenization:
        """Raises InvalidRequest."""
        return tokenization(self.tokenization_kwargs)

    def prefix(self, texts: PoolingTexts) -> str:
        """The model's prompt that is put before texts. Raises InvalidRequest."""
        if self.prompt_name is not None:
            instance_of(str, self.prompt_name, "prompt_name")
        return texts.files.prompt(self.prompt_name)

    def adapters(self, lora: LoraRequests, count: int) -> list[Adapter | None]:
        """The adapter of each of `count` prompts. Raises InvalidRequest."""
        return [*map(lora.adapter, one_each(self.lora_request, count, "lora_request"))]


def default_task(limits: Welcome) -> PoolingTask:
    """The task when the caller names none: the first of BY_TOKEN that the model has. Raises InvalidRequest."""
    found = next((task for task in BY_TOKEN if task in limits.tasks), None)
    if found is None:
        raise InvalidRequest(
            f"this model serves {', '.join(limits.tasks)}; pooling needs a model that serves one of "
            f"{', '.join(BY_TOKEN)}",
            "pooling_task",
        )
    return found


def check_task(task: str, limits: Welcome) -> None:
    """Called before anything is tokenized. Raises InvalidRequest."""
    if task not in limits.tasks:
        raise InvalidRequest(
            f"pooling_task is {task!r:.40}; this model serves {', '.join(limits.tasks)}", "pooling_task"
        )


def params_for(pooling_params: Any, count: int, task: PoolingTask | None) -> list[PoolingParams]:
    """The parameters of each of `count` prompts; `task`, if given, replaces theirs. Raises InvalidRequest."""
    found = one_each(PoolingParams() if pooling_params is None else pooling_params, count, "pooling_params")
    if wrong := next((each for each in found if not isinstance(each, PoolingParams)), None):
        raise InvalidRequest(f"pooling_params is of type {type(wrong).__name__}; pass PoolingParams", "pooling_params")
    return found if task is None else [msgspec.structs.replace(params, task=task) for params in found]


def jobs_of(
    texts: PoolingTexts,
    lora: LoraRequests,
    limits: Welcome,
    prompts: Any,
    pooling_params: Any,
    task: PoolingTask | None,
    options: PoolingOptions,
    names: Sequence[str] = (),
) -> tuple[int, Iterator[PoolingJob]]:
    """The number of jobs and an iterator that makes each job when it is needed. Raises InvalidRequest.

    `names`: how messages name each prompt; () if the caller passed them as `prompts`.
    """
    parsed = parse_prompts(prompts, options.tokenization())
    if task is None and pooling_params is None:
        task = default_task(limits)
    all_params = params_for(pooling_params, len(parsed), task)
    for params in all_params:
        check_task(params.task, limits)
        if params.dimensions is not None:
            instance_of(int, params.dimensions, "dimensions")
        texts.files.check_dimensions(params.dimensions, limits.embedding_size)
    adapters = options.adapters(lora, len(parsed))
    limit, prefix = options.limit(texts, limits), options.prefix(texts)

    def jobs() -> Iterator[PoolingJob]:
        for number, (prompt, params, adapter) in enumerate(zip(parsed, all_params, adapters, strict=True)):
            field = names[number] if names else f"prompts[{number}]"
            special = prompt.tokenization.add_special_tokens is not False
            if prompt.token_ids is not None:
                ids = texts.tokens(prompt.token_ids, limit, limits.vocab_size, field)
            else:
                ids = texts.prompt(prefix + (prompt.text or ""), limit, field, special)
            yield PoolingJob(ids, params, prompt.cache_salt, adapter)

    return len(parsed), jobs()


def one_job(
    texts: PoolingTexts,
    lora: LoraRequests,
    limits: Welcome,
    prompt: Any,
    pooling_params: PoolingParams | None,
    task: PoolingTask | None,
    options: PoolingOptions,
) -> PoolingJob:
    """The job of a single prompt. Raises InvalidRequest."""
    count, jobs = jobs_of(texts, lora, limits, prompt, pooling_params, task, options)
    if count != 1:
        raise InvalidRequest(f"prompt is a list of {count} prompts; call encode once for each prompt", "prompt")
    return next(jobs)


def pairs_of(first: Any, second: Any) -> tuple[list[str], list[str]]:
    """Both sides as lists: `first` has one text or as many as `second`. Raises InvalidRequest."""
    a, b = _texts(first, "data_1"), _texts(second, "data_2")
    if len(a) not in (1, len(b)) or not b:
        raise InvalidRequest(
            f"data_1 has {len(a)} texts and data_2 {len(b)}; pass one text in data_1, or equal numbers", "data_1"
        )
    return a, b


def _texts(given: Any, name: str) -> list[str]:
    texts: Sequence[Any] = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} must be a string or a list of strings", name)
    return [checked_text(text, name) for text in texts]
