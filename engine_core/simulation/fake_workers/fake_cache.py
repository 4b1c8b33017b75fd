"""The KV cache of the fake worker: hashes in place of keys and values, so that every read can be checked.

A KV slot holds a hash of all tokens up to its own; a block records the salt and the KV group for which it was written.
A block of a state group has one slot, which each of its tokens overwrites. Reading a slot that another sequence wrote,
or that was never written, raises AssertionError; each group reads as far back as its window or attention chunk, or the
state before the token. States after drafts are written once these are accepted, others never. A slot can also be
poisoned: results computed from it are not finite and poison the slots that they write.
"""

from collections.abc import Sequence

from paged_serve.protocol.messages.loading.startup import KVGroup

from .fake_row import FakeRow

NOT_REPORTED = 1 << 62  # a step


class FakeCache:
    """The blocks of all KV groups."""

    def __init__(self, num_blocks: int, block_size: int, groups: Sequence[KVGroup]):
        self.block_size = block_size
        self.slots = [[0] * block_size for _ in range(num_blocks)]
        self.written_for = [("", 0)] * num_blocks  # salt and group
        self.poisoned: dict[tuple[int, int], int] = {}  # (block, offset) -> the step that reported it
        self._groups = groups
        self._states = frozenset(index for index, group in enumerate(groups) if group.is_state)

    def spoil(self, block: int, offset: int) -> None:
        """Make a value in this slot not finite; a state has one slot."""
        _, group = self.written_for[block]
        self.poisoned[block, 0 if self._groups[group].is_state else offset] = NOT_REPORTED

    def reported(self, step: int) -> set[tuple[int, int]]:
        """The poisoned slots, (block, offset), that steps until `step` have reported."""
        return {slot for slot, reported in self.poisoned.items() if reported <= step}

    def copy_blocks(self, pairs: list[int]) -> None:
        sources, destinations = pairs[::2], pairs[1::2]
        assert len(set(destinations)) == len(destinations), "two blocks are copied to one"
        assert not set(sources) & set(destinations), "a block is overwritten in the step that copies it"
        for source, block in zip(sources, destinations, strict=True):
            self.slots[block] = self.slots[source][:]
            self.written_for[block] = self.written_for[source]
            for offset in range(self.block_size):
                self.poisoned.pop((block, offset), None)
                if (source, offset) in self.poisoned:
                    self.poisoned[block, offset] = self.poisoned[source, offset]

    def extend(self, row: FakeRow, group: int, block: int) -> None:
        """Append a block to the row's table of this group."""
        row.block_tables[group].append(block)
        if group not in self._states:
            for offset in range(self.block_size):
                self.poisoned.pop((block, offset), None)

    def drop_poison_behind(self, row: FakeRow) -> None:
        """Blocks may hold later tokens of other rows, which the new row overwrites before it reads them."""
        index, length = divmod(row.num_computed, self.block_size)
        for group, table in enumerate(row.block_tables):
            if group not in self._states:
                for number in range(index, len(table)):
                    for offset in range(length if number == index else 0, self.block_size):
                        self.poisoned.pop((table[number], offset), None)

    def check_reads(self, row: FakeRow, num_tokens: int) -> None:
        """Every slot that the first new token sees holds exactly this row's tokens, written in an earlier step."""
        size, slots, end = self.block_size, self.slots, row.num_computed
        assert row.num_computed + num_tokens <= len(row.tokens), "a row computes tokens that it does not have"
        for group, table in enumerate(row.block_tables):
            assert len(table) * size >= row.num_computed + num_tokens, "a row writes beyond its blocks"
            first = self._first_seen(row, group) // size
            seen = table[first : -(-end // size)]
            is_own = all(self.written_for[block] == (row.salt, group) for block in seen)
            assert is_own, "a row reads a block of another salt or KV group"
            if self._groups[group].is_state:
                is_own = all(slots[block][0] == row.prefixes[end - 1] for block in seen)
                assert is_own, "a row starts from another state than that of its last token"
                continue
            for index in range(first, end // size):
                block_prefixes = row.prefixes[index * size : index * size + size]
                assert slots[table[index]] == block_prefixes, "a row reads a block with other tokens"
            if (rest := end % size) and seen:
                is_own = slots[table[end // size]][:rest] == row.prefixes[end - rest : end]
                assert is_own, "a row reads other tokens in its last block"

    def states_read(self, row: FakeRow) -> list[int]:
        """The blocks of the states from which the row's next token starts."""
        last = row.num_computed - 1
        if last < 0:
            return []
        return [row.block_tables[group][last // self.block_size] for group in self._states]

    def write(self, row: FakeRow, num_tokens: int, num_drafts: int, writer: dict[tuple[int, int], int]) -> None:
        """Compute the row's next tokens. `writer`: the row that writes each slot in this step."""
        first = row.num_computed
        row.num_computed += num_tokens
        row.num_stored = row.num_computed - num_drafts
        for position in range(first, row.num_computed):
            for group in range(len(row.block_tables)):
                if group not in self._states or position < row.num_stored:
                    self._write_slot(row, group, position, writer)

    def write_accepted(self, row: FakeRow, writer: dict[tuple[int, int], int], *, is_ill: bool) -> None:
        """Write the states after accepted drafts."""
        for position in range(row.num_stored, row.num_computed):
            for group in self._states:
                self._write_slot(row, group, position, writer)
                if is_ill:
                    self.spoil(row.block_tables[group][position // self.block_size], 0)
        row.num_stored = row.num_computed

    def poison_of(self, row: FakeRow) -> list[tuple[int, int]]:
        """Poisoned slots within the row's window, computed by the row or taken from the prefix cache."""
        used: dict[int, tuple[int, int]] = {}  # block -> position of its first slot, first position that is seen
        for group, table in enumerate(row.block_tables):
            seen = self._first_seen(row, group)
            if group in self._states:
                seen -= seen % self.block_size  # the state is at the beginning of its block
            for index in range(seen // self.block_size, len(table)):
                used[table[index]] = (index * self.block_size, seen)
        return [
            (block, offset)
            for block, offset in self.poisoned
            if block in used and used[block][1] <= used[block][0] + offset < row.num_computed
        ]

    def spoil_last(self, row: FakeRow, num_tokens: int) -> None:
        """Poison the slots that the row has just written."""
        for position in range(row.num_computed - num_tokens, row.num_computed):
            for group, table in enumerate(row.block_tables):
                if group not in self._states or position < row.num_stored:
                    self.spoil(table[position // self.block_size], position % self.block_size)

    def report(self, row: FakeRow, step: int) -> None:
        """Slots behind the row's windows count, too: the row has read them, and they may not be overwritten yet."""
        for group, table in enumerate(row.block_tables):
            numbers = {block: index for index, block in enumerate(table)}
            for block, offset in self.poisoned:
                first = numbers.get(block, row.num_computed) * self.block_size
                position = first + offset
                if group in self._states and first < row.num_computed:  # of the state in the block
                    position = min(row.num_computed, first + self.block_size) - 1
                if position >= row.num_computed or self.written_for[block] != (row.salt, group):
                    continue
                if self.slots[block][offset] == row.prefixes[position]:
                    self.poisoned[block, offset] = min(self.poisoned[block, offset], step)

    def _first_seen(self, row: FakeRow, group: int) -> int:
        """The first position that the row's next token attends to."""
        position, kind = row.num_computed, self._groups[group]
        if kind.is_state:
            return max(0, position - 1)
        if kind.attention_chunk:
            return position - position % kind.attention_chunk
        return max(0, position - kind.window + 1) if kind.window else 0

    def _write_slot(self, row: FakeRow, group: int, position: int, writer: dict[tuple[int, int], int]) -> None:
        block, offset = row.block_tables[group][position // self.block_size], position % self.block_size
        if group in self._states:
            for other in range(self.block_size):  # they may be left from another group's use of the block
                self.poisoned.pop((block, other), None)
            offset = 0
        assert block >= 0, "a row writes to a block that it does not have"
        index = row.new_row.row
        assert writer.setdefault((block, offset), index) == index, "two rows write one slot in one step"
        self.slots[block][offset] = row.prefixes[position]
        self.written_for[block] = (row.salt, group)
        self.poisoned.pop((block, offset), None)
