"""The frames of a streamed answer: those of its pieces, its usage, and the end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from ...exchange.sse import DONE, AnswerHead, Frames
from ..answers import Timings, Usage
from ..pieces import Piece
from ..request.schemas import StreamOptions


@dataclass(frozen=True, slots=True)
class Extras:
    """The fields of an answer's frames beside their choices."""

    options: StreamOptions | None
    usage: Callable[[], Usage]
    timings: Callable[[], Timings] | None = None
    fingerprint: str = ""
    request_id: str = ""

    def of_chunk(self) -> dict[str, Any]:
        found: dict[str, Any] = {"request_id": self.request_id} if self.request_id else {}
        if self.options is not None and self.options.continuous_usage_stats:
            found["usage"] = self.usage()
        if self.timings is not None:
            found["timings"] = self.timings()
        return found

    def of_end(self) -> dict[str, Any] | None:
        """Of a frame without a choice; None: there is none."""
        if self.options is None or not self.options.include_usage:
            return None
        found: dict[str, Any] = {"request_id": self.request_id} if self.request_id else {}
        found["usage"] = self.usage()
        if self.fingerprint:
            found["system_fingerprint"] = self.fingerprint
        return found


def warnings_of(head: AnswerHead) -> dict[str, Any]:
    return {"warnings": head.warnings} if head.warnings else {}


async def framed(
    frames: Frames,
    batches: AsyncGenerator[list[Piece], None],
    chunks: Callable[[Piece], Awaitable[Sequence[Struct]]],
    *,
    first: Mapping[str, Any],
    extras: Extras,
) -> AsyncGenerator[list[bytes], None]:
    """Lists of the server-sent events that are available at a time.

    `chunks`: the choices of a piece. `first`: further fields of the first frame.
    """
    async for batch in batches:
        events = []
        for piece in batch:
            for chunk in await chunks(piece):
                events.append(frames.chunk(chunk, **first, **extras.of_chunk()))
                first = {}
        if events:
            yield events
    if (end := extras.of_end()) is not None:
        yield [frames.without_choice(**end)]
    yield [DONE]
