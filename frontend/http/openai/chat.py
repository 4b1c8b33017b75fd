"""POST /v1/chat/completions: answers a conversation, with tool calls if the model writes them."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from msgspec import UNSET

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ...admission import check_num_prompt_logprobs, check_num_shown_prompt_tokens, fitting_max_tokens
from ...client.streams.deltas import TokenLogprobs
from ...conversation.messages import continued_text
from ...parsers.events import Content
from ...parsers.output_reading import OutputReading, output_reading
from ...parsers.thinking import with_thinking
from ...parsers.tool_choice import tool_choice_of
from ..exchange.sse import AnswerHead, Frames
from ..service import Service
from . import answers, logprobs
from .chat_choice import ChatChoice, ReasoningCount
from .chat_messages import MessageBuilder, as_function_call, delta_of
from .generation import Generation, Prompt
from .pieces import Piece
from .request.custom_tools import WithCustomTools
from .request.functions import names_function, with_tools
from .request.prompts import chat_tokens
from .request.sampling_params import chat_params, size_of_work
from .request.schemas import ChatCompletionRequest, ChatFields, without_prompt
from .request.structured_outputs import grammar_of
from .request.truncation import limit_of
from .streaming.frames import Extras, framed, warnings_of

NO_FORMAT = "tools: the chat template has no known format of tool calls, so they stay content; see --tool-call-parser"


async def chat_prompt(service: Service, body: ChatCompletionRequest, raw: bytes, moment: int) -> Prompt:
    """The conversation as rendered at time `moment`, with its parameters; `raw`: the JSON of the body.

    Raises InvalidRequest or HttpError for a request that cannot be served.
    """
    _check_support(body)
    has_format = service.formats.tools is not None
    body, raw = await service.off_loop(len(raw), with_tools, body, raw, has_format)
    choice = tool_choice_of(body)
    formats = choice.formats(service.formats)
    asked_field = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    limit = limit_of(service, body, getattr(body, asked_field) or 1)
    ids, prompt_end = await chat_tokens(
        service,
        body,
        raw,
        use_tools=choice.mode != "none",
        add_special_tokens=bool(body.add_special_tokens),
        moment=moment,
        limit=limit,
    )
    default = service.sampling_defaults.get("max_tokens")
    max_tokens = fitting_max_tokens(
        len(ids), getattr(body, asked_field), default, service.max_model_len, "messages", asked_field
    )
    continued = continued_text(body.messages) if body.continue_final_message else ""
    reading = output_reading(formats, service.tokenizer, choice.callable, prompt_end, continued)
    if reading is not None and isinstance(body, WithCustomTools):
        reading = replace(reading, custom_tools=frozenset(body.custom_tools))
    calls = choice.form(formats.tools)
    grammar, warnings = await grammar_of(service, body, calls, reading)
    if reading is not None and grammar is not None and calls is None:
        reading = reading.of_form()
    if choice.callable and formats.tools is None:
        warnings = [*warnings, NO_FORMAT]
    params = await service.off_loop(size_of_work(body, len(raw)), chat_params, service, body, max_tokens, grammar)
    params = _checked_params(service, body, params, ids, reading)
    return Prompt(array("i", ids), params, continued if body.echo else None, warnings, reading)


def _checked_params(
    service: Service,
    body: ChatCompletionRequest,
    params: SamplingParams,
    ids: Sequence[int],
    reading: OutputReading | None,
) -> SamplingParams:
    """`params` with the budget of thinking, for the prompt `ids`."""
    begins = reading is not None and reading.begins_in_reasoning
    ends = frozenset[str]() if reading is None else reading.reasoning_calls
    params = with_thinking(params, service.formats, service.tokenizer, ids, begins=begins, calls=ends)
    params.check_vocabulary(service.engine.limits.vocab_size)
    check_num_prompt_logprobs(params, len(ids))
    if body.return_token_ids:  # in a stream each choice begins with the prompt's tokens
        check_num_shown_prompt_tokens(len(ids) * params.n, "return_token_ids")
    return params


def _check_support(body: ChatCompletionRequest) -> None:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest(
            f"max_tokens is {body.max_tokens} and max_completion_tokens is {body.max_completion_tokens}; give one",
            "max_completion_tokens",
        )
    if body.echo and not body.continue_final_message:
        raise InvalidRequest("echo needs continue_final_message to be true: it repeats the continued text", "echo")


def _empty_choice(index: int) -> answers.ChatChoice:
    message = answers.ChatAnswerMessage(role="assistant", content=None)
    return answers.ChatChoice(index=index, message=message, logprobs=None, finish_reason=None, stop_reason=None)


class ChatWriter:
    """Turns the pieces of all choices into one answer or into frames."""

    def __init__(self, service: Service, body: ChatFields, prompts: list[Prompt], generation: Generation):
        self._service = service
        self._calls_functions = bool(body.functions)
        self._call_reason = "function_call" if self._calls_functions else "tool_calls"  # of complete calls
        if tool_choice_of(body).is_named or names_function(body):
            self._call_reason = "stop"
        self._body = without_prompt(body)
        self._prompts = [prompt for prompt in prompts for _ in range(prompt.params.n)]  # one per choice
        self._generation = generation
        counts = [ReasoningCount.of(prompt.reading, service.tokenizer) for prompt in self._prompts]
        self._reasoning_counts = [count for count in counts if count is not None]

    def _choices(self, answer_id: str) -> list[ChatChoice]:
        return [
            ChatChoice(
                answer_id,
                index,
                prompt.reading,
                call_reason=self._call_reason,
                shows_reasoning=self._body.include_reasoning is not False,
            )
            for index, prompt in enumerate(self._prompts)
        ]

    def _count(self, piece: Piece) -> None:
        if self._reasoning_counts:
            self._reasoning_counts[piece.choice].add(piece.token_ids)

    def _usage(self) -> answers.Usage:
        usage = self._generation.usage()
        if self._reasoning_counts:
            num_tokens = sum(count.num_tokens for count in self._reasoning_counts)
            usage.completion_tokens_details = answers.CompletionTokensDetails(reasoning_tokens=num_tokens)
        return usage

    async def answer(self, head: AnswerHead) -> answers.ChatCompletion:
        """The whole answer."""
        choices = self._choices(head.answer_id)
        whole = [_empty_choice(choice.index) for choice in choices]
        messages = [MessageBuilder() for _ in whole]
        for message, prompt in zip(messages, self._prompts, strict=True):
            message.add([Content(prompt.text)] if prompt.text else [])
        async for batch in self._generation.batches():
            for piece in batch:
                self._count(piece)
                events, reason = choices[piece.choice].push(piece)
                messages[piece.choice].add(events)
                self._append(whole[piece.choice], piece, reason)
        entries = self._generation.prompt_logprobs[0]
        of_prompt = await logprobs.prompt_logprobs(self._service, entries, self._body.prompt_logprobs)
        for choice in whole:
            choice.message = messages[choice.index].message()
            if self._calls_functions:
                as_function_call(choice.message)
        return answers.ChatCompletion(
            id=head.answer_id,
            object="chat.completion",
            created=head.created,
            model=head.model,
            choices=whole,
            usage=self._usage(),
            system_fingerprint=self._generation.fingerprint,
            prompt_token_ids=self._prompts[0].token_ids.tolist() if self._body.return_token_ids else UNSET,
            prompt_logprobs=UNSET if of_prompt is None else of_prompt,
            service_tier="default" if self._body.service_tier else UNSET,
            timings=self._generation.timings() if self._body.timings_per_token else UNSET,
            warnings=head.warnings or UNSET,
        )

    def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, in lists of those available at a time."""
        choices, first = self._choices(head.answer_id), warnings_of(head)
        if self._body.service_tier:
            first["service_tier"] = "default"

        async def chunks(piece: Piece) -> list[answers.ChatChunkChoice]:
            self._count(piece)
            return self._chunks(choices[piece.choice], piece)

        frames = Frames(head, "chat.completion.chunk")
        generation = self._generation
        timings = generation.timings if self._body.timings_per_token else None
        extras = Extras(self._body.stream_options, self._usage, timings, generation.fingerprint)
        return framed(frames, generation.batches(), chunks, first=first, extras=extras)

    def _chunks(self, choice: ChatChoice, piece: Piece) -> list[answers.ChatChunkChoice]:
        chunks = []
        if not choice.begun:
            choice.begun = True
            prompt = self._prompts[choice.index]
            begun = answers.ChatDelta(role="assistant", content=prompt.text or "")
            chunk = answers.ChatChunkChoice(index=choice.index, delta=begun)
            if self._body.return_token_ids:
                chunk.prompt_token_ids = prompt.token_ids.tolist()
            chunks.append(chunk)
        events, reason = choice.push(piece)
        chosen = self._logprobs(piece.logprobs)
        if not (events or reason or chosen or self._body.return_token_ids):
            return chunks
        delta = delta_of(events)
        if self._calls_functions:
            as_function_call(delta)
        chunks.append(
            answers.ChatChunkChoice(
                index=choice.index,
                delta=delta,
                logprobs=chosen,
                finish_reason=reason,
                stop_reason=piece.stop_reason,
                token_ids=piece.token_ids if self._body.return_token_ids else UNSET,
            )
        )
        return chunks

    def _append(self, whole: answers.ChatChoice, piece: Piece, reason: str | None) -> None:
        if reason is not None:
            whole.finish_reason, whole.stop_reason = reason, piece.stop_reason
        if self._body.return_token_ids:
            whole.token_ids = [] if whole.token_ids is UNSET else whole.token_ids
            whole.token_ids.extend(piece.token_ids)
        if (chosen := self._logprobs(piece.logprobs)) is not None:
            whole.logprobs = whole.logprobs or answers.ChatLogprobs(content=[])
            whole.logprobs.content.extend(chosen.content)

    def _logprobs(self, entries: Sequence[TokenLogprobs] | None) -> answers.ChatLogprobs | None:
        if not self._body.logprobs or not entries:
            return None
        names_ids = bool(self._body.return_tokens_as_token_ids)
        return logprobs.chat_logprobs(self._service.tokenizer, entries, self._body.top_logprobs or 0, names_ids)
