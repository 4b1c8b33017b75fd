"""One output sequence from tokens to shown text: detokenizer, stop strings, and why it ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from .detokenizer import Detokenizer
from .stop_strings import StopAutomaton, StopStrings
from .tokenizer import Tokenizer


@dataclass(slots=True)
class TextDelta:
    """The text and the facts that one push adds."""

    text: str
    finish_reason: FinishReason | None
    stop_reason: str | int | None  # the stop string or stop token; None for EOS
    hit_stop_string: bool  # the caller must abort the sequence with FinishReason.STOP
    num_tokens: int  # of the pushed tokens, those that belong to the output: fewer when a stop string cut it
    tag_ends: Sequence[int] = ()  # where tags among the pushed tokens end, counted in characters of the whole text


class SequenceText:
    """Takes every delta of one sequence; after a finish_reason it returns no more text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        stops: StopAutomaton | None = None,
        tags: frozenset[int] = frozenset(),
    ):
        """`stops` is built from params.stop; the sequences of a request share it to save time and memory.

        `tags`: tokens that are shown even when other special tokens are skipped, and whose places are told.
        """
        self._tags, self._num_chars = tags, 0
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, params.skip_special_tokens, tags)
        self._stops = StopStrings(stops or StopAutomaton(params.stop), params.include_stop_str_in_output)
        self._shows_text = params.detokenize
        self._shows_stop_token = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self.finished = False

    def push(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None = None, stop_token_id: int | None = None
    ) -> TextDelta:
        """Add the next tokens; `finish_reason` and `stop_token_id` are what the engine reports with the last ones."""
        if self.finished:
            return TextDelta("", None, None, False, 0)
        self.finished = finish_reason is not None
        if not self._shows_text:
            return TextDelta("", finish_reason, stop_token_id, False, len(token_ids))
        hides_last = finish_reason is FinishReason.STOP and not self._shows_stop_token
        shown, tag_ends, last = list[str](), list[int](), len(token_ids) - 1
        for i, token in enumerate(token_ids):
            self._num_tokens += 1
            if hides_last and i == last:
                break
            new = self._detokenizer.push(token)
            self._num_chars += len(new)
            if token in self._tags:
                tag_ends.append(self._num_chars)
            text, stop = self._search(new)
            shown.append(text)
            if stop is not None:
                return self._cut(shown, stop, i + 1, tag_ends)
        if self.finished:
            text, stop = self._search(self._detokenizer.finish())
            shown.append(text)
            if stop is not None:
                return self._cut(shown, stop, len(token_ids), tag_ends)
            shown.append(self._stops.finish())
        return TextDelta("".join(shown), finish_reason, stop_token_id, False, len(token_ids), tag_ends)

    def _search(self, text: str) -> tuple[str, str | None]:
        if self._num_tokens <= self._min_tokens:
            return text, None
        return self._stops.push(text)

    def _cut(self, shown: list[str], stop: str, num_tokens: int, tag_ends: list[int]) -> TextDelta:
        self.finished = True
        return TextDelta("".join(shown), FinishReason.STOP, stop, True, num_tokens, tag_ends)
