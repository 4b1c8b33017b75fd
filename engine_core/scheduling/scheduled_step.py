"""One planned step: what it computes, and which of its results are discarded."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..requests.request import Sequence
from .decode_set import DecodeSet


@dataclass(slots=True)
class ScheduledChunk:
    """Tokens [start, end) of a sequence's known tokens; the last chunk samples the next token or yields the vector."""

    sequence: Sequence
    row: int
    start: int
    end: int
    samples: bool
    pools: bool = False
    discarded: bool = False


@dataclass(slots=True)
class ScheduledStep:
    """A step in flight, from plan to apply. Refers to sequences, because a row index may be reused meanwhile."""

    step: int
    decode: DecodeSet = field(default_factory=DecodeSet)
    admitted: list[Sequence] = field(default_factory=list)
    extended: list[Sequence] = field(default_factory=list)  # received new_blocks[i] in extended_tables[i]
    extended_tables: list[int] = field(default_factory=list)  # row * groups + group
    new_blocks: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)  # rows
    joins: list[int] = field(default_factory=list)  # rows
    chunks: list[ScheduledChunk] = field(default_factory=list)
    last: list[Sequence] = field(default_factory=list)  # decode rows that reach their length limit in this step
    discarded: set[int] = field(default_factory=set)  # indices into decode

    @property
    def num_tokens(self) -> int:
        return len(self.decode) + sum(chunk.end - chunk.start for chunk in self.chunks)

    def sequences(self) -> Iterator[Sequence]:
        """The sequences whose results are still wanted."""
        for index, sequence in enumerate(self.decode.sequences):
            if index not in self.discarded:
                yield sequence
        yield from (chunk.sequence for chunk in self.chunks if not chunk.discarded)

    def computed(self) -> Iterator[Sequence]:
        """All sequences that a worker computes, including those whose results are discarded."""
        yield from self.decode.sequences
        yield from (chunk.sequence for chunk in self.chunks)

    def withdraw(self, sequence: Sequence) -> int:
        """Remove `sequence`, which loses its row before this step is sent; returns the tokens that become free."""
        withdrawn = [chunk for chunk in self.chunks if chunk.sequence is sequence]
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence is not sequence]
        while sequence in self.extended:
            index = self.extended.index(sequence)
            del self.extended[index], self.extended_tables[index], self.new_blocks[index]
        return sum(chunk.end - chunk.start for chunk in withdrawn) + bool(sequence.joined_step)

    def discard(self, sequence: Sequence) -> None:
        """Discard the results of `sequence`, which finished or lost its row after this step was planned."""
        index = self.decode.index(sequence)
        if index is not None:
            self.discarded.add(index)
        for chunk in self.chunks:
            if chunk.sequence is sequence:
                chunk.discarded = True
