"""The interface of a plugin's logits processor, and the processors of each row."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams

from ..batch.request_rows import RequestRows


class LogitsProcessor(Protocol):
    """Changes the logits of one row; constructed with the vocabulary size and the request's `args` as keywords.

    The constructor raises ValueError for wrong arguments; its message goes to the client. The effect must depend on
    the arguments and the tokens only: a row that returns after preemption or a worker's death gets a new instance.
    """

    def apply(self, logits: NDArray[np.float32], token_ids: NDArray[np.int32], prompt_len: int) -> None:
        """Change `logits` [vocab] in place. `token_ids` (read-only): the prompt, then the output so far."""
        ...


class WrongArguments(Exception):
    """The constructor of a logits processor refused the request's arguments; the message is for the client."""


Classes = Mapping[str, type[LogitsProcessor]]


class RowProcessors:
    """The processors of all rows, each made when its row is first sampled."""

    def __init__(self, classes: Classes, vocab_size: int, num_rows: int):
        self._classes = classes
        self._vocab_size = vocab_size
        self._made: list[tuple[int, list[LogitsProcessor]]] = [(-1, [])] * num_rows  # (row generation, processors)

    def of(self, row: int, state: RequestRows, asked: tuple[LogitsProcessorParams, ...]) -> list[LogitsProcessor]:
        """The processors of `row`. Raises WrongArguments, a constructor's other errors, and LookupError for a plugin
        that is not loaded."""
        generation = int(state.generation[row])
        if self._made[row][0] != generation:
            self._made[row] = generation, [self._make(each) for each in asked]
        return self._made[row][1]

    def _make(self, asked: LogitsProcessorParams) -> LogitsProcessor:
        made: Any = self._classes[asked.name]
        try:
            found: LogitsProcessor = made(self._vocab_size, **asked.args)
        except (ValueError, TypeError) as error:  # TypeError: an argument is unknown, is missing, or has another type
            raise WrongArguments(f"the args of {asked.name} are wrong: {error}") from error
        return found
