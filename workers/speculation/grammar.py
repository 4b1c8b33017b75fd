"""Drafts from a row's grammar: tokens without an alternative, such as the keys of a JSON object."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..batch.grammars import Grammars
from ..batch.sampling_columns import SamplingColumns
from .drafter import NO_DRAFTS, DraftRequest


class GrammarDrafter:
    """Comes before all other drafters, since its drafts are wrong only where text can be divided otherwise."""

    def __init__(self, grammars: Grammars, columns: SamplingColumns):
        self._grammars = grammars
        self._columns = columns

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        return [self._forced(request) for request in requests]

    def _forced(self, request: DraftRequest) -> NDArray[np.int32]:
        grammar = self._columns.grammars[request.row]
        if grammar is None:
            return NO_DRAFTS
        return np.array(self._grammars.forced(grammar)[: request.most], np.int32)
