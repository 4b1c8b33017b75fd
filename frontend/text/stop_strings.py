"""Finds stop strings in an output, however it is divided into pieces."""

from collections import deque
from collections.abc import Sequence


class StopAutomaton:
    """Any number of stop strings as one machine that looks at each character once (Aho and Corasick, 1975).

    A state stands for the longest end of the text that begins a stop string. The sequences of a request share one
    automaton, and each keeps only its state.
    """

    START = 0

    def __init__(self, stop: Sequence[str]):
        stop = tuple(dict.fromkeys(stop))
        self.firsts = frozenset(text[0] for text in stop)
        self._next: dict[tuple[int, str], int] = {}
        self._shorter = [0]  # the state of the longest proper end of the same text
        self.depths = [0]  # characters
        self._found: list[str | None] = [None]  # the longest stop string that ends here
        for text in stop:
            self._add(text)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        following = self._next
        while (found := following.get((state, char))) is None:
            if not state:
                return 0
            state = self._shorter[state]
        return found

    def found(self, state: int) -> str | None:
        """The stop string that is complete in this state."""
        return self._found[state]

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            if (state, char) not in self._next:
                self._next[state, char] = len(self.depths)
                self.depths.append(self.depths[state] + 1)
                self._shorter.append(0)
                self._found.append(None)
            state = self._next[state, char]
        self._found[state] = text

    def _link(self) -> None:
        """Link each state, shorter ones first: the link of a state leads to those of its successors."""
        followers: dict[int, list[tuple[str, int]]] = {}
        for (state, char), found in self._next.items():
            followers.setdefault(state, []).append((char, found))
        waiting = deque(found for _, found in followers.get(0, ()))
        while waiting:
            state = waiting.popleft()
            for char, found in followers.get(state, ()):
                self._shorter[found] = self.step(self._shorter[state], char)
                waiting.append(found)
            self._found[state] = self._found[state] or self._found[self._shorter[state]]


class StopStrings:
    """Passes text on, but holds back a tail that may still become a stop string.

    The stop string that is complete first ends the text; of two complete at the same character, the longer one.

    >>> stops = StopStrings(["###"])
    >>> stops.push("a#"), stops.push("#b"), stops.push("c###d")
    (('a', None), ('##b', None), ('c', '###'))
    """

    def __init__(self, stop: Sequence[str] | StopAutomaton, include: bool = False):
        self._automaton = stop if isinstance(stop, StopAutomaton) else StopAutomaton(stop)
        self._include = include
        self._state = StopAutomaton.START
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that was found or None); push nothing after one was found."""
        state, automaton = self._state, self._automaton
        if not state and automaton.firsts.isdisjoint(text):
            return text, None
        start = len(self._held)
        text = self._held + text
        for end, char in enumerate(text[start:], start + 1):
            state = automaton.step(state, char)
            if state and (stop := automaton.found(state)) is not None:
                self._state, self._held = StopAutomaton.START, ""
                return text[: end if self._include else end - len(stop)], stop
        shown = len(text) - automaton.depths[state]
        self._state, self._held = state, text[shown:]
        return text[:shown], None

    def finish(self) -> str:
        """The tail held back, which did not become a stop string."""
        held, self._held = self._held, ""
        return held
