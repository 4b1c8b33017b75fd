"""Reads text between calls, the tags that end it, and the headers of calls."""

from .collector import Collector
from .json_readers import behind_space
from .states import CONTENT, FAIL, Header, Skip, Text
from .tags import TagTokens, tags_of

MAX_HEADER_CHARS = 512


class TextReader:
    def __init__(self, state: Text, collector: Collector, tokens: TagTokens):
        self._state, self._collector, self._tokens = state, collector, tokens
        self._tags = tags_of(*state.tags, *state.calls)
        self.tag_at: int | None = None  # position of the tag that ended the text

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        end, tag = self._tags.find(text, at, final, self._tokens, self._state.calls)
        if self._state.kind == "content":
            self._collector.content(text[at:end])
        elif self._state.kind == "reasoning":
            self._collector.reasoning(text[at:end])
        if not tag:
            return end, None
        self.tag_at = end
        if tag in self._state.calls:
            return end + len(tag), self._state.calls[tag]
        if self._state.kind == "reasoning":
            self._collector.end_reasoning()
        if self._state.tags[tag] == CONTENT:  # a tag around the answer
            self._collector.drop_space()
        return end + len(tag), self._state.tags[tag]


class SkipReader:
    def __init__(self, state: Skip, collector: Collector, tokens: TagTokens):
        self._state, self._collector, self._tokens = state, collector, tokens
        self._tags = tags_of(*state.tags, *state.begins)
        self.tag_at: int | None = None  # position of the tag that was read
        if state.ends_call:
            collector.end_call()

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        start, at = at, behind_space(text, at) if self._state.skips_space else at
        if self._state.keeps_space:
            self._collector.content(text[start:at])
        if tag := self._tags.at(text, at, self._tokens):
            self._collector.drop_space()
            if (begins := self._state.begins.get(tag)) is not None:
                return at, begins
            self.tag_at = at
            return at + len(tag), self._state.tags[tag]
        if (at == len(text) or self._tags.may_begin(text, at)) and not (final and self._state.keeps_space):
            return len(text) if final else at, None
        return at, self._state.otherwise


class HeaderReader:
    def __init__(self, state: Header, collector: Collector, tokens: TagTokens):
        self._state, self._collector, self._tokens = state, collector, tokens
        self._tags = tags_of(*dict.fromkeys(end.tag for end in state.ends))
        self._text = ""

    def read(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        at_tag, tag = self._tags.find(text, at, final, self._tokens)
        self._text += text[at:at_tag]
        if (excess := len(self._text) - MAX_HEADER_CHARS) > 0:
            return at_tag - excess, FAIL  # where it fails must not depend on the pieces
        if not tag:
            return at_tag, None
        for end in self._state.ends:
            if end.tag == tag and (found := end.pattern.search(self._text)) is not None:
                groups = found.groupdict()
                if end.is_known and groups["name"] not in self._collector.tools:
                    continue
                if groups.get("name"):
                    self._collector.start_call(groups["name"], groups.get("id") or "")
                return at_tag + len(tag), end.next
        return at_tag, FAIL
