"""Turns texts, tokens and pairs of texts into the prompts of a pooling model.

A prompt that is too long is refused, or cut if the request asks for it. The special tokens around it always stay,
because pooling may use them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paged_serve.protocol.errors import InvalidRequest

from ..conversation.prompt_encoder import PromptEncoder
from ..text.tokenizer import Tokenizer
from .model_files import PoolingFiles

Side = Literal["left", "right"]
WHOLE = -1  # the model's maximum
MAX_CUT_TOKENS = 1 << 18  # of a text before it is cut; the model's maximum if that is greater
_FIRST, _SECOND = "first words", "others"


@dataclass(frozen=True, slots=True)
class Limit:
    """`longest`: the most tokens that the model accepts; `kept`: the tokens that a longer prompt is cut to, or None if
    it is refused."""

    longest: int
    kept: int | None = None
    side: Side = "right"  # the side that tokens are removed from
    remedy: str = "truncate_prompt_tokens: -1"  # what a request adds to have a longer prompt cut

    @classmethod
    def of(cls, longest: int, truncate: int | None, side: Side | None) -> "Limit":
        """Raises InvalidRequest."""
        if truncate is None:
            if side is not None:
                raise InvalidRequest("truncation_side needs truncate_prompt_tokens", "truncation_side")
            return cls(longest)
        if truncate == 0 or truncate < WHOLE or truncate > longest:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {truncate}; it must be from 1 to {longest}, the most that this model "
                "accepts, or -1 for that maximum",
                "truncate_prompt_tokens",
            )
        return cls(longest, longest if truncate == WHOLE else truncate, side or "right")

    @property
    def most(self) -> int:
        """The most tokens that a text may have before it is cut."""
        return self.longest if self.kept is None else max(MAX_CUT_TOKENS, self.longest)

    def shortened(self, kept: int | None) -> "Limit":
        """The limit of texts that are cut to `kept` tokens before anything else happens to them; None: not cut."""
        if kept is None:
            return self
        return dataclasses.replace(self, kept=min(kept, self.kept or self.longest))

    def cut(self, ids: list[int], room: int | None = None) -> list[int]:
        """Cut to `room` tokens, by default to `kept`."""
        room = self.kept if room is None else room
        if room is None or len(ids) <= room:
            return ids
        return ids[len(ids) - room :] if self.side == "left" else ids[:room]

    def check(self, num_tokens: int, field: str, besides: str = "") -> None:
        """Check the length of a prompt as the engine will get it. Raises InvalidRequest.

        `besides`: what the prompt has in addition to the field's text.
        """
        if num_tokens > self.longest:
            raise self.too_long(f"{num_tokens}", field, besides)

    def check_text(self, text: str, longest_token_chars: int, field: str) -> None:
        """Raises InvalidRequest for a text that is too long however it is tokenized."""
        at_least = -(-len(text) // longest_token_chars)
        if at_least > self.most:
            raise self.too_long(f"at least {at_least}", field)

    def too_long(self, count: str, field: str, besides: str = "") -> InvalidRequest:
        says = (
            f"This model accepts at most {self.longest} tokens; {field}{besides} has {count}. Shorten it, or send "
            f"{self.remedy} to use only its first {self.longest} tokens"
            if self.kept is None
            else f"{field}{besides} has {count} tokens; truncation accepts at most {self.most}"
        )
        return InvalidRequest(says, field.partition("[")[0])


def entry_names(field: str, count: int) -> list[str]:
    """How messages name each of the `count` texts of a field."""
    return [field] if count == 1 else [f"{field}[{number}]" for number in range(count)]


@dataclass(frozen=True, slots=True)
class PairForm:
    """The special tokens that the tokenizer puts around two texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    num_first: int | None  # tokens of `between` that have the first text's type; None: no token types

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, has_types: bool) -> "PairForm":
        """Raises InvalidRequest for a tokenizer that cannot encode a pair of texts."""
        ids, texts, types = tokenizer.encode_pair(_FIRST, _SECOND)
        if 0 not in texts or 1 not in texts:
            raise InvalidRequest("this model's tokenizer cannot encode pairs of texts, so none can be scored")
        first, second = texts.index(0), texts.index(1)
        end_of_first = len(texts) - texts[::-1].index(0)
        end_of_second = len(texts) - texts[::-1].index(1)
        between = range(end_of_first, second)
        return cls(
            tuple(ids[:first]),
            tuple(ids[at] for at in between),
            tuple(ids[end_of_second:]),
            sum(types[at] == 0 for at in between) if has_types and 1 in types else None,
        )

    @property
    def num_added(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


class PoolingTexts:
    """Makes the prompts of a pooling model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, encoder: PromptEncoder, files: PoolingFiles):
        self._tokenizer, self._encoder, self.files = tokenizer, encoder, files
        self._num_around = len(tokenizer.with_special_tokens([]))

    @functools.cached_property
    def _pair(self) -> PairForm:
        return PairForm.of(self._tokenizer, has_types=self.files.has_token_types)

    def limit(self, max_model_len: int, truncate: int | None, side: Side | None) -> Limit:
        """The limit of one request. Raises InvalidRequest."""
        return Limit.of(min(max_model_len, self.files.max_tokens or max_model_len), truncate, side)

    def prompt(self, text: str, limit: Limit, field: str, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequest."""
        self._check_number_of_tokens(text, limit, field)
        ids = self._encoder.encode_prompt(text, add_special_tokens)
        if limit.kept is not None and len(ids) > limit.kept:
            if not add_special_tokens or limit.kept <= self._num_around:
                return limit.cut(ids)
            bare = self._encoder.encode_prompt(text, add_special_tokens=False)
            ids = self._tokenizer.with_special_tokens(limit.cut(bare, limit.kept - self._num_around))
        limit.check(len(ids), field)
        if not ids:
            raise InvalidRequest(f"{field} is empty; at least one token is needed", field.partition("[")[0])
        return ids

    def tokens(self, ids: Sequence[int], limit: Limit, vocab_size: int, field: str) -> list[int]:
        """A prompt that is given as tokens. Raises InvalidRequest."""
        name = field.partition("[")[0]
        if not ids:
            raise InvalidRequest(f"{field} is empty; at least one token is needed", name)
        if len(ids) > limit.most:
            raise limit.too_long(f"{len(ids)}", field)
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            wrong = next(token for token in ids if not 0 <= token < vocab_size)
            raise InvalidRequest(f"{field} has token {wrong}; the vocabulary is 0..{vocab_size - 1}", name)
        cut = limit.cut([*ids])
        limit.check(len(cut), field)
        return cut

    def part(self, text: str, limit: Limit, field: str) -> list[int]:
        """The tokens of one text of a pair, without special tokens. Raises InvalidRequest if it fits into no pair."""
        self._check_number_of_tokens(text, limit, field)
        ids = self._encoder.encode_prompt(text, add_special_tokens=False)
        if limit.kept is None:
            limit.check(len(ids), field)
        return ids

    def pair(self, first: list[int], second: list[int], limit: Limit, field: str) -> tuple[list[int], int | None]:
        """The prompt, and the index where the second text begins if the model has token types, else None.

        If a pair is too long, its longer text is cut first, then both equally, as transformers' longest_first does.
        Raises InvalidRequest.
        """
        form = self._pair
        if limit.kept is not None:
            room = max(0, limit.kept - form.num_added)
            first, second = _cut_longer(first, second, room, limit)
        ids = [*form.before, *first, *form.between, *second, *form.after]
        limit.check(len(ids), field, " with its query")
        if not ids:
            raise InvalidRequest(
                f"{field} and its query are empty; at least one token is needed", field.partition("[")[0]
            )
        if form.num_first is None:
            return ids, None
        return ids, len(form.before) + len(first) + form.num_first

    def _check_number_of_tokens(self, text: str, limit: Limit, field: str) -> None:
        """Called before memory is spent on the tokens. Raises InvalidRequest."""
        if at_least := self._tokenizer.tokens_beyond(text, limit.most):
            raise limit.too_long(f"at least {at_least}", field)


def _cut_longer(first: list[int], second: list[int], room: int, limit: Limit) -> tuple[list[int], list[int]]:
    if len(first) + len(second) <= room:
        return first, second
    half = room // 2
    if len(first) <= half:
        return first, limit.cut(second, room - len(first))
    if len(second) <= room - half:
        return limit.cut(first, room - len(second)), second
    return limit.cut(first, half), limit.cut(second, room - half)
