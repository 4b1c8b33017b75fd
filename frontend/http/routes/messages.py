"""POST /v1/messages, its count_tokens, and the model list in Anthropic's form, on top of the chat endpoint."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ...admission import PromptTooLong
from ...conversation.strict_json import decode_body
from ...parsers.tool_choice import tool_choice_of
from ..anthropic.answers import MessageUsage, ModelInfo, ModelPage, TokenCount
from ..anthropic.chat_request import chat_request, prompt_fields
from ..anthropic.decoding import decode_messages
from ..anthropic.schemas import CountTokensRequest, MessagesRequest
from ..anthropic.writer import MessageWriter, Output
from ..exchange.exchange import Exchange
from ..openai.chat import chat_prompt
from ..openai.chat_choice import ChatChoice
from ..openai.endpoints import Endpoint
from ..openai.generation import Generation, Prompt
from ..openai.request.prompts import chat_tokens
from ..openai.request.schemas import ChatCompletionRequest
from ..service import Service


class TranslatedRequest(ChatCompletionRequest, frozen=True, kw_only=True):
    """A body translated by `chat_request`: a chat, and the fields that the writer of messages needs."""

    shows_thinking: bool


def _translate(raw: bytes, lenient: bool) -> tuple[bytes, list[str]]:
    body, warnings = decode_messages(MessagesRequest, raw, lenient)
    return msgspec.json.encode(chat_request(body)), warnings


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise the errors of a chat in Anthropic's form: with its field names, and with the text on which clients
    summarize their conversation."""
    try:
        yield
    except PromptTooLong as error:
        raise InvalidRequest(
            f"prompt is too long: {error.num_tokens} tokens > {error.max_model_len} maximum", "messages"
        ) from None
    except InvalidRequest as error:
        message = error.message.replace("response_format", "output_config.format")
        raise InvalidRequest(message, error.param) from None


async def _prompts(service: Service, body: TranslatedRequest, raw: bytes, moment: int) -> list[Prompt]:
    """max_tokens may be more than fits; the stop reason is then that the context was full."""
    assert body.max_tokens is not None
    with _translated_errors():
        prompt = await chat_prompt(service, msgspec.structs.replace(body, max_tokens=None), raw, moment)
    max_tokens = min(body.max_tokens, service.max_model_len - len(prompt.token_ids))
    prompt.params = msgspec.structs.replace(prompt.params, max_tokens=max_tokens)
    return [prompt]


class _ChatSource:
    """The only choice of a chat's generation, for the writer of messages."""

    def __init__(self, body: TranslatedRequest, prompt: Prompt, generation: Generation):
        assert body.max_tokens is not None
        assert prompt.params.max_tokens is not None
        self.context_is_full = prompt.params.max_tokens < body.max_tokens
        self._shows_reasoning = body.include_reasoning is not False
        self._reading = prompt.reading
        self._generation = generation

    async def batches(self, answer_id: str) -> AsyncGenerator[list[Output], None]:
        choice = ChatChoice(answer_id, 0, self._reading, shows_reasoning=self._shows_reasoning)
        async with aclosing(self._generation.batches()) as batches:
            async for batch in batches:
                yield [Output(*choice.push(piece), piece.stop_reason) for piece in batch]

    def usage(self) -> MessageUsage:
        usage = self._generation.usage()
        cached = 0 if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


def _writer(service: Service, body: TranslatedRequest, prompts: list[Prompt], generation: Generation) -> MessageWriter:
    return MessageWriter(_ChatSource(body, prompts[0], generation), shows_thinking=body.shows_thinking)


MESSAGES = Endpoint("msg_", TranslatedRequest, _prompts, _writer, translate=_translate)


async def count_tokens(service: Service, exchange: Exchange) -> None:
    """The number of prompt tokens of a request."""
    raw, lenient = await exchange.body(), service.config.server.lenient

    def translated() -> tuple[ChatCompletionRequest, bytes]:
        body, _ = decode_messages(CountTokensRequest, raw, lenient)
        as_chat = msgspec.json.encode(prompt_fields(body))
        chat, _ = decode_body(ChatCompletionRequest, as_chat)
        return chat, as_chat

    chat, as_chat = await service.off_loop(len(raw), translated)
    await service.model_name(chat.model)
    with _translated_errors():
        use_tools = tool_choice_of(chat).mode != "none"
        ids, _ = await chat_tokens(service, chat, as_chat, use_tools=use_tools)
    await exchange.send_json(TokenCount(input_tokens=len(ids)))


def model_page(service: Service) -> ModelPage:
    """The model names, in Anthropic's form."""
    names = [*service.model_names, *service.adapters.all()]
    data = [model_info(service, name) for name in names]
    return ModelPage(data=data, has_more=False, first_id=names[0], last_id=names[-1])


def model_info(service: Service, name: str) -> ModelInfo:
    return ModelInfo(
        id=name,
        type="model",
        display_name=name,
        created_at=datetime.fromtimestamp(service.started_at, UTC).isoformat(),
        lifecycle="active",
        max_input_tokens=service.max_model_len,
    )
