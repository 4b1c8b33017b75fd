"""A step that verifies drafts: how its inputs are made before the forward pass, and its tokens sampled after it.

Such a step waits for the tokens of earlier steps, from which drafts are made, and for its own, because they decide how
many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk, SchedulerOutput

from ..batch.grammars import Grammars
from ..batch.input_batch import StepArrays
from ..batch.request_rows import RequestRows
from ..distributed.tensor_parallel import TensorParallelGroup
from ..sampling.device_sampler import DeviceSampling
from ..sampling.sampler import SampledTokens
from .drafter import Drafter, Learner, Observer
from .drafts import Drafts, num_drafts
from .grammar import GrammarDrafter
from .rounds import Rounds
from .verified_step import VerifiedStep, verified_step


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The tokens of a step."""

    sampled: SampledTokens  # of all rows that sample, in their order; a row that verifies may have several
    last_tokens: NDArray[np.int64]  # [sampled] the last token of each row
    num_drafted: NDArray[np.int64]  # for each chunk with `num_drafts`, in order
    num_sampled: NDArray[np.int64]  # likewise


def verifies(chunks: Sequence[Chunk]) -> bool:
    """Whether any of a plan's chunks has drafts."""
    return any(chunk.num_drafts for chunk in chunks)


def may_start_from_a_late_token(chunks: Sequence[Chunk]) -> bool:
    """Whether the token of a chunk may have been sampled in a step in flight: a row may have no drafts this time."""
    return any(chunk.num_tokens == 1 for chunk in chunks)


class Verification:
    """Drafts and rounds over one set of rows."""

    def __init__(
        self,
        rows: RequestRows,
        group: TensorParallelGroup,
        sampling: DeviceSampling,
        drafter: Drafter | None,
        grammars: Grammars | None,
        device: str,
        max_len: int,
    ):
        self._rows = rows
        forced = [] if grammars is None else [GrammarDrafter(grammars, rows.sampling)]
        self._drafts = Drafts(rows, group, [*forced, *([drafter] if drafter else [])], device, max_len)
        self._rounds = Rounds(rows, group, sampling)
        self._learner = drafter if isinstance(drafter, Learner) and group.rank == 0 else None
        self._observer = drafter if isinstance(drafter, Observer) and group.rank == 0 else None

    def learn(self, plan: SchedulerOutput, num_late: int) -> None:
        """Let the drafter learn the text of rows that `plan` replaces; it is called before that."""
        if plan.new_rows and self._learner is not None:
            self._learner.learn(plan, self._rows, num_late)

    def observe(self, arrays: StepArrays, num_late: int) -> None:
        """Let the drafter read the hidden states of the step of `arrays`; it is called once the rows count it."""
        if self._observer is not None:
            self._observer.observe(arrays, self._rows, num_late)

    def start(self, decode_rows: NDArray[np.int64], chunks: Sequence[Chunk]) -> VerifiedStep:
        """Make drafts, and the step's inputs with them. All tokens of earlier steps must be known."""
        drafts = self._drafts.make([chunk for chunk in chunks if chunk.num_drafts])
        step = verified_step(self._rows, decode_rows, chunks, drafts)
        self._rows.sampling.start_masks(step.arrays.sampled_rows)
        return step

    def sample(self, logits: Tensor, step: VerifiedStep) -> Verified:
        """Sample from the step's logits, and count its tokens as known and all but each row's last as computed."""
        arrays, rows = step.arrays, self._rows
        sampled, counts = self._rounds.sample(logits, step)
        rows.num_computed[arrays.rows] = arrays.kv_lens
        rows.num_computed[arrays.sampled_rows] = rows.length[arrays.sampled_rows] - 1
        last_tokens = sampled.token_ids[np.cumsum(counts) - 1]
        return Verified(sampled, last_tokens, num_drafts(step.drafts[step.verified]), counts[step.verified])
