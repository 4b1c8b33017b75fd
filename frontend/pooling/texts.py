"""Texts, tokens and pairs of texts to the prompts of a model that answers with vectors.

What is too long is refused, or cut where the request asks for it: the special tokens around it, which the model's
vector is made of, stay.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paged_serve.protocol.errors import InvalidRequest

from ..conversation.prompt_encoder import PromptEncoder
from ..text.tokenizer import Tokenizer
from .model_files import PoolingFiles

Side = Literal["left", "right"]
WHOLE = -1  # as much as the model takes
MAX_CUT_TOKENS = 1 << 18  # of a text before it is cut, or as many as the model takes
_FIRST, _SECOND = "first words", "others"


@dataclass(frozen=True, slots=True)
class Limit:
    """`longest`: tokens that the model takes; `kept`: what a longer prompt is cut to, None: it is refused."""

    longest: int
    kept: int | None = None
    side: Side = "right"  # which the tokens are taken from

    @classmethod
    def of(cls, longest: int, truncate: int | None, side: Side | None) -> "Limit":
        """Raises InvalidRequest."""
        if truncate is None:
            if side is not None:
                raise InvalidRequest("truncation_side needs truncate_prompt_tokens", "truncation_side")
            return cls(longest)
        if truncate == 0 or truncate < WHOLE or truncate > longest:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {truncate}; it can be 1 to {longest}, which is what this model takes, or "
                "-1 for as many",
                "truncate_prompt_tokens",
            )
        return cls(longest, longest if truncate == WHOLE else truncate, side or "right")

    @property
    def most(self) -> int:
        """Tokens of what is sent, before it is cut."""
        return self.longest if self.kept is None else max(MAX_CUT_TOKENS, self.longest)

    def cut(self, ids: list[int], room: int | None = None) -> list[int]:
        """To `room` tokens; None: to what is kept."""
        room = self.kept if room is None else room
        if room is None or len(ids) <= room:
            return ids
        return ids[len(ids) - room :] if self.side == "left" else ids[:room]

    def check(self, num_tokens: int, field: str) -> None:
        """Of a prompt as it is sent to the engine. Raises InvalidRequest."""
        if num_tokens > self.longest:
            raise too_long(f"{num_tokens}", field, self.longest)

    def check_text(self, text: str, longest_token_chars: int, field: str) -> None:
        """Raises InvalidRequest for a text that no tokenization makes short enough."""
        at_least = -(-len(text) // longest_token_chars)
        if at_least > self.most:
            raise too_long(f"at least {at_least}", field, self.longest)


def too_long(count: str, field: str, longest: int) -> InvalidRequest:
    return InvalidRequest(
        f"This model takes {longest} tokens; {field} has {count}. Shorten it, or have its first {longest} used with "
        "truncate_prompt_tokens: -1",
        field.partition("[")[0],
    )


@dataclass(frozen=True, slots=True)
class PairForm:
    """What the tokenizer puts around two texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    num_first: int | None  # of `between`, of the first text's type; None: there are no types

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, has_types: bool) -> "PairForm":
        """Raises InvalidRequest for a tokenizer that makes no prompt of two texts."""
        ids, texts, types = tokenizer.encode_pair(_FIRST, _SECOND)
        if 0 not in texts or 1 not in texts:
            raise InvalidRequest("this model's tokenizer does not join two texts; pairs have no score here")
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
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, encoder: PromptEncoder, files: PoolingFiles):
        self._tokenizer, self._encoder, self.files = tokenizer, encoder, files
        self._num_around = len(tokenizer.with_special_tokens([]))

    @functools.cached_property
    def _pair(self) -> PairForm:
        return PairForm.of(self._tokenizer, has_types=self.files.has_token_types)

    def limit(self, max_model_len: int, truncate: int | None, side: Side | None) -> Limit:
        """Of one request. Raises InvalidRequest."""
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
            raise InvalidRequest(f"{field} is empty; give at least one token of text", field.partition("[")[0])
        return ids

    def tokens(self, ids: Sequence[int], limit: Limit, vocab_size: int, field: str) -> list[int]:
        """A prompt that comes as tokens. Raises InvalidRequest."""
        name = field.partition("[")[0]
        if not ids:
            raise InvalidRequest(f"{field} is empty; give at least one token", name)
        if len(ids) > limit.most:
            raise too_long(f"{len(ids)}", field, limit.longest)
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            wrong = next(token for token in ids if not 0 <= token < vocab_size)
            raise InvalidRequest(f"{field} has token {wrong}; the vocabulary is 0..{vocab_size - 1}", name)
        cut = limit.cut([*ids])
        limit.check(len(cut), field)
        return cut

    def part(self, text: str, limit: Limit, field: str) -> list[int]:
        """A text of a pair, without what is put around it. Raises InvalidRequest for one that is much too long."""
        self._check_number_of_tokens(text, limit, field)
        return self._encoder.encode_prompt(text, add_special_tokens=False)

    def pair(self, first: list[int], second: list[int], limit: Limit, field: str) -> tuple[list[int], int | None]:
        """(the prompt, where the second text begins for a model that is told so). Of too long a pair the longer text
        is cut, or both to equal lengths, as the field does it. Raises InvalidRequest."""
        form = self._pair
        if limit.kept is not None:
            room = max(0, limit.kept - form.num_added)
            first, second = _cut_longer(first, second, room, limit)
        ids = [*form.before, *first, *form.between, *second, *form.after]
        limit.check(len(ids), field)
        if not ids:
            raise InvalidRequest(f"{field} and its query are empty; give at least one token of text", field)
        if form.num_first is None:
            return ids, None
        return ids, len(form.before) + len(first) + form.num_first

    def _check_number_of_tokens(self, text: str, limit: Limit, field: str) -> None:
        """Before the memory that its tokens need is taken."""
        if at_least := self._tokenizer.tokens_beyond(text, limit.most):
            raise too_long(f"at least {at_least}", field, limit.longest)


def _cut_longer(first: list[int], second: list[int], room: int, limit: Limit) -> tuple[list[int], list[int]]:
    if len(first) + len(second) <= room:
        return first, second
    half = room // 2
    if len(first) <= half:
        return first, limit.cut(second, room - len(first))
    if len(second) <= room - half:
        return limit.cut(first, room - len(second)), second
    return limit.cut(first, half), limit.cut(second, room - half)
