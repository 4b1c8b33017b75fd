"""Events by the step at which they are due, so that a steady step does one look-up instead of visiting every row."""

from ..requests.request import Sequence


class StepCalendar:
    """Sequences by the step at which an event is due for them, in order of entry."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Sequence, None]] = {}  # a dict as an ordered set

    def add(self, step: int, sequence: Sequence) -> None:
        self._due.setdefault(step, {})[sequence] = None

    def remove(self, step: int, sequence: Sequence) -> None:
        """Cancel an entry; a no-op if it was already due."""
        due = self._due.get(step, {})
        if sequence in due:
            del due[sequence]
            if not due:
                del self._due[step]

    def take(self, step: int) -> list[Sequence]:
        """Remove and return what is due at `step`."""
        return list(self._due.pop(step, ()))

    def clear(self) -> None:
        self._due.clear()

    def entries(self) -> dict[Sequence, int]:
        """Every sequence and its step, for audits."""
        return {sequence: step for step, due in self._due.items() for sequence in due}
