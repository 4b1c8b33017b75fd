"""A row of the fake worker, and the drafts that it is given: some right, some wrong."""

import random
from dataclasses import dataclass

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.worker import NewRow, RowPromptLogprobs

from ..correct_results import extend_hash, masked_ids, pooling_mark, sample

POISONED_AFTER = 3  # output tokens


@dataclass(slots=True)
class FakeRow:
    """Its tokens, those that are computed, and its block tables."""

    tokens: list[int]
    prefixes: list[int]  # hash of tokens[: i + 1]
    num_computed: int
    block_tables: list[list[int]]  # one for each KV group
    new_row: NewRow
    salt: str
    digest: str  # of its adapter
    num_stored: int = 0  # positions of which a state group has the states: all computed but the step's drafts

    def append(self, token: int) -> None:
        self.prefixes.append(extend_hash(self.prefixes[-1], token))
        self.tokens.append(token)

    def next_token(self, num_tokens: int, vocab_size: int) -> int:
        """The only correct token after the first `num_tokens` tokens."""
        position = num_tokens - self.new_row.prompt_len
        masked = masked_ids(self.new_row.sampling_params, frozenset(self.new_row.eos_token_ids), position)
        return sample(self.prefixes[num_tokens - 1], self.new_row.seed, position, vocab_size, masked)

    def end_with(self, num_tokens: int, token: int) -> None:
        """Keep the first `num_tokens` tokens, all of them computed, and append `token`."""
        del self.tokens[num_tokens:], self.prefixes[num_tokens:]
        self.append(token)
        self.num_computed = num_tokens

    def is_deadly(self, num_tokens: int, poison: int | None) -> bool:
        """Whether a worker dies when it computes the next `num_tokens` tokens."""
        end, prompt_len = self.num_computed + num_tokens, self.new_row.prompt_len
        if self.new_row.pooling_params is not None:
            return end == prompt_len and pooling_mark(self.prefixes[-1]) == poison
        return self.new_row.seed == poison and end >= prompt_len + POISONED_AFTER

    def prompt_logprobs(self, num_tokens: int) -> RowPromptLogprobs | None:
        """Those of the `num_tokens` tokens computed last."""
        wanted = self.new_row.sampling_params.prompt_logprobs
        start = max(1, self.num_computed - num_tokens)
        end = min(self.num_computed, self.new_row.prompt_len)
        if wanted is None or start >= end:
            return None
        ids = pack_ids(token for token in self.tokens[start:end] for _ in range(wanted + 1))
        return RowPromptLogprobs(self.new_row.row, start, ids, ids, pack_ids(range(start, end)))


class FakeDrafter:
    """Appends drafts to rows; each is right with probability `accuracy`, else any token."""

    def __init__(self, rng: random.Random, accuracy: float, vocab_size: int):
        self._rng = rng
        self._accuracy = accuracy
        self._vocab_size = vocab_size

    def draft(self, row: FakeRow, most: int) -> int:
        """Append at most `most` drafts; returns how many."""
        assert row.num_computed == len(row.tokens) - 1, "a verification does not start from the row's last token"
        count = self._rng.choice((0, most, self._rng.randint(0, most)))
        for _ in range(count):
            is_right = self._rng.random() < self._accuracy
            right = row.next_token(len(row.tokens), self._vocab_size)
            row.append(right if is_right else self._rng.randrange(self._vocab_size))
        return count
