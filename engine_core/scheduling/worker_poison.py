"""Finds the request that kills workers, so that it takes nobody along.

After a death that may have been somebody's doing, all whose steps were in flight are suspects. Each is run alone, one
step at a time, until it has the tokens that those steps would have given it, which clears it; a worker that dies
meanwhile was killed by it. So one request that kills costs two worker groups, and everybody else goes on. Results do
not depend on who shares a step: who kills workers does so at the same token every time; who is beyond it is innocent.

Deaths that come from outside (SIGKILL without a shortage of memory, SIGTERM, a halt) make nobody a suspect. An innocent
ends with an error only if workers break twice by themselves, without any request's doing, the second time while the
suspects are being cleared. For 64 of them that takes some 1.5 s; at one such break a day it is one death in 58,000.

Suspects of a core's death come one request at a time (trials.py), and are isolated here, too.
"""

from collections import Counter
from collections.abc import Iterable

from ..requests.request import Sequence
from .scheduled_step import ScheduledStep


class Quarantine:
    """The suspects. True while there are any that are not cleared."""

    def __init__(self) -> None:
        self._suspects: dict[Sequence, int] = {}  # length of the output that clears it
        self._on_trial: dict[Sequence, int] = {}  # the same for a core's death
        self.is_closed = False  # trials are under way: nobody else runs, even while nobody is on trial

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Sequence | None:
        """Who runs alone now: the first to have arrived, of those that are not cleared."""
        goals = self._on_trial if self.is_closed else self._suspects
        if not goals:
            return None
        for sequence in [s for s, goal in goals.items() if len(s.output) >= goal]:
            del goals[sequence]
        return min(goals, key=lambda sequence: sequence.order, default=None)

    def try_alone(self, goals: dict[Sequence, int]) -> None:
        """They are suspects of a core's death, and run one after another, each until its output is so long."""
        self._on_trial |= goals

    def end_trial(self) -> None:
        """Whoever was on trial is cleared, or has ended."""
        self._on_trial.clear()

    def discard(self, sequence: Sequence) -> None:
        """It has ended."""
        self._suspects.pop(sequence, None)
        self._on_trial.pop(sequence, None)

    def count_death(self, in_flight: Iterable[ScheduledStep]) -> Sequence | None:
        """The workers died with these steps unanswered; returns who did it, if that is known now."""
        steps = Counter(sequence for step in in_flight for sequence in step.sequences())
        alone = next(iter(steps)) if len(steps) == 1 else None
        if alone is not None and len(alone.output) < self._suspects.get(alone, 0):
            self._suspects.clear()
            return alone
        self._suspects |= {sequence: len(sequence.output) + count for sequence, count in steps.items()}
        return None

    def sequences(self) -> set[Sequence]:
        """For audits."""
        return self._suspects.keys() | self._on_trial.keys()
