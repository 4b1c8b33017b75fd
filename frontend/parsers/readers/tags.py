"""Finds the next of a few tags in a text that arrives in pieces."""

import re
from collections.abc import Collection
from functools import lru_cache


class Tags:
    """A set of tags. None may be a prefix of another, or the end of a tag would depend on the pieces."""

    def __init__(self, *tags: str):
        self._pattern = re.compile("|".join(map(re.escape, tags)) or "(?!)")
        self._first = re.compile("|".join({re.escape(tag[0]) for tag in tags}) or "(?!)")
        self._beginnings = {tag[:size] for tag in tags for size in range(1, len(tag))}
        self._longest = max(map(len, tags), default=1) - 1

    def find(
        self, text: str, at: int, final: bool, tokens: "TagTokens | None" = None, strict: Collection[str] = ()
    ) -> tuple[int, str]:
        """(position of the first tag, the tag). Without a tag: (end of the text that cannot belong to a tag, "").

        `strict`: tags that count only where a token of their own wrote them, in addition to those of `tokens`.
        """
        found = self._pattern.search(text, at)
        while found is not None and tokens is not None and not tokens.wrote(found, strict):
            found = self._pattern.search(text, found.start() + 1)
        if found is not None:
            return found.start(), found[0]
        if not final:
            for begin in self._first.finditer(text, max(at, len(text) - self._longest)):
                if text[begin.start() :] in self._beginnings:
                    return begin.start(), ""
        return len(text), ""

    def at(self, text: str, at: int, tokens: "TagTokens | None" = None) -> str:
        """The tag at this position, or ""."""
        found = self._pattern.match(text, at)
        return "" if found is None or (tokens is not None and not tokens.wrote(found)) else found[0]

    def may_begin(self, text: str, at: int) -> bool:
        """Whether the rest of the text may become a tag."""
        return len(text) - at <= self._longest and text[at:] in self._beginnings


class TagTokens:
    """The tags of `only` count where a token of their own wrote them: the same text of other tokens quotes a tag."""

    def __init__(self, only: frozenset[str]):
        self._only = only
        self._ends: set[int] = set()  # of the tags that tokens wrote, counted from the beginning of the output
        self.start = 0  # of the text that is read, counted likewise

    def add(self, ends: Collection[int]) -> None:
        self._ends.update(ends)

    def wrote(self, found: re.Match[str], strict: Collection[str] = ()) -> bool:
        """Whether the tag that was found in the text counts."""
        tag = found[0]
        return (tag not in self._only and tag not in strict) or self.start + found.end() in self._ends


tags_of = lru_cache(maxsize=1024)(Tags)  # there are few states, and they are entered often
