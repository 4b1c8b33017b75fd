"""Finds the request that kills workers, so that it takes nobody along.

Results do not depend on who shares a step, so a request that kills workers does so at the same token every time: it
never gets beyond it. Whoever was in flight at two deaths without one new token in between runs alone until it has
one, which clears it; whoever is still there at the fourth death ends with an error. A worker that dies for reasons of
its own lets everybody advance between its deaths, and nobody is suspected.
"""

from collections.abc import Iterable

from .request import Sequence
from .scheduled_step import ScheduledStep

DEATHS_UNTIL_ALONE = 2
DEATHS_UNTIL_ERROR = 4


def count_death(in_flight: Iterable[ScheduledStep]) -> list[Sequence]:
    """The workers died with these steps unanswered; returns the sequences that must end for it."""
    present = dict.fromkeys(sequence for step in in_flight for sequence in step.sequences())
    for sequence in present:
        if len(sequence.output) != sequence.output_len_at_death:
            sequence.num_deaths, sequence.output_len_at_death = 0, len(sequence.output)
        sequence.num_deaths += 1
    return [sequence for sequence in present if sequence.num_deaths >= DEATHS_UNTIL_ERROR]


def must_be_alone(sequence: Sequence) -> bool:
    """True until it has a token more than at the last death."""
    return sequence.num_deaths >= DEATHS_UNTIL_ALONE and len(sequence.output) == sequence.output_len_at_death
