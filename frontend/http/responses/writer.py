"""From generated text to one response, or to the events of a stream."""

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from ...parsers.events import Event
from ..exchange.sse import AnswerHead
from .answers import IncompleteDetails, OutputItem, OutputLogprob, Response, ResponseUsage
from .items import Change, Items

_encode = msgspec.json.Encoder().encode


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a response repeats of its request."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] = {}
    safety_identifier: str | None = None
    service_tier: str = "default"
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What some more of the generated text is."""

    events: Sequence[Event]
    logprobs: Sequence[OutputLogprob]  # of its tokens, if they were asked for
    finish_reason: str | None  # in a chat's words, with the last one


class Source(Protocol):
    """A generation of one choice."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...

    def batches(self, answer_id: str) -> AsyncGenerator[list[Output], None]:
        """`answer_id`: from which the ids of calls follow."""

    def usage(self) -> ResponseUsage: ...


class ResponseWriter:
    """One answer; either of the two, once."""

    def __init__(self, source: Source, asked: Asked):
        self._source, self._asked = source, asked
        self._is_cut = False

    async def answer(self, head: AnswerHead) -> Response:
        """Everything at once."""
        items = Items(_id_maker(head.answer_id))
        async for batch in self._source.batches(head.answer_id):
            for output in batch:
                self._changes(items, output)
        return self._ended(head, items.items)

    async def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The same as server-sent events: a list of all that there are by now."""
        items, frames = Items(_id_maker(head.answer_id)), _Frames()
        begun = self._response(head, [])
        events = [frames.of(f"response.{kind}", {"response": begun}) for kind in ("created", "in_progress")]
        async for batch in self._source.batches(head.answer_id):
            events += [frames.of(*change) for output in batch for change in self._changes(items, output)]
            if events:
                yield events
            events = []
        ended = self._ended(head, items.items)
        yield [frames.of(f"response.{ended.status}", {"response": ended})]

    def _changes(self, items: Items, output: Output) -> list[Change]:
        changes = items.push(output.events, output.logprobs)
        if output.finish_reason is not None:
            self._is_cut = output.finish_reason == "length"
            changes += items.end("incomplete" if self._is_cut else "completed")
        return changes

    def _ended(self, head: AnswerHead, items: list[OutputItem]) -> Response:
        response = self._response(head, items)
        response.status = "incomplete" if self._is_cut else "completed"
        response.incomplete_details = IncompleteDetails(reason="max_output_tokens") if self._is_cut else None
        response.usage = self._source.usage()
        return response

    def _response(self, head: AnswerHead, items: list[OutputItem]) -> Response:
        asked = self._asked
        return Response(
            id=head.answer_id,
            object="response",
            created_at=head.created,
            status="in_progress",
            background=False,
            error=None,
            incomplete_details=None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            max_tool_calls=None,
            metadata=asked.metadata,
            model=head.model,
            output=items,
            parallel_tool_calls=asked.parallel_tool_calls,
            previous_response_id=None,
            prompt_cache_key=asked.prompt_cache_key,
            reasoning={"effort": None, "summary": None} | asked.reasoning,
            safety_identifier=asked.safety_identifier,
            service_tier=asked.service_tier,
            store=False,
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


class _Frames:
    """Numbered events of one stream."""

    def __init__(self) -> None:
        self._number = 0

    def of(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _id_maker(answer_id: str) -> Callable[[str, int], str]:
    def made(prefix: str, index: int) -> str:
        return prefix + hashlib.sha256(f"{answer_id} item {index}".encode()).hexdigest()[:32]

    return made
