"""Keeps the decode set: which rows join and leave it, and when a row needs a block or samples its last token."""

from collections.abc import Iterable

from ..requests.request import Sequence
from .decode_set import DecodeSet
from .fair_share import FairShares


class StepCalendar:
    """Sequences by the step at which an event is due for them, in order of entry: a steady step does one look-up."""

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


class DecodeRows:
    """The decode set of the next step, and its changes since the last message to the workers."""

    def __init__(self, block_size: int, shares: FairShares) -> None:
        self.decode_set = DecodeSet()
        self.block_due = StepCalendar()
        self.last_token_due = StepCalendar()
        self._block_size = block_size
        self._shares = shares
        self._joins: list[int] = []  # rows, while a step is being planned
        self._leaves: list[int] = []  # rows that the workers have not removed from the decode set yet

    def join(self, sequences: list[Sequence], step: int) -> None:
        """Add `sequences`, whose first decode step is `step`."""
        for sequence in sequences:
            sequence.joined_step, sequence.num_decoded = step, 0
            self.last_token_due.add(sequence.last_step, sequence)
            self.expect_block(sequence)
            self._joins.append(sequence.row)
            self._shares.join_decode_set(sequence.request.tenant)
        self.decode_set = self.decode_set.joined(sequences, step)

    def leave(self, sequences: Iterable[Sequence], last_step: int) -> None:
        """Remove `sequences`; `last_step` is the last one planned for them as decode rows."""
        indices = []
        for sequence in sequences:
            index = self.decode_set.index(sequence)
            assert index is not None, f"stream {sequence.stream_id} is not in the decode set"
            indices.append(index)
            self._shares.leave_decode_set(sequence.request.tenant)
            self.block_due.remove(sequence.next_block_step(self._block_size), sequence)
            self.last_token_due.remove(sequence.last_step, sequence)
            if sequence.row in self._joins:
                self._joins.remove(sequence.row)  # the workers have not been sent it yet
            else:
                self._leaves.append(sequence.row)
            sequence.num_decoded, sequence.joined_step = last_step + 1 - sequence.joined_step, 0
        if indices:
            self.decode_set = self.decode_set.without(indices)

    def expect_block(self, sequence: Sequence) -> None:
        """Schedule the next allocation of a block to `sequence`, if it needs one before its last token."""
        step = sequence.next_block_step(self._block_size)
        if step <= sequence.last_step:
            self.block_due.add(step, sequence)

    def take_changes(self) -> tuple[list[int], list[int]]:
        """The rows that leave and those that join, for the message of the step that has been planned."""
        changes = self._leaves, self._joins
        self._leaves, self._joins = [], []
        return changes

    def clear(self) -> None:
        """The workers were lost, and their decode set with them."""
        self.decode_set = DecodeSet()
        self.block_due.clear()
        self.last_token_due.clear()
        self._joins, self._leaves = [], []
        self._shares.workers_lost()
