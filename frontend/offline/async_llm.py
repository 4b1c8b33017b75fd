"""AsyncLLM: LLM for programs with an event loop, asyncio's or uvloop's.

    async with AsyncLLM(model="folder-or-hub-name") as llm:
        async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64)):
            print(output.outputs[0].text, output.finished)

Any number of requests run at once; each has exactly the outputs that `LLM.generate` would return. An AsyncLLM belongs
to one event loop. Leaving an `async for`, in whatever way, aborts its request.
"""

import asyncio
import dataclasses
import itertools
import json
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, TypeVar

from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.engine_core import Utility, Welcome
from paged_serve.protocol.messages.pooling_params import PoolingParams, PoolingTask
from paged_serve.protocol.messages.sampling_params import RequestOutputKind, SamplingParams

from ..adapters.lora_requests import LoRARequest, LoraRequests
from ..client.async_client import AsyncClient
from ..client.request_terms import instance_of
from ..config.llm_options import config_of
from ..text.model_tokenizer import ModelTokenizer
from ..text.off_loop import LONG, off_loop, text_threads
from .generation import Generation, MakePrompt, PromptThreads
from .in_flight import InFlightLimit, unused_id
from .local_engine import CONNECT_TIMEOUT_S, LocalEngine, max_in_flight
from .model_text import ChatOptions, ModelText
from .outputs import NewParts, RequestOutput, check_output_kind, in_form, keep_best
from .pooling.async_job import AsyncPoolingJob
from .pooling.outputs import PoolingRequestOutput
from .pooling.prompts import PoolingOptions, one_job
from .prompts import Prompt, check_keywords, parse_prompts, tokenization

SHUT_DOWN = "this AsyncLLM was shut down; create another"
Work = TypeVar("Work", Generation, AsyncPoolingJob)


class AsyncLLM:
    """An engine that is started by `async with`, by `start`, or by the first request. The options are those of LLM.

    The call that starts it raises ConfigError for an unsuitable model or option, and EngineDead if the engine cannot
    start. Loading, starting and tokenizing long texts run in threads.
    """

    def __init__(self, model: str | PathLike[str] | None = "", **options: Any):
        self._model, self._options = model or "", options
        self._starting: asyncio.Task[None] | None = None
        self._is_shut_down = False
        self._generations: dict[str, Generation | AsyncPoolingJob] = {}
        self._request_ids = map(str, itertools.count())
        self._threads = text_threads()

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> "AsyncLLM":
        """An AsyncLLM with the options of a `paged_serve.EngineArgs`."""
        return cls(**dataclasses.asdict(engine_args))

    async def start(self) -> None:
        """Start the engine, unless it is started, and wait until it accepts requests."""
        if self._is_shut_down:
            raise EngineDead(SHUT_DOWN)
        loop = asyncio.get_running_loop()
        if self._starting is None:
            self._starting = loop.create_task(self._start())
        elif self._starting.get_loop() is not loop:
            raise EngineDead("this AsyncLLM belongs to the event loop that started it; create another in this loop")
        if not self._starting.done():
            await asyncio.wait([self._starting])  # goes on if this caller is cancelled
        if self._starting.cancelled():
            raise EngineDead(SHUT_DOWN)
        self._starting.result()

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt: each output has all tokens so far, and the last one has `finished` set.

        A prompt is a text, a list of token ids, {"prompt": …} or {"prompt_token_ids": …}. `sampling_params` default to
        the model's; their `output_kind` selects cumulative outputs, only new parts, or only the last output.
        `request_id` is the argument of `abort`; by default it is a number. Iteration raises InvalidRequest for a
        request that cannot be served, and EngineDead when the engine has ended.
        """

        async def make() -> Prompt:
            check_keywords(vllm_keywords, AsyncLLM.generate.__annotations__)
            prompts = parse_prompts(prompt, tokenization(tokenization_kwargs))
            if len(prompts) != 1:
                raise InvalidRequest(
                    f"prompt is a list of {len(prompts)} prompts; call generate once for each prompt", "prompt"
                )
            return prompts[0]

        return self._outputs(make, sampling_params, request_id, priority, lora_request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **vllm_keywords: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation, with outputs as from `generate`. Messages are checked as by LLM.chat."""

        async def make() -> Prompt:
            check_keywords(vllm_keywords, AsyncLLM.chat.__annotations__)
            shown = add_generation_prompt, continue_final_message, chat_template, chat_template_kwargs
            rules = tool_choice, parallel_tool_calls, tokenization(tokenization_kwargs)
            options = ChatOptions(tools, *shown, *rules, documents)
            return await off_loop(self._threads, LONG, self._text.chat_prompt, messages, options)

        return self._outputs(make, sampling_params, request_id, priority, lora_request)

    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        pooling_task: PoolingTask | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt_name: str | None = None,
        **vllm_keywords: Any,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yield one output, with the vector of the prompt, like `LLM.encode`. Raises RequestFailed when aborted."""
        await self.start()
        check_keywords(vllm_keywords, AsyncLLM.encode.__annotations__)
        options = PoolingOptions(truncate_prompt_tokens, tokenization_kwargs, prompt_name, lora_request)
        work = self._begin(AsyncPoolingJob, request_id)
        try:
            texts, limits = self._text.pooling, self._client.limits
            make = partial(one_job, texts, self._lora, limits, prompt, pooling_params, pooling_task, options)
            yield await work.output(make, self._threads, priority)
        except EngineDead as error:
            raise EngineDead(self._engine.why(error)) from None
        finally:
            work.end()
            del self._generations[work.request_id]

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; the tokens of each so far are its last output. Ids of ended requests are ignored."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            if (generation := self._generations.get(each)) is not None:
                generation.abort()

    async def check_health(self) -> None:
        """Raises EngineDead if the engine has ended. An engine that is being restarted has not ended."""
        await self.start()
        if self._client.failure is not None:
            raise EngineDead(self._engine.why(self._client.failure))

    async def get_metrics(self) -> dict[str, Any]:
        """The engine's current statistics, as in LLM.get_metrics."""
        await self.start()
        metrics: dict[str, Any] = json.loads(await self._client.utility(Utility.STATS))
        return metrics

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; returns True."""
        await self.start()
        await self._client.utility(Utility.RESET_PREFIX_CACHE)
        return True

    async def get_facts(self) -> dict[str, str]:
        """Facts about the running engine, as text: device, dtype, threads, weights, quantization, KV cache."""
        await self.start()
        return self._engine.supervisor.facts()

    async def get_tokenizer(self) -> ModelTokenizer:
        await self.start()
        return self._text.model_tokenizer()

    async def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the sampling parameters that `generate` uses by default; its fields may be set."""
        await self.start()
        return self._text.changeable_default_params()

    async def get_limits(self) -> Welcome:
        """The engine's limits, such as vocabulary size and context length."""
        await self.start()
        return self._client.limits

    async def shutdown(self) -> None:
        """End the engine and all its processes; running requests end with EngineDead. May be called twice."""
        self._is_shut_down = True
        if self._starting is None:
            return
        if not self._starting.done():  # it may belong to a loop that is closed
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if not self._starting.cancelled() and self._starting.exception() is None:
            await self._client.close()
            self._limit.lift()
            await asyncio.to_thread(self._finalizer)
            await asyncio.to_thread(self._text.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncLLM":
        try:
            await self.start()
        except BaseException:
            await self.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _start(self) -> None:
        config = await asyncio.to_thread(config_of, self._model, self._options)
        self._text = await asyncio.to_thread(ModelText, config)
        engine = LocalEngine(config)
        starting = asyncio.ensure_future(asyncio.to_thread(engine.start))
        try:
            await asyncio.shield(starting)
            self._client = await AsyncClient.connect(engine.run_dir, timeout_s=CONNECT_TIMEOUT_S)
            self._text.tokenizer.check_tasks(self._client.limits.tasks)
        except BaseException:
            engine.stop()  # also ends a start in progress
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.to_thread(engine.end)
            raise
        self.config, self._engine, self._lora = config, engine, LoraRequests(config.lora)
        self._limit = InFlightLimit(max_in_flight(config))
        self._finalizer = weakref.finalize(self, engine.end)
        in_forked_child(self, lambda llm: llm._finalizer.detach())

    async def _outputs(
        self,
        make_prompt: MakePrompt,
        sampling_params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        lora_request: LoRARequest | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        await self.start()
        generation = self._begin(Generation, request_id)
        try:
            asked = self._text.default_params if sampling_params is None else sampling_params
            asked = instance_of(SamplingParams, asked, "sampling_params")
            check_output_kind(asked)
            adapter = await off_loop(self._threads, LONG if lora_request else 0, self._lora.adapter, lora_request)
            threads = PromptThreads(self._text, self._threads)
            await generation.begin(threads, make_prompt, asked, priority, adapter)
            parts = NewParts() if asked.output_kind is RequestOutputKind.DELTA else None
            while not (output := await generation.next()).finished:
                if asked.output_kind is not RequestOutputKind.FINAL_ONLY:
                    yield in_form(output if parts is None else parts.of(output), asked)
            keep_best(output, asked)
            yield in_form(output if parts is None else parts.of(output), asked)
        except EngineDead as error:
            raise EngineDead(self._engine.why(error)) from None
        finally:
            generation.end()
            del self._generations[generation.request_id]

    def _begin(self, kind: type[Work], request_id: str | None) -> Work:
        request_id = unused_id(request_id, self._generations, self._request_ids)
        self._generations[request_id] = work = kind(request_id, self._client, self._limit)
        return work
