"""Shared by all routes: the text side of the loaded model, the client, and admission."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import Task

from ..adapters.known_adapters import KnownAdapters
from ..admission import Admission
from ..buffer_budget import BufferBudget
from ..client.async_client import AsyncClient
from ..conversation.conversation import default_template_kwargs
from ..conversation.model_files import kept_template, model_template, sampling_defaults
from ..conversation.prompt_encoder import PromptEncoder
from ..conversation.strict_json import decode_body
from ..conversation.template_renderer import TemplateRenderer
from ..parsers.detection import ModelFormats, model_formats
from ..pooling.io_processors import IOProcessor, load_io_processors
from ..pooling.model_files import PoolingFiles
from ..pooling.texts import PoolingTexts
from ..structured_outputs.compiler import GrammarCompiler
from ..structured_outputs.helper_messages import added_tokens
from ..text.off_loop import LONG, off_loop, text_threads
from ..text.tokenizer import Tokenizer
from .exchange.errors import HttpError
from .exchange.fingerprint import fingerprint, named_model, with_adapter
from .exchange.metrics import Metrics
from .idempotency.store import AnswerStore
from .stored_responses.store import StoredResponses

Result = TypeVar("Result")
log = logging.getLogger(__name__)
MAX_NAMES_SHOWN = 20  # in an error
ROUTE_OF: dict[Task, str] = {
    "generate": "/v1/chat/completions",
    "embed": "/v1/embeddings",
    "classify": "/classify",
    "token_embed": "/pooling",
    "token_classify": "/pooling",
}


@dataclass(slots=True)
class TextSide:
    """The parts of a model folder that the frontend loads; `load` takes up to a second for a large vocabulary."""

    config: Config
    tokenizer: Tokenizer
    template: TemplateRenderer | None
    template_kwargs: Mapping[str, Any]
    longest_token_chars: int
    sampling_defaults: Mapping[str, Any]
    formats: ModelFormats
    pooling_files: PoolingFiles
    adapters: KnownAdapters

    @classmethod
    def load(cls, config: Config, run_dir: str = "") -> "TextSide":
        """Read the model's files, and those of its adapters. Raises ConfigError if they are unusable."""
        folder = config.model.tokenizer or config.model.model
        tokenizer = Tokenizer(folder)
        override = kept_template(config.server.chat_template, run_dir)
        template = model_template(config.model.model, tokenizer, override)
        renderer = None if template is None else TemplateRenderer(template)
        server = config.server
        formats = model_formats(
            () if template is None else template.sources.values(), server.tool_call_parser, server.reasoning_parser
        )
        kwargs, defaults = default_template_kwargs(server.default_chat_template_kwargs), sampling_defaults(config.model)
        files, adapters = PoolingFiles.load(config.model), KnownAdapters(config, run_dir)
        adapters.read_configured()
        longest = tokenizer.longest_token_chars()
        return cls(config, tokenizer, renderer, kwargs, longest, defaults, formats, files, adapters)

    def facts(self) -> dict[str, str]:
        """Lines for the banner."""
        return {
            "vocabulary": f"{self.tokenizer.vocab_size} tokens",
            "chat template": "none" if self.template is None else "yes",
            "tool calls": "none" if self.formats.tools is None else self.formats.tools.name,
            "reasoning": self.formats.reasoning_name,
        }


class RequestInProgress(msgspec.Struct):
    """A request in progress, for the operator."""

    id: str
    answer_id: str  # of the answer that its client gets
    status: str  # "waiting" until its first token, then "running"
    key: str  # a name for the API key, which does not reveal it; "" without keys
    frontend: int
    age_s: float
    priority: int
    prompt_tokens: int
    output_tokens: int
    num_choices: int
    num_unfinished: int  # choices
    object: str = "request"


class InProgress(Protocol):
    """A submitted request."""

    def progress(self) -> RequestInProgress: ...

    def abort(self) -> None:
        """End it, as its operator wants; its client gets the output so far or an error."""


class NamesModel(Protocol):
    """The body of a request."""

    @property
    def model(self) -> str | None: ...


Body = TypeVar("Body", bound=NamesModel)


@dataclass(slots=True)
class Service:
    """The state of one frontend process; route handlers are functions of it and an exchange."""

    config: Config
    engine: AsyncClient
    tokenizer: Tokenizer
    encoder: PromptEncoder
    pooling: PoolingTexts
    io_processors: Mapping[str, IOProcessor]  # of plugins, by name
    template: TemplateRenderer | None
    template_kwargs: Mapping[str, Any]  # that the template gets unless a request gives others
    formats: ModelFormats  # the formats of the model's outputs
    grammars: GrammarCompiler
    admission: Admission
    metrics: Metrics
    answers: AnswerStore
    buffers: BufferBudget
    stored: StoredResponses | None  # None: responses are not stored
    model_names: tuple[str, ...]  # of the base model
    adapters: KnownAdapters
    longest_token_chars: int
    sampling_defaults: Mapping[str, Any]  # the model's defaults for fields that a request leaves out
    fingerprint: str
    index: int = 0  # of this frontend
    run_dir: str = ""  # where the other frontends are found
    in_progress: set[InProgress] = field(default_factory=set)  # submitted, and not closed yet
    workers: ThreadPoolExecutor = field(default_factory=text_threads)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls,
        text: TextSide,
        engine: AsyncClient,
        admission: Admission,
        index: int = 0,
        run_dir: str = "",
        buffers: BufferBudget | None = None,
        is_replacement: bool = False,
    ) -> "Service":
        """Raises ConfigError if the tokenizer is unsuitable for the model's tasks.

        The metrics of frontend `index` are merged with those of the others in `run_dir`. `buffers`: None for its own.
        `is_replacement`: of a process that ended; it serves even if stored responses cannot be read.
        """
        text.tokenizer.check_tasks(engine.limits.tasks)
        config = text.config
        buffers = buffers or BufferBudget(config.server.max_buffered_bytes)
        block_size = engine.limits.block_size
        names = config.model.served_model_names or (Path(config.model.model).name,)
        encoder = PromptEncoder(text.tokenizer, config.server.allow_special_tokens)
        return cls(
            config=config,
            engine=engine,
            tokenizer=text.tokenizer,
            encoder=encoder,
            pooling=PoolingTexts(text.tokenizer, encoder, text.pooling_files),
            io_processors=load_io_processors(config.model.plugins, names[0]),
            template=text.template,
            template_kwargs=text.template_kwargs,
            formats=text.formats,
            grammars=GrammarCompiler(added_tokens(text.tokenizer)),
            admission=admission,
            metrics=Metrics(names[0], config.server.metrics_compat, index, config.lora.max_loras, block_size),
            answers=AnswerStore(config.server, buffers),
            buffers=buffers,
            stored=StoredResponses.of(config.server, index, is_replacement=is_replacement),
            model_names=names,
            adapters=text.adapters,
            longest_token_chars=text.longest_token_chars,
            sampling_defaults=text.sampling_defaults,
            fingerprint=fingerprint(config, engine.limits.arithmetic),
            index=index,
            run_dir=run_dir,
        )

    @property
    def max_model_len(self) -> int:
        return self.engine.limits.max_model_len

    async def model_name(self, asked: str | None) -> str:
        """The model name for the answer: the base model's, or an adapter's. Raises HttpError 404 for any other."""
        if asked is None or asked in self.model_names or await self._found(asked):
            return asked or self.model_names[0]
        raise self._no_model(asked)

    async def decoded(self, kind: type[Body], raw: bytes) -> tuple[Body, str, list[str]]:
        """(the body in `raw`, its model's name, warnings). Raises InvalidRequest, or HttpError 404."""
        body, warnings = await self.off_loop(len(raw), decode_body, kind, raw, self.config.server.lenient)
        return body, await self.model_name(body.model), warnings

    def adapter_of(self, model: str | None) -> Adapter | None:
        """The adapter of this name; None: the base model. Raises HttpError 404 if it was unloaded meanwhile."""
        if model is None or model in self.model_names:
            return None
        if (adapter := self.adapters.get(model)) is None:
            raise self._no_model(model)
        return adapter

    def fingerprint_with(self, adapter: Adapter | None) -> str:
        """The system_fingerprint of answers: different for each adapter's weights."""
        return self.fingerprint if adapter is None else with_adapter(self.fingerprint, adapter)

    async def fingerprint_for(self, body: bytes) -> str | None:
        """The fingerprint of the model that a request names; None if no model has this name any more."""
        if not self.adapters.may_exist:
            return self.fingerprint
        model = await self.off_loop(len(body), named_model, body)
        if not model or model in self.model_names:
            return self.fingerprint
        return self.fingerprint_with(self.adapters.get(model)) if await self._found(model) else None

    async def _found(self, name: str) -> bool:
        """Whether an adapter has this name; one that a plugin finds is known from then on."""
        if self.adapters.get(name) is not None:
            return True
        if name in self.model_names or not self.adapters.may_resolve:
            return False
        try:
            return await self.off_loop(LONG, self.adapters.resolve, name) is not None
        except ConfigError as error:
            log.warning("adapter refused name=%r reason=%s", name, error)
            text = f"The adapter '{name:.100}' cannot be used; the server's log has the reason."
            raise HttpError(404, text, "model") from error

    def _no_model(self, asked: str) -> HttpError:
        names = (*self.model_names, *self.adapters.all()) if self.adapters.may_exist else self.model_names
        served = ", ".join(names[:MAX_NAMES_SHOWN]) + (", …" if len(names) > MAX_NAMES_SHOWN else "")
        return HttpError(404, f"The model {asked[:200]!r} does not exist; this server has {served}.", "model")

    def check_task(self, path: str, tasks: Sequence[Task]) -> None:
        """Raises HttpError 400, with the tasks that the model serves, if it serves none of `tasks`."""
        able = self.engine.limits.tasks
        if tasks and not set(tasks) & set(able):
            routes = ", ".join(dict.fromkeys(ROUTE_OF[task] for task in able))
            raise HttpError(
                400,
                f"{path} needs a model that serves {' or '.join(tasks)}; {self.model_names[0]} serves "
                f"{', '.join(able)}: use {routes}.",
                "model",
            )

    def chat_template(self) -> TemplateRenderer:
        if self.template is None:
            raise HttpError(400, "This model has no chat template; use /v1/completions or --chat-template.", "messages")
        return self.template

    async def off_loop(self, size: int, function: Callable[..., Result], *args: Any) -> Result:
        """Run small work in place and large work in a thread, so that other streams continue."""
        return await off_loop(self.workers, size, function, *args)
