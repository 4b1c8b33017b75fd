"""Collects a prompt's logprobs while its chunks are computed, possibly twice and cut differently."""

from dataclasses import dataclass, field

from paged_serve.protocol.messages.engine_core import Logprobs
from paged_serve.protocol.messages.worker import RowPromptLogprobs


@dataclass(slots=True)
class PromptLogprobs:
    """Rows for prompt tokens 1, 2, …; the first token has none."""

    num_rows: int = 0
    _token_ids: bytearray = field(default_factory=bytearray)
    _logprobs: bytearray = field(default_factory=bytearray)
    _ranks: bytearray = field(default_factory=bytearray)

    def complete(self, prompt_len: int) -> bool:
        return self.num_rows >= prompt_len - 1

    def add(self, part: RowPromptLogprobs, prompt_len: int) -> None:
        """Append the rows of `part` that come next; a recomputation repeats rows that are already present."""
        count = len(part.ranks) // 4
        skip = 1 + self.num_rows - part.start
        if count == 0 or not 0 <= skip < count or self.complete(prompt_len):
            return
        self.num_rows += count - skip
        self._token_ids += part.token_ids[len(part.token_ids) // count * skip :]
        self._logprobs += part.logprobs[len(part.logprobs) // count * skip :]
        self._ranks += part.ranks[4 * skip :]

    def result(self) -> Logprobs:
        return Logprobs(bytes(self._token_ids), bytes(self._logprobs), bytes(self._ranks))
