"""LLM: a model in this program's hands, without a server.

    with LLM(model="folder-or-hub-name") as llm:
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

It starts the same processes as `paged-serve serve`, but for HTTP, and ends them with itself, with the program, or when
the program is killed. Not safe for use from several threads at once.
"""

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.engine_core import Utility, Welcome
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..client.sync_client import Client
from ..config.llm_options import config_of
from ..conversation.conversation import conversation_input
from ..conversation.model_files import model_template, sampling_defaults
from ..conversation.prompt_encoder import PromptEncoder, without
from ..conversation.template_process import Templates
from ..conversation.template_renderer import TemplateRenderer
from ..progress_bar import LoadingBar
from ..supervision.supervisor import Supervisor
from ..text.tokenizer import Tokenizer
from .batch import Batch, Job
from .outputs import CompletionOutput, Logprob, RequestOutput
from .progress import ProgressBar
from .prompts import ChangeableSamplingParams, Prompt, check_no_lora, one_each, parse_prompts, prepared

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]

START_TIMEOUT_S = 3600.0  # large models load for long; a failure is told at once
CONNECT_TIMEOUT_S = 60.0


class LLM:
    """A running engine. Raises ConfigError when the model or an option does not fit, EngineDead when it cannot start.

    `options` are those of `paged-serve serve` with underscores: max_num_seqs, block_size, enable_prefix_caching,
    kv_cache_memory_bytes, device, chat_template, … Unknown ones are refused, not ignored.
    """

    def __init__(
        self,
        model: str = "",
        *,
        tokenizer: str | None = None,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        max_model_len: int | None = None,
        seed: int | None = None,
        **options: Any,
    ):
        named = {"tokenizer": tokenizer, "dtype": dtype, "max_model_len": max_model_len, "seed": seed}
        config = config_of(model, {**named, "tensor_parallel_size": tensor_parallel_size, **options})
        folder = config.model.model
        self.config: Config = config
        self._tokenizer = Tokenizer(config.model.tokenizer or folder)
        self._encoder = PromptEncoder(self._tokenizer, config.server.allow_special_tokens)
        templates = model_template(folder, self._tokenizer, config.server.chat_template)
        self._renderer = None if templates is None else TemplateRenderer(templates)
        self._given_renderer: TemplateRenderer | None = None
        self._default_params = SamplingParams(**sampling_defaults(config.model))
        self._supervisor, thread = _start(config)
        try:
            self._client = Client.connect(self._supervisor.run_dir, timeout_s=CONNECT_TIMEOUT_S)
        except BaseException:
            _end(None, self._supervisor, thread)
            raise
        self._finalizer = weakref.finalize(self, _end, self._client, self._supervisor, thread)
        in_forked_child(self, lambda llm: llm._finalizer.detach())

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs in the order of the prompts.

        A prompt is a text, a list of token ids, or {"prompt": …} or {"prompt_token_ids": …}; `prompts` is one or a
        list of them. `sampling_params` and `priority` are one for all or one each; without them the model's defaults.
        Raises InvalidRequest for a prompt or parameter that cannot be served; then nothing goes on running.
        """
        check_no_lora(lora_request)
        return self._run(parse_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int | Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of messages, or each of a list of conversations.

        They are held to what a body of /v1/chat/completions may hold: InvalidRequest has the words of its 400.
        """
        check_no_lora(lora_request)
        renderer = self._renderer_of(chat_template)
        several = isinstance(messages, list | tuple) and messages and not isinstance(messages[0], Mapping)
        conversations = messages if several else [messages]
        prompts = []
        for conversation in conversations:
            given, mark = self._encoder.prepared(
                conversation_input(
                    conversation,
                    tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    kwargs=chat_template_kwargs,
                )
            )
            rendered = renderer.render_now(given, mark=mark)
            prompts.append(Prompt(without(rendered, mark), self._encoder.encode_chat(rendered, mark)))
        return self._run(prompts, sampling_params, use_tqdm, priority)

    @property
    def limits(self) -> Welcome:
        """What the engine takes: the size of its vocabulary, the longest context."""
        return self._client.limits

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate uses when it is given none: the model's generation_config.json over the field's defaults.

        A copy, whose fields may be set before it is given to generate or chat.
        """
        fields = {name: getattr(self._default_params, name) for name in SamplingParams.__struct_fields__}
        return ChangeableSamplingParams(**fields)

    def reset_prefix_cache(self) -> bool:
        """Forget what prompts shared; True when done."""
        self._client.utility(Utility.RESET_PREFIX_CACHE)
        return True

    def get_metrics(self) -> dict[str, Any]:
        """The engine's figures now: see protocol.engine_core.SchedulerStats."""
        metrics: dict[str, Any] = json.loads(self._client.utility(Utility.STATS))
        return metrics

    def get_facts(self) -> dict[str, str]:
        """What runs here, in figures for people: device, dtype, threads, weights, quantization, KV cache."""
        return self._supervisor.facts()

    def close(self) -> None:
        """End the engine; no process is left then. Safe to call twice."""
        for renderer in (self._renderer, self._given_renderer):
            if renderer is not None:
                renderer.close()
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _renderer_of(self, chat_template: str | None) -> TemplateRenderer:
        """For the model's template, or one that a caller gives. Raises ConfigError when that does not compile."""
        if chat_template is None:
            if self._renderer is None:
                raise InvalidRequest(
                    "this model has no chat template; give chat_template or use generate", "chat_template"
                )
            return self._renderer
        templates = Templates({"default": chat_template}, self._tokenizer.special_tokens)
        if self._given_renderer is None or self._given_renderer.templates != templates:
            if self._given_renderer is not None:
                self._given_renderer.close()
            self._given_renderer = TemplateRenderer(templates)
        return self._given_renderer

    def _run(self, prompts: list[Prompt], sampling_params: Any, use_tqdm: bool, priority: Any) -> list[RequestOutput]:
        all_params = one_each(sampling_params or self._default_params, len(prompts), "sampling_params")
        ready = {id(params): prepared(params, self._tokenizer) for params in all_params}  # often one for all
        priorities = one_each(priority or 0, len(prompts), "priority")
        jobs = [
            Job(number, prompt, ready[id(params)], rank)
            for number, (prompt, params, rank) in enumerate(zip(prompts, all_params, priorities, strict=True))
        ]
        with ProgressBar(len(jobs), use_tqdm) as progress:
            try:
                results = Batch(self._client, self._encoder, self._tokenizer, self._max_in_flight, progress.done).run(
                    jobs
                )
            except EngineDead as error:
                reason = self._supervisor.reason
                raise EngineDead(f"{error}: {reason}" if reason else str(error)) from None
        return [results[job.number] for job in jobs]

    @property
    def _max_in_flight(self) -> int:
        """Enough to keep every row busy, and less than would be told to come back."""
        scheduler = self.config.scheduler
        return min(4 * scheduler.max_num_seqs, scheduler.max_num_seqs + scheduler.max_num_queued_requests // 2)


def _start(config: Config) -> tuple[Supervisor, threading.Thread]:
    """Processes that are ready, and the thread that looks after them."""
    supervisor = Supervisor(config)
    bar = LoadingBar()
    supervisor.start()
    try:
        supervisor.wait_ready(START_TIMEOUT_S, bar)
    except BaseException:  # a failed start has ended by itself; ctrl-C has not
        supervisor.stop()
        supervisor.run()
        raise
    finally:
        bar.clear()
    # A daemon: at the program's end other threads are joined before the finalizer that would stop this one.
    thread = threading.Thread(target=supervisor.run, name="supervisor", daemon=True)
    thread.start()
    return supervisor, thread


def _end(client: Client | None, supervisor: Supervisor, thread: threading.Thread) -> None:
    if client is not None:
        client.close()
    supervisor.stop()
    thread.join()
