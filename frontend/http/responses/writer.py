"""Turns generated text into one response or into the events of a stream."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from ...parsers.events import Event
from ..exchange.sse import AnswerHead
from .answers import (
    IncompleteDetails,
    OutputItem,
    OutputLogprob,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
)
from .items import Change, Items
from .tools import namespaced_names

_encode = msgspec.json.Encoder().encode


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a request that its response repeats, and those about its items."""

    encodes_reasoning: bool = False

    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = False
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """The events of one piece of generated text."""

    events: Sequence[Event]
    logprobs: Sequence[OutputLogprob]  # of its tokens, if requested
    finish_reason: str | None  # that of a chat; set in the last output


class Source(Protocol):
    """A generation with one choice."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...

    def batches(self, answer_id: str) -> AsyncGenerator[list[Output], None]:
        """`answer_id`: the ids of calls are derived from it."""

    def usage(self) -> ResponseUsage: ...


Keep = Callable[[Response], Awaitable[None]]  # called with the whole response before its last part is sent


async def _keep_nothing(response: Response) -> None:
    pass


class ResponseWriter:
    """Writes one answer; call either `answer` or `frames`, once."""

    def __init__(self, source: Source, asked: Asked, keep: Keep = _keep_nothing):
        self._source, self._asked, self._keep = source, asked, keep
        self._items = Items(namespaced_names(asked.tools), encodes_reasoning=asked.encodes_reasoning)
        self._is_cut = False  # by the length limit
        self._status: ResponseStatus = "completed"
        self._num_events = 0

    async def answer(self, head: AnswerHead) -> Response:
        """The whole answer."""
        self._items.answer_id = head.answer_id
        async for batch in self._source.batches(head.answer_id):
            for output in batch:
                self._changes(output)
        ended = self._ended(head)
        await self._keep(ended)
        return ended

    async def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, in lists of those available at a time."""
        self._items.answer_id = head.answer_id
        events = self._begin(head)
        async for batch in self._source.batches(head.answer_id):
            events += [self._event(*change) for output in batch for change in self._changes(output)]
            if events:
                yield events
            events = []
        ended = self._ended(head)
        await self._keep(ended)
        if ended.status != "cancelled":
            yield [self._last_event(ended)]

    def given_up(self, head: AnswerHead, error: ResponseError | None) -> tuple[Response, list[bytes]]:
        """The incomplete response of an aborted answer, and its last events. `error` None: it was cancelled."""
        events = [self._event(*change) for change in self._items.end("incomplete")]
        response = self._response(head, "cancelled" if error is None else "failed", self._items.items)
        response.error = error
        return response, events if error is None else [*events, self._last_event(response)]

    def queued(self, head: AnswerHead) -> Response:
        """The response before anything is computed."""
        return self._response(head, "queued", [])

    def _begin(self, head: AnswerHead) -> list[bytes]:
        begun = self._response(head, "in_progress", [])
        if not self._asked.background:
            kinds = {"created": begun, "in_progress": begun}
        else:
            kinds = {"created": self.queued(head), "queued": self.queued(head), "in_progress": begun}
        return [self._event(f"response.{kind}", {"response": response}) for kind, response in kinds.items()]

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._num_events += 1
        return event(kind, self._num_events - 1, fields)

    def _last_event(self, response: Response) -> bytes:
        return self._event(f"response.{response.status}", {"response": response})

    def _changes(self, output: Output) -> list[Change]:
        changes = self._items.push(output.events, output.logprobs)
        if output.finish_reason is not None:
            self._is_cut = output.finish_reason == "length"
            in_call = self._items.ends_in_call and output.finish_reason != "tool_calls"
            is_whole = not self._is_cut and not in_call and output.finish_reason != "abort"
            changes += self._items.end("completed" if is_whole else "incomplete")
            self._status = "completed" if is_whole else "incomplete"
            if output.finish_reason == "abort" and self._asked.background:
                self._status = "cancelled"
        return changes

    def _ended(self, head: AnswerHead) -> Response:
        response = self._response(head, self._status, self._items.items)
        response.incomplete_details = IncompleteDetails(reason="max_output_tokens") if self._is_cut else None
        response.usage = self._source.usage()
        return response

    def _response(self, head: AnswerHead, status: ResponseStatus, items: list[OutputItem]) -> Response:
        asked = self._asked
        return Response(
            id=head.answer_id,
            object="response",
            created_at=head.created,
            status=status,
            background=asked.background,
            error=None,
            incomplete_details=None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            max_tool_calls=asked.max_tool_calls,
            metadata=asked.metadata,
            model=head.model,
            output=items,
            parallel_tool_calls=asked.parallel_tool_calls,
            previous_response_id=asked.previous_response_id,
            prompt_cache_key=asked.prompt_cache_key,
            reasoning={"effort": None, "summary": None} | asked.reasoning,
            safety_identifier=asked.safety_identifier,
            service_tier=asked.service_tier,
            store=asked.store,
            temperature=self._source.temperature,
            text={"format": {"type": "text"}} | asked.text,
            tool_choice=asked.tool_choice,
            tools=asked.tools,
            top_logprobs=asked.top_logprobs,
            top_p=self._source.top_p,
            truncation="disabled",
            usage=None,
            user=asked.user,
            warnings=head.warnings or UNSET,
        )


def event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    """One server-sent event; the first event of a stream has number 0."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, "sequence_number": number, **fields}))
