"""Logits processors of plugins: what one is, and the rows' own."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams

from ..batch.request_rows import RequestRows


class LogitsProcessor(Protocol):
    """One request's; made with the model's vocabulary size and the request's `args` as keywords.

    Raises ValueError for arguments that are wrong. What it does must follow from its arguments and the tokens alone:
    a row that returns after preemption or a worker's death gets a new one.
    """

    def apply(self, logits: NDArray[np.float32], token_ids: NDArray[np.int32], prompt_len: int) -> None:
        """Change `logits` [vocab] in place. `token_ids`: the prompt's, then the output's so far; not to be changed."""
        ...


Classes = Mapping[str, type[LogitsProcessor]]


class RowProcessors:
    """The processors of all rows, each made when its row is first sampled."""

    def __init__(self, classes: Classes, vocab_size: int, num_rows: int):
        self._classes = classes
        self._vocab_size = vocab_size
        self._made: list[tuple[int, list[LogitsProcessor]]] = [(-1, [])] * num_rows  # with their row's generation

    def of(self, row: int, state: RequestRows, asked: tuple[LogitsProcessorParams, ...]) -> list[LogitsProcessor]:
        """Raises what a processor's class raises, and LookupError for one that was not loaded."""
        generation = int(state.generation[row])
        if self._made[row][0] != generation:
            self._made[row] = generation, [self._make(each) for each in asked]
        return self._made[row][1]

    def _make(self, asked: LogitsProcessorParams) -> LogitsProcessor:
        made: Any = self._classes[asked.name]
        found: LogitsProcessor = made(self._vocab_size, **asked.args)
        return found
