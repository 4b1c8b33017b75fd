"""Where the next of a few tags stands in a text that comes in pieces."""

import re
from collections.abc import Iterable


class Tags:
    """None may begin another one of the same set, or where a tag ends would depend on the pieces."""

    def __init__(self, tags: Iterable[str]):
        self.all = tuple(tags)
        self._pattern = re.compile("|".join(map(re.escape, self.all)) or "(?!)")
        self._beginnings = {tag[:size] for tag in self.all for size in range(1, len(tag))}
        self._longest = max(map(len, self.all), default=1) - 1

    def find(self, text: str, at: int, final: bool) -> tuple[int, str]:
        """(where the first tag begins, the tag); without a tag, where the text ends that can be none of one, and ""."""
        if (found := self._pattern.search(text, at)) is not None:
            return found.start(), found[0]
        if not final:
            for start in range(max(at, len(text) - self._longest), len(text)):
                if text[start:] in self._beginnings:
                    return start, ""
        return len(text), ""

    def at(self, text: str, at: int) -> str:
        """The tag that stands there, or ""."""
        found = self._pattern.match(text, at)
        return "" if found is None else found[0]

    def may_begin(self, text: str, at: int) -> bool:
        """Whether the rest of the text may become a tag."""
        return len(text) - at <= self._longest and text[at:] in self._beginnings
