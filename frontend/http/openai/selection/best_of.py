"""The best of several outputs: more sequences are generated than the answer has choices."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from paged_serve.protocol.messages.sampling_params import SamplingParams

from ...service import Service
from ..generation import Generation, Prompt
from ..pieces import Piece


def with_best_of(prompts: Sequence[Prompt], best_of: int) -> list[Prompt]:
    """The prompts as the engine gets them: with `best_of` sequences, and the log-probability of each token."""
    return [
        replace(each, params=msgspec.structs.replace(each.params, n=best_of, logprobs=each.params.logprobs or 0))
        for each in prompts
    ]


class BestOfGeneration(Generation):
    """Delivers the sequences with the highest sums of log-probabilities, the best first; of equal ones the earlier.

    Its usage counts the tokens of all sequences.
    """

    def __init__(self, service: Service, prompts: list[Prompt], asked: SamplingParams, *args: Any):
        """`prompts`: those of `with_best_of`; `asked`: the parameters before it; further arguments as Generation's."""
        super().__init__(service, prompts, *args)
        self._num_kept, self._shows_logprobs = asked.n, asked.logprobs is not None

    async def batches(self) -> AsyncGenerator[list[Piece], None]:
        """All pieces of the sequences kept, in one batch."""
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        async for batch in super().batches():
            for piece in batch:
                pieces[piece.choice].append(piece)
        yield [piece for first in range(0, len(pieces), self._n) for piece in self._kept(pieces, first)]

    def _kept(self, pieces: list[list[Piece]], first: int) -> list[Piece]:
        """Those of the prompt whose sequences begin with number `first`."""
        numbers = range(first, first + self._n)
        ranked = sorted(numbers, key=lambda number: -_cumulative_logprob(pieces[number]))
        start = first // self._n * self._num_kept
        return [
            replace(piece, choice=start + place, logprobs=piece.logprobs if self._shows_logprobs else None)
            for place, number in enumerate(ranked[: self._num_kept])
            for piece in pieces[number]
        ]


def _cumulative_logprob(pieces: Sequence[Piece]) -> float:
    total = 0.0
    for piece in pieces:
        for entry in piece.logprobs or ():  # one by one, as LLM does: sum() adds otherwise from Python 3.12 on
            total += entry.logprobs[0]
    return total
