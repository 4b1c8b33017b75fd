"""The text side of a loaded model, for LLM and AsyncLLM: tokenizer, chat template and default sampling parameters."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..client.request_terms import instance_of
from ..conversation.conversation import TemplateInput, conversation_of, default_template_kwargs, template_input
from ..conversation.messages import continued_text
from ..conversation.model_files import model_template, sampling_defaults
from ..conversation.prompt_encoder import PromptEncoder, without
from ..conversation.template_process import Templates
from ..conversation.template_renderer import TemplateRenderer
from ..parsers.channel_forms import final_form
from ..parsers.detection import model_formats
from ..parsers.output_reading import output_reading
from ..parsers.thinking import with_thinking
from ..parsers.tool_choice import tool_choice_of
from ..pooling.model_files import PoolingFiles
from ..pooling.texts import PoolingTexts
from ..structured_outputs.choices import without_bad_words
from ..structured_outputs.helper_messages import added_tokens
from ..structured_outputs.in_process import with_grammar
from ..text.model_tokenizer import ModelTokenizer
from ..text.tokenizer import Tokenizer
from .chat_message import ChatReading
from .outputs import generated
from .prompts import AS_USUAL, Prompt, Tokenization, checked_text


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation becomes a prompt; the names are those of `chat`'s parameters."""

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None  # None: the model's template
    chat_template_kwargs: Mapping[str, Any] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    tokenization: Tokenization = AS_USUAL
    documents: Sequence[Mapping[str, Any]] | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of the body of /v1/chat/completions with these options."""
        names = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
        return {
            name: getattr(self, name) for name in (*names, "tools", "documents", "tool_choice", "parallel_tool_calls")
        }


CHAT_OPTIONS = {each.name for each in fields(ChatOptions)} - {"tokenization"}


class ModelText:
    """Thread-safe. Raises ConfigError for unsuitable files of the model."""

    def __init__(self, config: Config):
        folder = config.model.model
        self.tokenizer = Tokenizer(config.model.tokenizer or folder)
        self.encoder = PromptEncoder(self.tokenizer, config.server.allow_special_tokens)
        self.pooling = PoolingTexts(self.tokenizer, self.encoder, PoolingFiles.load(config.model))
        self.default_params = SamplingParams(**sampling_defaults(config.model))
        templates = model_template(folder, self.tokenizer, config.server.chat_template)
        self._templates = templates
        sources = () if templates is None else templates.sources.values()
        self._formats = model_formats(sources, config.server.tool_call_parser, config.server.reasoning_parser)
        self._renderer = None if templates is None else TemplateRenderer(templates)
        self._template_kwargs = default_template_kwargs(config.server.default_chat_template_kwargs)
        self._given_renderer: TemplateRenderer | None = None  # for the last chat_template that a caller passed
        self._given_lock = threading.Lock()  # keeps a renderer from being replaced while it renders

    def changeable_default_params(self) -> SamplingParams:
        return self.default_params.clone()

    def model_tokenizer(self) -> ModelTokenizer:
        def rendered(conversation: Any, **options: Any) -> tuple[str, list[int]]:
            prompt = self.chat_prompt(conversation, ChatOptions(**options))
            return prompt.text or "", prompt.token_ids or []

        sources = {} if self._templates is None else dict(self._templates.sources)
        template = sources if len(sources) > 1 else next(iter(sources.values()), None)
        return ModelTokenizer(self.tokenizer, template, rendered)

    def chat_prompt(self, conversation: Any, options: ChatOptions) -> Prompt:
        """One conversation as text and tokens. Blocks while a separate process renders the template.

        Raises InvalidRequest for a conversation that /v1/chat/completions would refuse, and ConfigError for a
        `chat_template` that does not compile.
        """
        if options.chat_template is None and self._renderer is None:
            raise InvalidRequest("this model has no chat template; pass chat_template or use generate", "chat_template")
        if options.chat_template is not None:
            checked_text(instance_of(str, options.chat_template, "chat_template"), "chat_template")
        body, raw = conversation_of({"messages": conversation, **options.fields()})
        choice = tool_choice_of(body)
        of_template = template_input(body, raw, self._template_kwargs, use_tools=choice.mode != "none")
        given, mark = self.encoder.prepared(of_template)
        rendered = self._render(given, mark, options.chat_template)
        text = without(rendered, mark)
        continued = continued_text(body.messages) if body.continue_final_message else ""
        formats = choice.formats(self._formats)
        reading = output_reading(formats, self.tokenizer, choice.callable, text, continued)
        chat = ChatReading(reading, choice.form(formats.tools))
        adds_special_tokens = bool(options.tokenization.add_special_tokens)
        ids = self.encoder.encode_chat(rendered, mark, adds_special_tokens)
        return Prompt(text, ids, chat=chat, tokenization=options.tokenization)

    def token_ids(self, prompt: Prompt) -> list[int]:
        """The tokens of the prompt. Slow for a long text."""
        ids, how = prompt.token_ids, prompt.tokenization
        if ids is None:
            ids = self.encoder.encode_prompt(prompt.text or "", how.add_special_tokens is not False)
        return how.cut(ids)

    def params_for(self, prompt: Prompt, token_ids: Sequence[int], params: SamplingParams) -> SamplingParams:
        """The parameters that the engine gets for this prompt: with its grammar and thinking budget.

        Raises InvalidRequest.
        """
        chat, begins, ends = prompt.chat or ChatReading(None), None, frozenset[str]()
        params = self._with_grammar(chat, params)
        if params.grammar is not None and chat.reading is not None:
            grammar = chat.reading.behind_reasoning(params.grammar, self.tokenizer)
            params = msgspec.structs.replace(params, grammar=grammar)
        if prompt.chat is not None:
            begins = chat.reading is not None and chat.reading.begins_in_reasoning
        if chat.reading is not None:
            ends = chat.reading.reasoning_calls
        return with_thinking(generated(params), self._formats, self.tokenizer, token_ids, begins=begins, calls=ends)

    def _with_grammar(self, chat: ChatReading, params: SamplingParams) -> SamplingParams:
        form, field = params.structured_outputs, "structured_outputs"
        if chat.calls is not None:
            if form is not None:
                raise InvalidRequest(
                    "structured_outputs and forced or strict tool calls cannot be combined; leave one out",
                    "structured_outputs",
                )
            form, field = chat.calls, "tools"
        elif form is not None:
            form = without_bad_words(form, params.bad_words)
            if chat.reading is not None and self._formats.channels is not None:
                form = final_form(self._formats.channels, form)
        params = msgspec.structs.replace(params, structured_outputs=form)
        return with_grammar(params, added_tokens(self.tokenizer), field)

    def _render(self, given: TemplateInput, mark: str, chat_template: str | None) -> str:
        if chat_template is None:
            assert self._renderer is not None
            return self._renderer.render_now(given, mark=mark)
        templates = Templates({"default": chat_template}, self.tokenizer.special_tokens)
        with self._given_lock:
            if self._given_renderer is None or self._given_renderer.templates != templates:
                if self._given_renderer is not None:
                    self._given_renderer.close()
                self._given_renderer = TemplateRenderer(templates)
            return self._given_renderer.render_now(given, mark=mark)

    def close(self) -> None:
        """End the processes that render templates. May be called twice."""
        for renderer in (self._renderer, self._given_renderer):
            if renderer is not None:
                renderer.close()
