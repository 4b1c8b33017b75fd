"""Encodes prompts as token ids. In a conversation a request's text stays text, even if it spells special tokens."""

import json
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import tokenizers

from ..text.tokenizer import Tokenizer
from .conversation import TemplateInput
from .special_text import Span, SpecialSpellings


class PromptEncoder:
    """Thread-safe.

    `allow_special_tokens`: whether text of requests may spell special tokens; None: in prompts, not in conversations.
    """

    def __init__(self, tokenizer: Tokenizer, allow_special_tokens: bool | None = None):
        self._tokenizer = tokenizer
        self._in_prompts = allow_special_tokens is not False
        self._in_chats = allow_special_tokens is True
        self._spellings = SpecialSpellings(tokenizer.special_spellings)
        self._literal: LiteralTokenizer | None = None  # created for the first text that needs it
        self._making = threading.Lock()

    def prepared(self, given: TemplateInput) -> tuple[TemplateInput, str]:
        """(the template's input, the mark of text that spells special tokens, "" for none).

        Raises InvalidRequest when no character is left for a mark.
        """
        return (given, "") if self._in_chats else self._spellings.mark_input(given)

    def may_take_long(self, prompts: Sequence[object]) -> bool:
        """Whether `encode_prompt` may have to make a second tokenizer for one of them, which takes up to a second."""
        return not self._in_prompts and any(isinstance(text, str) and self._spellings.spells(text) for text in prompts)

    def encode_prompt(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if self._in_prompts or not self._spellings.spells(text):
            return self._tokenizer.encode(text, add_special_tokens)
        return self._encode_literally(text, [], add_special_tokens)

    def encode_chat(self, text: str, mark: str = "", add_special_tokens: bool = False) -> list[int]:
        """The tokens of the text that the template rendered from the input of `prepared`; the marks are removed."""
        plain = without(text, mark)
        if self._in_chats:
            return self._tokenizer.encode(plain, add_special_tokens)
        own = list(self._spellings.of_template(text, mark))
        if not mark or own == list(self._spellings.find(plain)):
            ids = self._tokenizer.encode(plain, add_special_tokens=False)
            # A tokenizer that normalizes text may read <|END|> as <|end|>.
            if not self._tokenizer.normalizes_special_tokens or self._num_special(ids) == len(own):
                return self._tokenizer.with_special_tokens(ids) if add_special_tokens else ids
        return self._encode_literally(plain, own, add_special_tokens)

    def _num_special(self, ids: list[int]) -> int:
        special = {*self._tokenizer.special_spellings.values()}
        return sum(token in special for token in ids)

    def _encode_literally(self, text: str, own: list[Span], add_special_tokens: bool) -> list[int]:
        """Encode with special tokens only at the places `own`; the rest is text."""
        with self._making:
            if self._literal is None:
                self._literal = LiteralTokenizer(self._tokenizer)
        ids = self._literal.encode(text, own)
        return self._tokenizer.with_special_tokens(ids) if add_special_tokens else ids


def without(text: str, mark: str) -> str:
    return text.replace(mark, "") if mark else text


class LiteralTokenizer:
    """The tokenizer with other, random names for its special tokens, which no text can contain.

    So a single call of the library distinguishes special tokens from text that looks like them.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._original = tokenizer
        secret = secrets.token_hex(16)
        self._names = {
            spelling: f"[{secret}-{number}]" for number, spelling in enumerate(sorted(tokenizer.special_spellings))
        }
        declared = json.loads(tokenizer.to_json())
        for entry in declared["added_tokens"]:
            entry["content"] = self._names.get(entry["content"], entry["content"])
        declared["post_processor"] = None  # the original tokenizer adds its tokens
        self._rename(declared["model"])
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(declared))
        self._ids = {  # to the ids of the original tokenizer, in case the new names got other ids
            self._tokenizer.token_to_id(self._names.get(entry.content, entry.content)): token
            for token, entry in tokenizer.added_tokens.items()
        }

    def _rename(self, model: dict[str, Any]) -> None:
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {self._names.get(piece, piece): token for piece, token in vocab.items()}
        else:
            model["vocab"] = [[self._names.get(piece, piece), score] for piece, score in vocab]
        if model.get("unk_token") in self._names:
            model["unk_token"] = self._names[model["unk_token"]]
        if "merges" in model:  # no merge may produce a special token
            model["merges"] = [merge for merge in model["merges"] if _merged(merge) not in self._names]

    def encode(self, text: str, own: list[Span]) -> list[int]:
        pieces, end = list[str](), 0
        for span in own:
            pieces += [text[end : span.start], self._names[span.spelling]]
            end = span.start + len(span.spelling)
        with self._original.library_call(text):
            [encoding] = self._tokenizer.encode_batch_fast(["".join([*pieces, text[end:]])], add_special_tokens=False)
        return [self._ids.get(token, token) for token in encoding.ids]


def _merged(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)
