"""One planned step: what it computes, and which of its results are discarded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat

from ..requests.request import Sequence
from ..requests.speculating import Speculating
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
class ScheduledVerification:
    """The last token of a speculating sequence, and at most `num_drafts` drafts after it."""

    sequence: Sequence
    row: int
    num_drafts: int
    bounds: Speculating  # the sequence's when this was planned; it may have stopped speculating since
    discarded: bool = False
    num_drafted: int = 0  # drafts that the worker made; from its answer, like those below
    num_sampled: int = 0
    num_applied: int = 0  # tokens of them that became output

    @property
    def num_tokens(self) -> int:
        return 1 + self.num_drafts


@dataclass(slots=True)
class ScheduledStep:
    """A step in flight, from plan to apply. Refers to sequences, because a row index may be reused meanwhile."""

    step: int
    decode: DecodeSet = field(default_factory=DecodeSet)
    admitted: list[Sequence] = field(default_factory=list)
    extended: list[Sequence] = field(default_factory=list)  # received new_blocks[i] in extended_tables[i]
    extended_tables: list[int] = field(default_factory=list)  # row * groups + group
    new_blocks: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)  # blocks: source, destination, source, and so on
    leaves: list[int] = field(default_factory=list)  # rows
    joins: list[int] = field(default_factory=list)  # rows
    chunks: list[ScheduledChunk] = field(default_factory=list)
    verifications: list[ScheduledVerification] = field(default_factory=list)
    last: list[Sequence] = field(default_factory=list)  # decode rows that reach their length limit in this step
    discarded: set[int] = field(default_factory=set)  # indices into decode

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the chunks; they may include output of before a preemption."""
        return sum([chunk.end - chunk.start for chunk in self.chunks])

    @property
    def num_verified(self) -> int:
        """The most tokens of all verifications."""
        return sum([verification.num_tokens for verification in self.verifications])

    @property
    def num_tokens(self) -> int:
        return len(self.decode.rows) + self.num_prompt_tokens + self.num_verified

    @property
    def num_generating(self) -> int:
        """Rows that decode or verify."""
        return len(self.decode.rows) + len(self.verifications)

    @property
    def num_generated(self) -> int:
        """Tokens that these rows were given, once the step is answered."""
        return len(self.decode.rows) + sum([verification.num_sampled for verification in self.verifications])

    def sequences(self) -> Iterator[Sequence]:
        """The sequences whose results are still wanted."""
        for index, sequence in enumerate(self.decode.sequences):
            if index not in self.discarded:
                yield sequence
        yield from (each.sequence for each in self._outside_decode() if not each.discarded)

    def computed(self) -> Iterator[Sequence]:
        """All sequences that a worker computes, discarded ones included, once for each token they may be given."""
        yield from self.decode.sequences
        yield from (chunk.sequence for chunk in self.chunks)
        for verification in self.verifications:
            yield from repeat(verification.sequence, verification.num_tokens)

    def withdraw(self, sequence: Sequence) -> int:
        """Remove `sequence`, which loses its row before this step is sent; returns the tokens that become free."""
        before = self.num_tokens
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence is not sequence]
        self.verifications = [each for each in self.verifications if each.sequence is not sequence]
        while sequence in self.extended:
            index = self.extended.index(sequence)
            del self.extended[index], self.extended_tables[index], self.new_blocks[index]
        return before - self.num_tokens + bool(sequence.joined_step)

    def discard(self, sequence: Sequence) -> None:
        """Discard the results of `sequence`, which finished or lost its row after this step was planned."""
        index = self.decode.index(sequence)
        if index is not None:
            self.discarded.add(index)
        for each in self._outside_decode():
            if each.sequence is sequence:
                each.discarded = True

    def _outside_decode(self) -> Iterator[ScheduledChunk | ScheduledVerification]:
        yield from self.chunks
        yield from self.verifications
