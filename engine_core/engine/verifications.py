"""Matches the answer of a step with its verifications, and appends their tokens."""

from array import array
from dataclasses import dataclass

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import ModelRunnerOutput

from ..requests.request import Sequence
from ..requests.stopping import finish_reason
from ..scheduling.scheduled_step import ScheduledStep, ScheduledVerification


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens of one verification: [start, end) of the answer's."""

    verification: ScheduledVerification
    num_drafted: int
    start: int
    end: int


def match_runs(plan: ScheduledStep, output: ModelRunnerOutput, first: int) -> tuple[list[Run], int]:
    """The run of each verification, from token number `first` on, and the end of the last one.

    Raises ProtocolError if the counts do not fit the plan.
    """
    with_drafts = [each for each in plan.verifications if each.num_drafts]
    drafted, sampled = unpack_ids(output.num_drafted), unpack_ids(output.num_sampled)
    if len(drafted) != len(with_drafts):
        raise ProtocolError(f"step {plan.step} counts {len(drafted)} verifications instead of {len(with_drafts)}")
    counts = iter(zip(drafted, sampled, strict=True))
    runs: list[Run] = []
    for verification in plan.verifications:
        num_drafted, num_sampled = next(counts) if verification.num_drafts else (0, 1)
        if not (0 <= num_drafted <= verification.num_drafts and 1 <= num_sampled <= num_drafted + 1):
            raise ProtocolError(
                f"step {plan.step} made {num_drafted} drafts for row {verification.row} and sampled {num_sampled} "
                f"tokens; the plan allows {verification.num_drafts} drafts"
            )
        runs.append(Run(verification, num_drafted, first, first + num_sampled))
        first += num_sampled
    return runs, first


def check_ends(plan: ScheduledStep, runs: list[Run], missing: set[int]) -> None:
    """Raises ProtocolError if a token that is `missing`, not finite or not sampled, is not the last of its run."""
    for run in runs:
        if not missing.isdisjoint(range(run.start, run.end - 1)):
            raise ProtocolError(f"step {plan.step} continued row {run.verification.row} after a token that is missing")


def append_run(run: Run, tokens: "array[int]", *, is_whole: bool) -> FinishReason | None:
    """Append the tokens of a run until its sequence ends; returns why it ends, or None.

    `tokens` are the answer's; `is_whole`: the last one of the run exists, too.
    """
    output = run.verification.sequence.output
    num_before, reason = len(output), None
    for token in tokens[run.start : run.end if is_whole else run.end - 1]:
        output.append(token)
        if (reason := finish_reason(run.verification.sequence)) is not None:
            break
    run.verification.num_applied = len(output) - num_before
    return reason


def token_owners(runs: list[Run]) -> list[Sequence | None]:
    """The sequence of each token of the runs; None for those after a sequence's end."""
    owners: list[Sequence | None] = []
    for run in runs:
        num_applied = run.verification.num_applied
        owners += [run.verification.sequence] * num_applied
        owners += [None] * (run.end - run.start - num_applied)
    return owners
