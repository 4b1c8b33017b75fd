"""POST /v1/responses: OpenAI's newer API, on top of the chat endpoint."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ...conversation.strict_json import decode_body
from ..openai import logprobs
from ..openai.chat import chat_prompt
from ..openai.chat_choice import ChatChoice, ReasoningCount
from ..openai.endpoints import Endpoint
from ..openai.generation import Generation, Prompt
from ..openai.pieces import Piece
from ..openai.request.custom_tools import WithCustomTools
from ..responses.answers import InputTokensDetails, OutputLogprob, OutputTokensDetails, ResponseUsage
from ..responses.chat_request import NOTHING_EARLIER, Earlier, asked_of, chat_request, given_items, warnings_of
from ..responses.schemas import ResponsesRequest, with_types
from ..responses.writer import Asked, Output, ResponseWriter
from ..service import Service

_THEIR_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}


class TranslatedResponsesRequest(WithCustomTools, frozen=True, kw_only=True):
    """A body translated by `chat_request`: a chat, and the fields that the response repeats."""

    asked: Asked
    given: tuple[dict[str, Any], ...] = ()  # the items of its own input, if responses are stored
    repeats_output: bool = True


def translate(raw: bytes, lenient: bool, earlier: Earlier = NOTHING_EARLIER) -> tuple[bytes, list[str]]:
    """Translate a body to the JSON of a TranslatedResponsesRequest, and warnings. Raises InvalidRequest."""
    body, warnings = decode_body(ResponsesRequest, with_types(raw), lenient)
    given = given_items(body, earlier)
    fields = {**chat_request(body, given, earlier), "asked": asked_of(body, earlier)}
    if earlier.is_stored:
        fields["given"] = given
    return msgspec.json.encode(fields), [*warnings, *warnings_of(body, earlier)]


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the errors of a chat with the field names of this API."""
    try:
        yield
    except InvalidRequest as error:
        message, field = error.message, error.param or ""
        for ours, theirs in _THEIR_NAMES.items():
            message = message.replace(ours, theirs)
            field = theirs + field.removeprefix(ours) if field.startswith(ours) else field
        raise InvalidRequest(message, field or None) from None


async def _prompts(service: Service, body: TranslatedResponsesRequest, raw: bytes, moment: int) -> list[Prompt]:
    with translated_errors():
        return [await chat_prompt(service, body, raw, moment)]


class ChatSource:
    """The only choice of a chat's generation, for the writer of responses."""

    def __init__(self, service: Service, body: TranslatedResponsesRequest, prompt: Prompt, generation: Generation):
        self.temperature, self.top_p = prompt.params.temperature, prompt.params.top_p
        self._service, self._generation = service, generation
        self._reading = prompt.reading
        self._count = ReasoningCount.of(prompt.reading, service.tokenizer)
        self._num_top = (body.top_logprobs or 0) if body.logprobs else None
        if self._num_top is not None:
            generation.separate_tokens()  # which are of the text and which are of calls is then known of each

    async def batches(self, answer_id: str) -> AsyncGenerator[list[Output], None]:
        choice = ChatChoice(answer_id, 0, self._reading)
        async with aclosing(self._generation.batches()) as batches:
            async for batch in batches:
                yield [self._output(choice, piece) for piece in batch]

    def _output(self, choice: ChatChoice, piece: Piece) -> Output:
        if self._count is not None:
            self._count.add(piece.token_ids)
        events, reason = choice.push(piece)
        if self._num_top is None or not piece.logprobs:
            return Output(events, (), reason)
        shown = logprobs.chat_logprobs(self._service.tokenizer, piece.logprobs, self._num_top).content
        return Output(events, msgspec.convert(shown, list[OutputLogprob], from_attributes=True), reason)

    def usage(self) -> ResponseUsage:
        usage = self._generation.usage()
        cached = 0 if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
        reasoning = 0 if self._count is None else self._count.num_tokens
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=usage.total_tokens,
        )


def _writer(
    service: Service, body: TranslatedResponsesRequest, prompts: list[Prompt], generation: Generation
) -> ResponseWriter:
    return ResponseWriter(ChatSource(service, body, prompts[0], generation), body.asked)


RESPONSES = Endpoint("resp_", TranslatedResponsesRequest, _prompts, _writer, translate=translate)
