"""The interface of drafters, which propose the tokens that follow in rows; a step then verifies them.

Drafts decide only how fast tokens come, never which: a wrong draft costs the computation of a position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.worker import SchedulerOutput

from ..batch.input_batch import StepArrays
from ..batch.request_rows import RequestRows

NO_DRAFTS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class DraftRequest:
    """A row that may get drafts in this step."""

    row: int
    tokens: NDArray[np.int32]  # the row's prompt and output, then the drafts of drafters before this one; read only
    most: int  # drafts, at least 1
    generation: int = 0  # of the row: how often it was reset
    num_drafts: int = 0  # at the end of `tokens`

    def after(self, drafts: NDArray[np.int32]) -> "DraftRequest":
        """The request for drafts that follow these."""
        assert len(drafts) <= self.most, f"{len(drafts)} drafts instead of at most {self.most}"
        tokens = np.concatenate((self.tokens, drafts)) if len(drafts) else self.tokens
        num_drafts = self.num_drafts + len(drafts)
        return DraftRequest(self.row, tokens, self.most - len(drafts), self.generation, num_drafts)


class Drafter(Protocol):
    """Called on rank 0 before the forward pass, with all rows of the step, because a draft model computes all at once.

    A drafter may keep state of rows, such as hidden states or earlier answers; `row` and `tokens` identify them.
    """

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        """Up to `most` tokens for each request, in order; none where a draft is unlikely to be right."""
        ...


@runtime_checkable
class Learner(Drafter, Protocol):
    """A Drafter that learns from the text of rows."""

    def learn(self, plan: SchedulerOutput, rows: RequestRows, num_late: int) -> None:
        """Called on rank 0 before a plan with new rows replaces rows.

        The values of the last `num_late` tokens of a row may not be known yet.
        """
        ...


@runtime_checkable
class Observer(Drafter, Protocol):
    """A Drafter that reads the target's hidden states."""

    def observe(self, arrays: StepArrays, rows: RequestRows, num_late: int) -> None:
        """Called on rank 0 after each step of `arrays`, whose rows count its tokens as computed, except wrong drafts.

        The values of the last `num_late` tokens of a row may not be known yet.
        """
        ...
