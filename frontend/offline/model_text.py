"""The text side of a loaded model: texts and conversations to tokens, the model's defaults, for LLM and AsyncLLM."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..conversation.conversation import TemplateInput, conversation_input
from ..conversation.model_files import model_template, sampling_defaults
from ..conversation.prompt_encoder import PromptEncoder, without
from ..conversation.template_process import Templates
from ..conversation.template_renderer import TemplateRenderer
from ..parsers.detection import model_formats
from ..parsers.thinking import with_thinking
from ..text.tokenizer import Tokenizer
from .prompts import ChangeableSamplingParams, Prompt


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is written as a prompt; the names are those of `chat`'s arguments."""

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None  # None: the model's
    chat_template_kwargs: Mapping[str, Any] | None = None


class ModelText:
    """Safe to use from several threads. Raises ConfigError when the model's files do not serve."""

    def __init__(self, config: Config):
        folder = config.model.model
        self.tokenizer = Tokenizer(config.model.tokenizer or folder)
        self.encoder = PromptEncoder(self.tokenizer, config.server.allow_special_tokens)
        self.default_params = SamplingParams(**sampling_defaults(config.model))
        templates = model_template(folder, self.tokenizer, config.server.chat_template)
        sources = () if templates is None else templates.sources.values()
        self._formats = model_formats(sources, config.server.tool_call_parser, config.server.reasoning_parser)
        self._renderer = None if templates is None else TemplateRenderer(templates)
        self._given_renderer: TemplateRenderer | None = None  # of the last template that a caller gave
        self._given_lock = threading.Lock()  # no renderer is replaced while it renders

    def changeable_default_params(self) -> SamplingParams:
        fields = {name: getattr(self.default_params, name) for name in SamplingParams.__struct_fields__}
        return ChangeableSamplingParams(**fields)

    def chat_prompt(self, conversation: Any, options: ChatOptions) -> Prompt:
        """One conversation as text and tokens. Blocks while a process of its own renders the template.

        Raises InvalidRequest for what /v1/chat/completions refuses, ConfigError for a given template that does not
        compile.
        """
        if options.chat_template is None and self._renderer is None:
            raise InvalidRequest("this model has no chat template; give chat_template or use generate", "chat_template")
        given, mark = self.encoder.prepared(
            conversation_input(
                conversation,
                options.tools,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                kwargs=options.chat_template_kwargs,
            )
        )
        rendered = self._render(given, mark, options.chat_template)
        text, reasoning = without(rendered, mark), self._formats.reasoning
        begins = reasoning is not None and text.rstrip().endswith(reasoning.begin)
        return Prompt(text, self.encoder.encode_chat(rendered, mark), begins_reasoning=begins)

    def params_for(self, prompt: Prompt, token_ids: Sequence[int], params: SamplingParams) -> SamplingParams:
        """`params` as the engine is given them behind this prompt. Raises InvalidRequest."""
        return with_thinking(params, self._formats, self.tokenizer, token_ids, begins=prompt.begins_reasoning)

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
        """End the processes that render. Safe to call twice."""
        for renderer in (self._renderer, self._given_renderer):
            if renderer is not None:
                renderer.close()
