"""Where the output ends: stop strings, found across any division into pieces."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on but holds back a tail that may yet become a stop string.

    The string that is complete first ends the text; of two complete at the same character, the longer one.

    >>> stops = StopStrings(["###"])
    >>> stops.push("a#"), stops.push("#b"), stops.push("c###d")
    (('a', None), ('##b', None), ('c', '###'))
    """

    def __init__(self, stop: Sequence[str], include: bool = False):
        self._stop = tuple(dict.fromkeys(stop))
        self._include = include
        prefixes = {text[:length] for text in self._stop for length in range(1, len(text))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that was found or None); push nothing after one was found."""
        if not self._stop:
            return text, None
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return text[: end if self._include else start], stop
        held = 0
        if text.endswith(self._prefixes):
            held = next(len(prefix) for prefix in self._prefixes if text.endswith(prefix))
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def finish(self) -> str:
        """The held tail, which did not become a stop string."""
        held, self._held = self._held, ""
        return held
