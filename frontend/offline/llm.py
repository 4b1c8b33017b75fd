"""LLM: offline inference in this program, without an HTTP server.

    with LLM(model="folder-or-hub-name") as llm:
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

It starts the processes of `paged-serve serve` except the HTTP frontend. They end when the LLM is closed and when the
program ends or is killed. Not thread-safe.
"""

import dataclasses
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, cast

from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.engine_core import Utility, Welcome
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..adapters.lora_requests import LoRARequest, LoraRequests
from ..client.request_terms import instance_of
from ..client.sync_client import Client
from ..config.llm_options import config_of
from ..text.beam_search import BeamSearchParams, check_beam_width
from ..text.model_tokenizer import ModelTokenizer
from .batch import Batch, Job
from .beam_search import BeamSearchOutput, beam_search
from .local_engine import CONNECT_TIMEOUT_S, LocalEngine, max_in_flight
from .model_text import CHAT_OPTIONS, ChatOptions, ModelText
from .outputs import CompletionOutput, Logprob, RequestOutput
from .pooling.methods import PoolingMethods
from .progress import MakeBar, ProgressBar
from .prompts import Prompt, check_keywords, one_each, parse_prompts, prepared, tokenization

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]


class LLM(PoolingMethods):
    """A running engine. Raises ConfigError for an unsuitable model or option, EngineDead if the engine cannot start.

    `options` are those of `paged-serve serve` with underscores: max_num_seqs, block_size, enable_prefix_caching,
    kv_cache_memory_bytes, device, chat_template, … Unknown options are refused.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = "",
        *,
        tokenizer: str | None = None,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        max_model_len: int | None = None,
        seed: int | None = None,
        **options: Any,
    ):
        named = {"tokenizer": tokenizer, "dtype": dtype, "max_model_len": max_model_len, "seed": seed}
        config = config_of(model or "", {**named, "tensor_parallel_size": tensor_parallel_size, **options})
        self.config = config
        self._text = ModelText(config)
        self._lora = LoraRequests(config.lora)
        self._enqueued: list[Job] = []
        self._engine = LocalEngine(config)
        self._engine.start()
        try:
            self._client = Client.connect(self._engine.run_dir, timeout_s=CONNECT_TIMEOUT_S)
            self._text.tokenizer.check_tasks(self._client.limits.tasks)
        except BaseException:
            self._engine.end()
            raise
        self._finalizer = weakref.finalize(self, _end, self._client, self._engine)
        in_forked_child(self, lambda llm: llm._finalizer.detach())

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> "LLM":
        """An LLM with the options of a `paged_serve.EngineArgs`."""
        return cls(**dataclasses.asdict(engine_args))

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | MakeBar = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs are in the order of the prompts.

        A prompt is a text, a list of token ids, {"prompt": …} or {"prompt_token_ids": …}; `prompts` is one prompt or a
        list. `sampling_params`, `priority` and `lora_request` are one value for all prompts or a list with one each;
        without them the model's defaults and no adapter apply. `use_tqdm`: whether to show a progress bar on a terminal
        or in a notebook, or a callable with tqdm's arguments that makes one. `vllm_keywords`: further keywords of vLLM,
        accepted with values that have no effect.

        Raises InvalidRequest for a prompt or parameter that cannot be served; no request is left running then.
        """
        check_keywords(vllm_keywords, LLM.generate.__annotations__)
        parsed = parse_prompts(prompts, tokenization(tokenization_kwargs))
        return self._run(self._jobs(parsed, sampling_params, priority, lora_request), use_tqdm)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> list[str]:
        """Queue prompts, given as for `generate`, until `wait_for_completion`. Returns their request ids."""
        check_keywords(vllm_keywords, LLM.enqueue.__annotations__)
        parsed = parse_prompts(prompts, tokenization(tokenization_kwargs))
        return self._enqueue(parsed, sampling_params, priority, lora_request)

    def enqueue_chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[str]:
        """Queue conversations, given as for `chat` with its `options`; otherwise as `enqueue`."""
        given = {name: options.pop(name) for name in CHAT_OPTIONS & options.keys()}
        check_keywords(options, LLM.chat.__annotations__)
        chat = ChatOptions(**given, tokenization=tokenization(tokenization_kwargs))
        return self._enqueue(self._conversations(messages, chat), sampling_params, priority, lora_request)

    def wait_for_completion(self, *, use_tqdm: bool | MakeBar = True) -> list[RequestOutput]:
        """Complete the prompts enqueued since the last call, in order. Raises InvalidRequest as `generate` does."""
        jobs, self._enqueued = self._enqueued, []
        return self._run(jobs, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | MakeBar = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of messages, or each of a list of conversations.

        The rules for messages are those of /v1/chat/completions: InvalidRequest has the message of its status 400. Each
        output has a `message`, with reasoning and tool calls in separate fields, to be appended to the conversation.
        """
        check_keywords(vllm_keywords, LLM.chat.__annotations__)
        options = ChatOptions(
            tools,
            add_generation_prompt,
            continue_final_message,
            chat_template,
            chat_template_kwargs,
            tool_choice,
            parallel_tool_calls,
            tokenization(tokenization_kwargs),
            documents,
        )
        jobs = self._jobs(self._conversations(messages, options), sampling_params, priority, lora_request)
        return self._run(jobs, use_tqdm)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = False,
        **vllm_keywords: Any,
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of each prompt that a beam search of this width finds.

        `use_tqdm` has no effect, because the number of tokens is not known in advance. Raises InvalidRequest.
        """
        check_keywords(vllm_keywords, LLM.beam_search.__annotations__)
        instance_of(BeamSearchParams, params, "params")
        check_beam_width(params.beam_width, self.config.server.max_logprobs, "beam_width")
        parsed = parse_prompts(prompts)
        begun = [self._text.token_ids(prompt) for prompt in parsed]
        adapters = one_each(lora_request, len(begun), "lora_request")

        def one_step(beams: list[list[int]], numbers: list[int], step: SamplingParams) -> list[RequestOutput]:
            own = [adapters[number] for number in numbers]
            salts = [parsed[number].cache_salt for number in numbers]
            jobs = self._jobs(list(map(Prompt, repeat(None), beams, salts)), step, None, own)
            return self._run(jobs, False)

        return beam_search(one_step, begun, params, self._text.tokenizer, self.limits)

    @property
    def limits(self) -> Welcome:
        """The engine's limits, such as vocabulary size and context length."""
        return self._client.limits

    @property
    def run_dir(self) -> str:
        """The address for `Client.connect`, in this process and other processes of the same user."""
        return self._engine.run_dir

    def get_world_size(self) -> int:
        """The number of ranks that the model is divided into."""
        return self.config.parallel.tensor_parallel_size

    def get_tokenizer(self) -> ModelTokenizer:
        return self._text.model_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that `generate` uses by default, from generation_config.json and vLLM's defaults.

        A copy; its fields may be set before it is passed to generate or chat.
        """
        return self._text.changeable_default_params()

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; returns True."""
        self._client.utility(Utility.RESET_PREFIX_CACHE)
        return True

    def get_metrics(self) -> dict[str, Any]:
        """The engine's current statistics: the fields of protocol.messages.stats.SchedulerStats."""
        return cast("dict[str, Any]", json.loads(self._client.utility(Utility.STATS)))

    def get_facts(self) -> dict[str, str]:
        """Facts about the running engine, as text: device, dtype, threads, weights, quantization, KV cache."""
        return self._engine.supervisor.facts()

    def close(self) -> None:
        """End the engine and all its processes. May be called twice."""
        self._text.close()
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _conversations(self, messages: Any, options: ChatOptions) -> list[Prompt]:
        """The prompts of one conversation, or of a list of conversations."""
        several = isinstance(messages, list | tuple) and messages and not isinstance(messages[0], Mapping)
        return [self._text.chat_prompt(each, options) for each in (messages if several else [messages])]

    def _enqueue(self, prompts: list[Prompt], sampling_params: Any, priority: Any, lora_request: Any) -> list[str]:
        jobs = self._jobs(prompts, sampling_params, priority, lora_request, len(self._enqueued))
        self._enqueued += jobs
        return [str(job.number) for job in jobs]

    def _jobs(
        self, prompts: list[Prompt], sampling_params: Any, priority: Any, lora_request: Any = None, first: int = 0
    ) -> list[Job]:
        """The jobs of the prompts, numbered from `first`."""
        text = self._text
        given = text.default_params if sampling_params is None else sampling_params
        all_params = one_each(given, len(prompts), "sampling_params")
        ready = {id(params): prepared(params, text.tokenizer) for params in all_params}  # often all are one object
        priorities = one_each(0 if priority is None else priority, len(prompts), "priority")
        adapters = list(map(self._lora.adapter, one_each(lora_request, len(prompts), "lora_request")))
        for prompt, params in zip(prompts, all_params, strict=True):
            prompt.truncate_to(self.limits.max_model_len, params.max_tokens)
        each = zip(prompts, all_params, priorities, adapters, strict=True)
        return [
            Job(number, prompt, ready[id(params)], rank, adapter)
            for number, (prompt, params, rank, adapter) in enumerate(each, first)
        ]

    def _run(self, jobs: list[Job], use_tqdm: bool | MakeBar) -> list[RequestOutput]:
        with ProgressBar(len(jobs), use_tqdm) as progress:
            try:
                batch = Batch(self._client, self._text, max_in_flight(self.config), progress.done)
                results = batch.run(jobs)
            except EngineDead as error:
                raise EngineDead(self._engine.why(error)) from None
        return [results[job.number] for job in jobs]


def _end(client: Client, engine: LocalEngine) -> None:
    client.close()
    engine.end()
