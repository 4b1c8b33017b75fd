"""Finds the request that kills workers, so that only it ends with an error.

After a death that a request may have caused, all sequences with steps in flight are candidates, including preempted
ones. Each runs alone, one step at a time, until it has the tokens that those steps would have sampled, which clears it;
if a worker dies meanwhile, it is isolated once more, at once; if one dies again, that sequence is the poison request. A
poison request therefore costs three worker groups, and all other requests continue. Results do not depend on the batch,
so a poison request kills workers at the same token every time, and a sequence that has passed that token is harmless.

Deaths with an outside cause (SIGKILL without a shortage of memory, SIGTERM, SIGSTOP) make no request a candidate. A
harmless request ends with an error only if workers crash three times for other reasons, the second and the third time
while it is isolated. That takes a few steps, a fiftieth of the 1.5 s in which 64 candidates are cleared.

Candidates of a core's death arrive one request at a time (core_poison.py), and are isolated here, too.
"""

from collections import Counter
from collections.abc import Iterable

from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS

from ..requests.request import Sequence, SequenceState
from .scheduled_step import ScheduledStep


class WorkerPoison:
    """The sequences that may be poison."""

    def __init__(self) -> None:
        self._candidates: dict[Sequence, int] = {}  # length of the output that clears it
        self._isolated: dict[Sequence, int] = {}  # the same for a core's death
        self._last_isolated: Sequence | None = None  # the candidate during whose isolation workers died last
        self._num_isolations = 0  # of that candidate, in which workers died
        self.is_closed = False  # candidates of a core's death take turns: nothing else runs, even between two turns

    def first(self) -> Sequence | None:
        """The sequence that runs alone now: the earliest candidate that is not cleared."""
        goals = self._isolated if self.is_closed else self._candidates
        if not goals:
            return None
        for sequence in [s for s, goal in goals.items() if len(s.output) >= goal]:
            del goals[sequence]
        return min(goals, key=lambda sequence: sequence.order, default=None)

    def isolate(self, goals: dict[Sequence, int]) -> None:
        """Run the candidates of a core's death one after another, each until its output has the given length."""
        self._isolated |= goals

    def end_isolation(self) -> None:
        """All isolated sequences are cleared, or have ended."""
        self._isolated.clear()

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        self._candidates.pop(sequence, None)
        self._isolated.pop(sequence, None)
        if sequence is self._last_isolated:
            self._last_isolated = None

    def count_death(self, in_flight: Iterable[ScheduledStep]) -> Sequence | None:
        """Record that the workers died with these steps unanswered; returns the poison request if it is now known."""
        computed = (sequence for step in in_flight for sequence in step.computed())
        steps = Counter(sequence for sequence in computed if sequence.state is not SequenceState.FINISHED)
        if not steps:
            return None
        alone = next(iter(steps)) if len(steps) == 1 else None
        if alone is None or len(alone.output) >= self._candidates.get(alone, 0):
            self._last_isolated = None
            self._candidates |= {sequence: len(sequence.output) + count for sequence, count in steps.items()}
            return None
        self._num_isolations = 1 + (self._num_isolations if alone is self._last_isolated else 0)
        self._last_isolated = alone
        if self._num_isolations < DEADLY_ISOLATIONS:  # isolated again: it comes before the other candidates
            return None
        self._candidates.clear()
        self._last_isolated = None
        return alone

    def sequences(self) -> set[Sequence]:
        """For audits."""
        return self._candidates.keys() | self._isolated.keys()
