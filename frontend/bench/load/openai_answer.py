"""Records an OpenAI server's answer, streamed or whole, in a Timeline as it arrives."""

import asyncio
from typing import Any

import msgspec

from .timeline import Timeline

MAX_REFUSAL_BYTES = 16 << 10


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw | None = None

    def has_output(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def has_output(self) -> bool:
        return bool(self.text) or (self.delta is not None and self.delta.has_output())


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    """A chunk of a stream, or a whole answer; other fields are not decoded."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """A Reader. `done` resolves when the timeline is complete, including after a failure."""

    def __init__(self, timeline: Timeline, *, streamed: bool):
        self.timeline = timeline
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streamed = streamed
        self._status = 0
        self._rest = b""  # an incomplete event, or all data of an answer that is not a stream
        self._complete = False  # a finish reason or the end of the stream was received
        self._failure: tuple[str, str] | None = None

    def begin(self, status: int) -> None:
        self._status = status

    def feed(self, data: bytes, now: float) -> None:
        if not self._streamed or self._status != 200:
            self._rest += data
            return
        data = self._rest + data if self._rest else data
        if b"\r" in data:  # in JSON it is always escaped
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            self._take(event, now)

    def end(self, now: float) -> None:
        if self._status != 200:
            self._failure = (f"HTTP {self._status}", _message(self._rest[:MAX_REFUSAL_BYTES]))
        elif not self._streamed:
            self._take_chunk(self._rest, now)
        if self._failure is None and not self._complete:
            self._failure = ("cut short", "the answer ended before its final event")
        if self._failure is not None:
            self.fail(*self._failure, now)
            return
        self.timeline.ended = now
        self._resolve()

    def fail(self, kind: str, detail: str, now: float) -> None:
        self.timeline.fail(kind, detail, now)
        self._resolve()

    def _resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _take(self, event: bytes, now: float) -> None:
        if event.startswith(b"data: ") and b"\n" not in event:
            data = event[6:]
        else:
            lines = event.split(b"\n")
            data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        if data == b"[DONE]":
            self._complete = True
        elif data:  # without data it is a keep-alive comment
            self._take_chunk(data, now)

    def _take_chunk(self, data: bytes, now: float) -> None:
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            self._failure = ("no OpenAI answer", f"{error}: {data[:80].decode(errors='replace')}")
            return
        if chunk.error:
            self._failure = ("error in the stream" if self._streamed else "error", _message(data))
        if chunk.usage is not None:
            self._count(chunk.usage)
        brought_output = False
        for choice in chunk.choices or ():
            brought_output = brought_output or choice.has_output()
            if choice.finish_reason:
                self._complete = True
                brought_output = brought_output or not self.timeline.chunks  # tokens without text
        if brought_output and self._streamed:
            self.timeline.chunks.append(now)

    def _count(self, usage: _Usage) -> None:
        timeline = self.timeline
        timeline.prompt_tokens = usage.prompt_tokens
        timeline.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            timeline.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


def _message(body: bytes) -> str:
    """The message of an error, whether its body is OpenAI's JSON, other JSON or not JSON at all."""
    try:
        found = msgspec.json.decode(body)
        error = found.get("error", found)
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (msgspec.DecodeError, AttributeError):
        return body[:200].decode(errors="replace")
