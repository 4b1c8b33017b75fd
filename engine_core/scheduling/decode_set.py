"""The rows that take one token each step, as parallel columns that never change.

Every in-flight step keeps the set it was planned with. A change makes a new set by copying whole columns, which costs
a microsecond each even for a thousand rows; a steady step iterates over no column in Python.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeVar

from paged_serve.protocol.messages.engine_core import TokenColumns
from paged_serve.protocol.messages.message import pack_ids, pack_int64

from ..requests.request import Sequence

Key = TypeVar("Key")

MAX_ADVANCE = 1 << 30  # steps after which first_positions are recomputed, before they exceed int32


@dataclass(frozen=True, slots=True)
class ClientColumns:
    """The part of a decode set that goes to one client."""

    stream_ids: bytes
    first_positions: bytes
    pick: "Callable[[array[int]], bytes]"  # the set's tokens -> this client's, as int32


@dataclass(slots=True)
class DecodeSet:
    """Columns in ascending row order. A sequence's output position in step s is first_positions[i] + s - origin."""

    rows: list[int] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    appends: list[Callable[[int], None]] = field(default_factory=list)  # the append method of each sequence's output
    stream_ids: "array[int]" = field(default_factory=lambda: array("q"))
    first_positions: "array[int]" = field(default_factory=lambda: array("i"))
    origin: int = 0  # step
    stop_ids: frozenset[int] = frozenset()  # union over the sequences
    num_stopping: dict[frozenset[int], int] = field(default_factory=dict)  # Sequence.stop_ids -> number of sequences
    num_plain: dict[bytes, int] = field(default_factory=dict)  # client -> number of plain sequences
    _by_client: dict[bytes, ClientColumns] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, sequence: Sequence) -> int | None:
        """The index of `sequence`, which still has the row it was planned with; None if it is not in this set."""
        index = bisect_left(self.rows, sequence.row)
        return index if index < len(self.rows) and self.sequences[index] is sequence else None

    def joined(self, sequences: list[Sequence], step: int) -> "DecodeSet":
        """This set plus `sequences`, whose first decode step is `step`."""
        new = self._copy()
        if step - new.origin > MAX_ADVANCE:
            new.first_positions = array("i", (first + step - new.origin for first in new.first_positions))
            new.origin = step
        for sequence in sequences:
            index = bisect_left(new.rows, sequence.row)
            new.rows.insert(index, sequence.row)
            new.sequences.insert(index, sequence)
            new.appends.insert(index, sequence.output.append)
            new.stream_ids.insert(index, sequence.stream_id)
            position = sequence.prefill_len - sequence.request.prompt_len + 1  # in its first decode step
            new.first_positions.insert(index, position - step + new.origin)
            if sequence.plain:
                client = sequence.request.client
                new.num_plain[client] = new.num_plain.get(client, 0) + 1
            new.num_stopping[sequence.stop_ids] = new.num_stopping.get(sequence.stop_ids, 0) + 1
        if len(new.num_stopping) > len(self.num_stopping):
            new.stop_ids = frozenset().union(*new.num_stopping)
        return new

    def without(self, indices: Iterable[int]) -> "DecodeSet":
        """This set without the sequences at `indices`."""
        new = self._copy()
        for index in sorted(indices, reverse=True):
            sequence = new.sequences[index]
            for column in (new.rows, new.sequences, new.appends, new.stream_ids, new.first_positions):
                del column[index]
            if sequence.plain:
                _count_down(new.num_plain, sequence.request.client)
            _count_down(new.num_stopping, sequence.stop_ids)
        if len(new.num_stopping) < len(self.num_stopping):
            new.stop_ids = frozenset().union(*new.num_stopping)
        return new

    def columns(self, step: int, tokens: "array[int]") -> dict[bytes, TokenColumns]:
        """The columns of `step` for each client: one token per plain sequence. `tokens` has one entry per row."""
        if self._by_client is None:
            self._by_client = {client: self._client_columns(client) for client in self.num_plain}
        advance = step - self.origin
        return {
            client: TokenColumns(part.stream_ids, part.first_positions, advance, part.pick(tokens))
            for client, part in self._by_client.items()
        }

    def _client_columns(self, client: bytes) -> ClientColumns:
        if self.num_plain[client] == len(self.rows):
            return ClientColumns(pack_int64(self.stream_ids), pack_ids(self.first_positions), pack_ids)
        mine = [i for i, sequence in enumerate(self.sequences) if sequence.plain and sequence.request.client == client]
        stream_ids = pack_int64(self.stream_ids[i] for i in mine)
        first_positions = pack_ids(self.first_positions[i] for i in mine)
        if len(mine) == 1:
            only = mine[0]
            return ClientColumns(stream_ids, first_positions, lambda tokens: pack_ids((tokens[only],)))
        pick = itemgetter(*mine)
        return ClientColumns(stream_ids, first_positions, lambda tokens: pack_ids(pick(tokens)))

    def _copy(self) -> "DecodeSet":
        return replace(
            self,
            rows=self.rows[:],
            sequences=self.sequences[:],
            appends=self.appends[:],
            stream_ids=self.stream_ids[:],
            first_positions=self.first_positions[:],
            num_plain=self.num_plain.copy(),
            num_stopping=self.num_stopping.copy(),
            _by_client=None,
        )


def _count_down(counts: dict[Key, int], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
