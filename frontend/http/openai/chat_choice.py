"""Parses one choice of a chat's answer: pieces of text become content, reasoning and calls."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile

from paged_serve.protocol.messages.sampling_params import FinishReason

from ...parsers.custom_input import CustomCalls
from ...parsers.events import CallStart, Content, Event, Reasoning
from ...parsers.output_reading import OutputReading
from ...text.tokenizer import Tokenizer
from .pieces import Piece


class ReasoningCount:
    """Counts the reasoning tokens of an output, tags included. Each tag must be a single token.

    `calls`: tokens that end it without being a part of it.
    """

    def __init__(self, begin: int, end: int, tokenizer: Tokenizer, *, has_begun: bool, calls: frozenset[int]):
        self._end, self._ends = end, calls | {end}
        self._goes_on: bool | None = True if has_begun else None  # None: the first token behind white space decides
        self._begin = begin
        self._tokenizer = tokenizer
        self.num_tokens = 0

    @classmethod
    def of(cls, reading: OutputReading | None, tokenizer: Tokenizer) -> "ReasoningCount | None":
        """The counter; None if the tags are not single tokens."""
        if reading is None:
            return None
        begin, end = tokenizer.token_id(reading.reasoning_begin), tokenizer.token_id(reading.reasoning_end)
        if begin is None or end is None:
            return None
        calls = frozenset(token for tag in reading.reasoning_calls if (token := tokenizer.token_id(tag)) is not None)
        return cls(begin, end, tokenizer, has_begun=reading.begins_in_reasoning, calls=calls)

    def add(self, tokens: Sequence[int]) -> None:
        if self._goes_on is None:
            tokens = [*dropwhile(self._is_space, tokens)]
            self._goes_on = tokens[0] == self._begin if tokens else None
        if self._goes_on:
            within = len([*takewhile(lambda token: token not in self._ends, tokens)])
            self._goes_on = within == len(tokens)
            self.num_tokens += within + (not self._goes_on and tokens[within] == self._end)

    def _is_space(self, token: int) -> bool:
        return self._tokenizer.token_text(token).isspace()


class ChatChoice:
    """`seed`: the answer's id, the source of call ids; `call_reason`: finish reason of an output of complete calls."""

    def __init__(
        self,
        seed: str,
        index: int,
        reading: OutputReading | None,
        *,
        call_reason: str = "tool_calls",
        shows_reasoning: bool = True,
    ):
        self.index = index
        self.begun = False
        self._seed = seed
        self._parser = None if reading is None else reading.parser()
        self._call_reason = call_reason
        self._shows_reasoning = shows_reasoning
        self._custom = CustomCalls(frozenset() if reading is None else reading.custom_tools)

    def push(self, piece: Piece) -> tuple[list[Event], str | None]:
        """(new events, OpenAI's finish reason if the choice has ended)."""
        reason = None if piece.finish_reason is None else piece.finish_reason.api_name
        if self._parser is None:
            return [Content(piece.text)] if piece.text else [], reason
        is_last = piece.finish_reason is not None
        events = self._custom.push(self._parser.push(piece.text, is_last, piece.tag_ends), final=is_last)
        if piece.finish_reason is FinishReason.STOP and self._parser.num_calls and not self._parser.is_in_call:
            reason = self._call_reason
        if not self._shows_reasoning:
            events = [event for event in events if not isinstance(event, Reasoning)]
        return [self._named(event) for event in events], reason

    def _named(self, event: Event) -> Event:
        """The event with a call id, which clients need to answer a call."""
        if not isinstance(event, CallStart) or event.id:
            return event
        name = hashlib.sha256(f"{self._seed} {self.index} {event.index}".encode()).hexdigest()[:24]
        return replace(event, id=f"call_{name}")
