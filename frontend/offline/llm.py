"""LLM: offline inference in this program, without a server.

    with LLM(model="folder-or-hub-name") as llm:
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

It starts the same processes as `paged-serve serve`, but for HTTP, and ends them with itself, with the program, or when
the program is killed. Not safe for use from several threads at once.
"""

import dataclasses
import json
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.engine_core import Utility, Welcome
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..client.sync_client import Client
from ..config.llm_options import config_of
from ..text.tokenizer import Tokenizer
from .batch import Batch, Job
from .beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from .local_engine import CONNECT_TIMEOUT_S, LocalEngine, max_in_flight
from .model_text import ChatOptions, ModelText
from .outputs import CompletionOutput, Logprob, RequestOutput
from .pooling.methods import PoolingMethods
from .progress import MakeBar, ProgressBar
from .prompts import Prompt, check_keywords, one_each, parse_prompts, prepared, tokenization

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]


class LLM(PoolingMethods):
    """A running engine. Raises ConfigError when the model or an option does not fit, EngineDead when it cannot start.

    `options` are those of `paged-serve serve` with underscores: max_num_seqs, block_size, enable_prefix_caching,
    kv_cache_memory_bytes, device, chat_template, … Unknown ones are refused, not ignored.
    """

    def __init__(
        self,
        model: str | None = "",
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
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **same_anyway: Any,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs in the order of the prompts.

        A prompt is a text, a list of token ids, or {"prompt": …} or {"prompt_token_ids": …}; `prompts` is one or a
        list of them. `sampling_params` and `priority` are one for all or one each; without them the model's defaults.
        `use_tqdm` shows a bar on a terminal and in a notebook, or makes another as tqdm does. `same_anyway`: vLLM's
        further keywords, with the values that change nothing.

        Raises InvalidRequest for a prompt or parameter that cannot be served; then nothing goes on running.
        """
        check_keywords(same_anyway, LLM.generate.__annotations__)
        parsed = parse_prompts(prompts, tokenization(tokenization_kwargs))
        return self._run(self._jobs(parsed, sampling_params, priority), use_tqdm)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **same_anyway: Any,
    ) -> list[str]:
        """Keep prompts, as `generate` takes them, for `wait_for_completion`. Their request ids."""
        check_keywords(same_anyway, LLM.enqueue.__annotations__)
        parsed = parse_prompts(prompts, tokenization(tokenization_kwargs))
        jobs = self._jobs(parsed, sampling_params, priority, len(self._enqueued))
        self._enqueued += jobs
        return [str(job.number) for job in jobs]

    def wait_for_completion(self, *, use_tqdm: bool | MakeBar = True) -> list[RequestOutput]:
        """Complete what was enqueued since the last call, in that order. Raises InvalidRequest as `generate` does."""
        jobs, self._enqueued = self._enqueued, []
        return self._run(jobs, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | MakeBar = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **same_anyway: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of messages, or each of a list of conversations.

        They are held to what a body of /v1/chat/completions may hold: InvalidRequest has the words of its 400. The
        outputs have a `message`, with reasoning and calls of tools apart, for the conversation to go on.
        """
        check_keywords(same_anyway, LLM.chat.__annotations__)
        options = ChatOptions(
            tools,
            add_generation_prompt,
            continue_final_message,
            chat_template,
            chat_template_kwargs,
            tool_choice,
            parallel_tool_calls,
            tokenization(tokenization_kwargs),
        )
        several = isinstance(messages, list | tuple) and messages and not isinstance(messages[0], Mapping)
        conversations = messages if several else [messages]
        prompts = [self._text.chat_prompt(conversation, options) for conversation in conversations]
        return self._run(self._jobs(prompts, sampling_params, priority), use_tqdm)

    def beam_search(
        self, prompts: Any, params: BeamSearchParams, *, use_tqdm: bool = False, **same_anyway: Any
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt, as far as beams of that width find them.

        `use_tqdm` changes nothing: how many tokens there will be is not known. Raises InvalidRequest.
        """
        check_keywords(same_anyway, LLM.beam_search.__annotations__)
        limit = self.config.server.max_logprobs
        if 2 * params.beam_width > limit:
            raise InvalidRequest(
                f"beam_width is {params.beam_width}; max_logprobs={limit} allows {limit // 2}, give LLM a larger one",
                "beam_width",
            )

        def one_step(beams: list[list[int]], step: SamplingParams) -> list[RequestOutput]:
            return self._run(self._jobs([Prompt(None, beam) for beam in beams], step, None), False)

        begun = [self._text.token_ids(prompt) for prompt in parse_prompts(prompts)]
        return beam_search(one_step, begun, params, self._text.tokenizer)

    @property
    def limits(self) -> Welcome:
        """The engine's limits, such as vocabulary size and context length."""
        return self._client.limits

    @property
    def run_dir(self) -> str:
        """Where `Client.connect` finds this engine, in other processes of this user, too."""
        return self._engine.run_dir

    def get_tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that `generate` uses by default, from generation_config.json and vLLM's defaults.

        A copy, whose fields may be set before it is given to generate or chat.
        """
        return self._text.changeable_default_params()

    def reset_prefix_cache(self) -> bool:
        """Drop all shared prefixes; True when done."""
        self._client.utility(Utility.RESET_PREFIX_CACHE)
        return True

    def get_metrics(self) -> dict[str, Any]:
        """The engine's current statistics: see protocol.messages.engine_core.SchedulerStats."""
        metrics: dict[str, Any] = json.loads(self._client.utility(Utility.STATS))
        return metrics

    def get_facts(self) -> dict[str, str]:
        """Facts about the running engine, as text: device, dtype, threads, weights, quantization, KV cache."""
        return self._engine.supervisor.facts()

    def close(self) -> None:
        """End the engine; no process is left then. Safe to call twice."""
        self._text.close()
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _jobs(self, prompts: list[Prompt], sampling_params: Any, priority: Any, first: int = 0) -> list[Job]:
        """Numbered from `first`."""
        text = self._text
        all_params = one_each(sampling_params or text.default_params, len(prompts), "sampling_params")
        ready = {id(params): prepared(params, text.tokenizer) for params in all_params}  # often one for all
        priorities = one_each(priority or 0, len(prompts), "priority")
        return [
            Job(number, prompt, ready[id(params)], rank)
            for number, (prompt, params, rank) in enumerate(zip(prompts, all_params, priorities, strict=True), first)
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
