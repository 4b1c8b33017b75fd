"""When the siblings of a leader may start: once their common prompt is planned.

The leader's blocks then hold all that they share. Keys and values stay there. A state lasts until the leader's next
chunk overwrites it, so with states the leader's chunk ends with the shareable tokens, and the siblings that start in
the step of its next chunk copy the state before it is overwritten.
"""

from collections.abc import Iterable

from .request import Request, Sequence


class Forks:
    """The requests whose sequences may copy a leader's states in the step that is being planned."""

    def __init__(self, block_size: int, *, has_states: bool) -> None:
        """`block_size`: tokens; `has_states`: a KV group of the model keeps states."""
        self._block_size = block_size
        self._has_states = has_states
        self._open: list[Request] = []

    def begin_step(self, prefilling: Iterable[Sequence]) -> list[Sequence]:
        """The sequences of `prefilling` whose shareable tokens are planned: those that wait for them may start."""
        for request in self._open:
            request.fork = None
        self._open = []
        ready = [each for each in prefilling if each.num_scheduled >= each.request.num_shareable_tokens]
        for sequence in ready:
            if self._has_states and sequence.num_scheduled == sequence.request.num_shareable_tokens:
                sequence.request.fork = sequence
                self._open.append(sequence.request)
        return ready

    def chunk_limit(self, sequence: Sequence) -> int:
        """Where the next chunk of `sequence` ends at the latest."""
        end = sequence.request.num_shareable_tokens
        if self._has_states and sequence.request.leader is sequence and end % self._block_size:
            return end if sequence.num_scheduled < end else sequence.prefill_len
        return sequence.prefill_len
