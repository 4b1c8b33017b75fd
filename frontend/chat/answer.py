"""One streamed answer: the pieces to show as they arrive, and the message that they make in the end."""

import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Kind = Literal["reasoning", "content", "name", "arguments"]  # name and arguments (or input) belong to a tool call


class Piece(NamedTuple):
    kind: Kind
    text: str


class Answer:
    """Collects the events of a stream."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._content, self._reasoning = "", ""
        self._calls: dict[int, dict[str, Any]] = {}
        self._num_tokens: int | None = None
        self._begun = time.monotonic()
        self._first: float | None = None  # seconds until the first piece

    def push(self, event: dict[str, Any]) -> Iterator[Piece]:
        if (usage := event.get("usage")) is not None:
            self._num_tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for piece in self._pieces(choice["delta"]):
                self._first = time.monotonic() - self._begun if self._first is None else self._first
                yield piece

    def _pieces(self, delta: dict[str, Any]) -> Iterator[Piece]:
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            self._reasoning += reasoning
            yield Piece("reasoning", reasoning)
        if content := delta.get("content"):
            self._content += content
            yield Piece("content", content)
        for part in delta.get("tool_calls") or ():
            yield from self._call_pieces(part)

    def _call_pieces(self, part: dict[str, Any]) -> Iterator[Piece]:
        """The pieces of one part of a tool call; only the first part has the id and the type."""
        call = self._calls.setdefault(part["index"], {"id": "", "type": part.get("type") or "function"})
        call["id"] = part.get("id") or call["id"]
        kind, given = call["type"], part.get(call["type"]) or {}
        text_field = "input" if kind == "custom" else "arguments"
        called = call.setdefault(kind, {"name": "", text_field: ""})
        if name := given.get("name"):
            called["name"] = name
            yield Piece("name", f"{name} ")
        if text := given.get(text_field):
            called[text_field] += text
            yield Piece("arguments", text)

    def message(self, *, is_whole: bool) -> dict[str, Any] | None:
        """The message; None for an empty answer. The calls of an answer that was cut off are left out."""
        calls = [self._calls[index] for index in sorted(self._calls)] if is_whole else []
        if not (self._content or self._reasoning or calls):
            return None
        message: dict[str, Any] = {"role": "assistant", "content": self._content or (None if calls else "")}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        return {**message, "tool_calls": calls} if calls else message

    def figures(self) -> str:
        elapsed = max(time.monotonic() - self._begun, 1e-6)
        first = f"first token after {self._first:.2f} s, " if self._first is not None else ""
        speed = (
            "" if self._num_tokens is None else f"{self._num_tokens} tokens, {self._num_tokens / elapsed:.1f} tok/s, "
        )
        return f"{speed}{first}{elapsed:.2f} s"
