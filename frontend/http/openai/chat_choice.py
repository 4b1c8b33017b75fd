"""One choice of a chat's answer, from pieces of text to content, reasoning and calls."""

import hashlib

from paged_serve.protocol.messages.sampling_params import FinishReason

from ...parsers.events import CallStart, Content, Event, Reasoning
from ...parsers.output_reading import OutputReading
from .generation import Piece


class ChatChoice:
    """`seed`: the answer's id, from which those of calls follow; `ends_with_calls`: with "tool_calls" if it has any."""

    def __init__(
        self,
        seed: str,
        index: int,
        reading: OutputReading | None,
        *,
        ends_with_calls: bool = True,
        shows_reasoning: bool = True,
    ):
        self.index = index
        self.begun = False
        self._seed = seed
        self._parser = None if reading is None else reading.parser()
        self._ends_with_calls = ends_with_calls
        self._shows_reasoning = shows_reasoning

    def push(self, piece: Piece) -> tuple[list[Event], str | None]:
        """(what the piece adds, the finish reason in OpenAI's words)."""
        reason = None if piece.finish_reason is None else piece.finish_reason.api_name
        if self._parser is None:
            return [Content(piece.text)] if piece.text else [], reason
        events = self._parser.push(piece.text, final=piece.finish_reason is not None)
        if piece.finish_reason is FinishReason.STOP and self._parser.num_calls and self._ends_with_calls:
            reason = "tool_calls"
        return [self._shown(event) for event in events if self._shows(event)], reason

    def _shows(self, event: Event) -> bool:
        return self._shows_reasoning or not isinstance(event, Reasoning)

    def _shown(self, event: Event) -> Event:
        """With an id, which clients need to answer a call."""
        if not isinstance(event, CallStart) or event.id:
            return event
        name = hashlib.sha256(f"{self._seed} {self.index} {event.index}".encode()).hexdigest()[:24]
        return CallStart(event.index, event.name, f"call_{name}")
