"""The pooling methods of LLM, with vLLM's names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import PoolingParams, PoolingTask

from ...adapters.lora_requests import LoRARequest, LoraRequests
from ...client.sync_client import Client
from ...pooling.similarity import cosine, max_sim, numbers, score_type
from ...pooling.texts import entry_names
from ..local_engine import LocalEngine, max_in_flight
from ..model_text import ModelText
from ..progress import MakeBar, ProgressBar
from ..prompts import check_keywords
from .batch import PoolingBatch
from .outputs import (
    Answered,
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    pooling_output,
)
from .prompts import PoolingJob, PoolingOptions, check_task, jobs_of, pairs_of, params_for

Params = PoolingParams | Sequence[PoolingParams] | None
Loras = LoRARequest | Sequence[LoRARequest | None] | None


class PoolingMethods:
    """Prompts have the forms that `generate` accepts. Each method raises InvalidRequest for input that cannot be
    served, and leaves no request running.

    `truncate_prompt_tokens`: the number of tokens that a longer prompt is cut to; -1 is the model's maximum.
    `prompt_name`: a prompt of the model's config_sentence_transformers.json; it is put before each text.
    `lora_request`: one adapter for all prompts, or a list with one or None for each; None is the base model.
    """

    config: Config
    _text: ModelText
    _client: Client
    _lora: LoraRequests
    _engine: LocalEngine

    def encode(
        self,
        prompts: Any,
        pooling_params: Params = None,
        *,
        pooling_task: PoolingTask | None = None,
        use_tqdm: bool | MakeBar = True,
        lora_request: Loras = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
        **vllm_keywords: Any,
    ) -> list[PoolingRequestOutput]:
        """The vectors of `pooling_task`. If it is None, `pooling_params` name the task; if these are None as well, it
        is the task of the model that returns the most numbers."""
        check_keywords(vllm_keywords, PoolingMethods.encode.__annotations__)
        options = PoolingOptions(truncate_prompt_tokens, tokenization_kwargs, prompt_name, lora_request)
        answered = self._pooled(prompts, pooling_params, pooling_task, options, use_tqdm)
        return [pooling_output(each, number) for number, each in enumerate(answered)]

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | MakeBar = True,
        pooling_params: Params = None,
        lora_request: Loras = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
        **vllm_keywords: Any,
    ) -> list[EmbeddingRequestOutput]:
        """One embedding per prompt."""
        check_keywords(vllm_keywords, PoolingMethods.embed.__annotations__)
        options = PoolingOptions(truncate_prompt_tokens, tokenization_kwargs, prompt_name, lora_request)
        return [
            EmbeddingRequestOutput(outputs=EmbeddingOutput.of(each.pooled), **each.facts(number))
            for number, each in enumerate(self._pooled(prompts, pooling_params, "embed", options, use_tqdm))
        ]

    def classify(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | MakeBar = True,
        pooling_params: Params = None,
        lora_request: Loras = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
        **vllm_keywords: Any,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each class, for each prompt."""
        check_keywords(vllm_keywords, PoolingMethods.classify.__annotations__)
        options = PoolingOptions(truncate_prompt_tokens, tokenization_kwargs, prompt_name, lora_request)
        return [
            ClassificationRequestOutput(outputs=ClassificationOutput.of(each.pooled), **each.facts(number))
            for number, each in enumerate(self._pooled(prompts, pooling_params, "classify", options, use_tqdm))
        ]

    def reward(
        self,
        prompts: Any,
        *,
        use_tqdm: bool | MakeBar = True,
        pooling_params: Params = None,
        lora_request: Loras = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
        **vllm_keywords: Any,
    ) -> list[PoolingRequestOutput]:
        """A reward model's scores for each token."""
        check_keywords(vllm_keywords, PoolingMethods.reward.__annotations__)
        return self.encode(
            prompts,
            pooling_params,
            pooling_task="token_classify",
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            truncate_prompt_tokens=truncate_prompt_tokens,
            tokenization_kwargs=tokenization_kwargs,
            prompt_name=prompt_name,
        )

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool | MakeBar = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> list[ScoringRequestOutput]:
        """How well each text of `data_2` matches the corresponding text of `data_1`, or its only text.

        With an embedding model the score is the cosine of two embeddings, with a late-interaction model the sum of
        each token's best match (MaxSim); a cross-encoder reads both texts at once. One adapter computes all texts.
        """
        check_keywords(vllm_keywords, PoolingMethods.score.__annotations__)
        adapter = self._lora.adapter(lora_request)
        options = PoolingOptions(truncate_prompt_tokens, tokenization_kwargs, lora_request=lora_request)
        limits = self._client.limits
        first, second = pairs_of(data_1, data_2)
        if (kind := score_type(limits)) in ("bi-encoder", "late-interaction"):
            [params] = params_for(pooling_params, 1, "embed" if kind == "bi-encoder" else "token_embed")
            return self._similarities(first, second, params, options, use_tqdm)
        check_task("classify", limits)
        if limits.num_labels != 1:
            raise InvalidRequest(
                f"this model has {limits.num_labels} classes; score needs a model with one class or an embedding "
                "model: use classify",
                "data_1",
            )
        [params] = params_for(pooling_params, 1, "classify")
        jobs = self._pair_jobs(first, second, params, options, adapter)
        answers = self._run_pooling(len(second), jobs, use_tqdm)
        return [
            ScoringRequestOutput(outputs=ScoringOutput(numbers(each.pooled.values)[0]), **each.facts(number))
            for number, each in enumerate(answers)
        ]

    def _similarities(
        self,
        first: list[str],
        second: list[str],
        params: PoolingParams,
        options: PoolingOptions,
        use_tqdm: bool | MakeBar,
    ) -> list[ScoringRequestOutput]:
        params = msgspec.structs.replace(params, use_activation=True)  # a cosine ignores their lengths
        names = entry_names("data_1", len(first)) + entry_names("data_2", len(second))
        vectors = self._pooled([*first, *second], params, params.task, options, use_tqdm, names)
        return [
            _similarity(number, vectors[number if len(first) > 1 else 0], vectors[len(first) + number])
            for number in range(len(second))
        ]

    def _pair_jobs(
        self,
        first: list[str],
        second: list[str],
        params: PoolingParams,
        options: PoolingOptions,
        adapter: Adapter | None,
    ) -> Iterator[PoolingJob]:
        texts = self._text.pooling
        limit = options.limit(texts, self._client.limits)
        if options.tokenization().add_special_tokens is False:
            raise InvalidRequest(
                "add_special_tokens is false; a pair of texts always has its special tokens", "tokenization_kwargs"
            )
        names = entry_names("data_1", len(first))
        begun = [texts.part(text, limit, name) for name, text in zip(names, first, strict=True)]
        for number, (name, text) in enumerate(zip(entry_names("data_2", len(second)), second, strict=True)):
            part = texts.part(text, limit, name)
            ids, begins = texts.pair(begun[number if len(begun) > 1 else 0], part, limit, name)
            yield PoolingJob(ids, msgspec.structs.replace(params, second_text=begins), adapter=adapter)

    def _pooled(
        self,
        prompts: Any,
        params: Params,
        task: PoolingTask | None,
        options: PoolingOptions,
        use_tqdm: bool | MakeBar,
        names: Sequence[str] = (),
    ) -> list[Answered]:
        texts, limits = self._text.pooling, self._client.limits
        count, jobs = jobs_of(texts, self._lora, limits, prompts, params, task, options, names)
        return self._run_pooling(count, jobs, use_tqdm)

    def _run_pooling(self, count: int, jobs: Iterator[PoolingJob], use_tqdm: bool | MakeBar) -> list[Answered]:
        found = list[Answered]()
        with ProgressBar(count, use_tqdm) as progress:
            try:
                for each in PoolingBatch(self._client, max_in_flight(self.config)).run(jobs):
                    found.append(each)
                    progress.add(len(each.job.token_ids))
            except EngineDead as error:
                raise EngineDead(self._engine.why(error)) from None
        return found


def _similarity(number: int, a: Answered, b: Answered) -> ScoringRequestOutput:
    both = Answered(PoolingJob([*a.job.token_ids, *b.job.token_ids], b.job.params), b.pooled, b.answer)
    by_token = b.job.params.task == "token_embed"
    score = max_sim(a.pooled, b.pooled) if by_token else cosine(a.pooled.values, b.pooled.values)
    return ScoringRequestOutput(outputs=ScoringOutput(score), **both.facts(number))
