"""The logprobs of a message's text. A parser shows the text of a token late, in part, or, as of a tag, never."""

from collections.abc import Sequence

from .answers import OutputLogprob


class TextLogprobs:
    """Takes tokens one by one, and gives those of each text that is shown."""

    def __init__(self) -> None:
        self._held: list[OutputLogprob] = []  # of tokens whose text may still be shown
        self._num_shown = 0  # bytes of the first of them, whose logprob has been given

    def add(self, logprobs: Sequence[OutputLogprob]) -> None:
        self._held += logprobs

    def drop(self) -> None:
        """The tokens so far are of reasoning or of a call."""
        self._held, self._num_shown = [], 0

    def take(self, text: str) -> list[OutputLogprob]:
        """Those of `text`; tokens before it are of no text."""
        shown, held = text.encode(), b"".join(bytes(entry.bytes) for entry in self._held)
        start = self._num_shown
        if not held.startswith(shown, start):  # after a tag
            start = held.rfind(shown, start)
        if start < 0:  # bytes that are no UTF-8 are shown as U+FFFD
            start, shown = self._num_shown, held[self._num_shown :]
        taken, entries, end, at = list[OutputLogprob](), self._held, start + len(shown), 0
        was_given = self._num_shown > 0  # that of the first token
        self.drop()
        for number, entry in enumerate(entries):
            after = at + len(entry.bytes)
            if at >= end or after > end:
                self._held, self._num_shown = entries[number:], max(0, end - at)
            if at >= end:
                break
            if after > start and not was_given:
                taken.append(entry)
            was_given, at = False, after
        return taken
