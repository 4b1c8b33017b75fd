"""Tracks the reasoning of a row that has a thinking budget.

The state depends only on the row's tokens, so a row restored with its output ends its reasoning at the same token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.samplers import ThinkingBudget

_NOT_REASONING = -1  # less than any budget


@dataclass(slots=True)
class Reasoning:
    """The reasoning of one row."""

    budget: ThinkingBudget
    vocab_size: int
    num_known: int = 0  # output tokens seen
    num_used: int = _NOT_REASONING  # tokens of the budget that are used
    num_matched: int = 0  # tokens of the next tag at the end of the output
    _bits: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    @classmethod
    def prepare(cls, budget: ThinkingBudget | None, vocab_size: int, output: Sequence[int]) -> "Reasoning | None":
        """The state of a row whose output so far is `output`; None without a budget."""
        if budget is None:
            return None
        used = _NOT_REASONING if budget.num_prompt_tokens is None else budget.num_prompt_tokens
        row = cls(budget, vocab_size, num_used=used)
        for token in output:
            row.append(token)
        return row

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any token may."""
        return self.budget.end[self.num_matched] if self.num_used >= self.budget.max_tokens else None

    def may_force(self, output_len: int) -> bool:
        """Whether a token may be forced after `output_len` tokens, the last of which may not be known yet."""
        # Outside of reasoning, at least one of the unknown tokens would belong to the tag; -1 accounts for it.
        return self.num_used + output_len - self.num_known >= self.budget.max_tokens

    def forced_bits(self) -> NDArray[np.int32]:
        """The forced token as a mask, [words]."""
        token = self.forced
        assert token is not None
        if token not in self._bits:
            bits = np.zeros(-(-self.vocab_size // 32), np.uint32)
            bits[token // 32] = np.uint32(1 << token % 32)
            self._bits[token] = bits.view(np.int32)
        return self._bits[token]

    def append(self, token: int) -> None:
        """Record the row's next output token."""
        self.num_known += 1
        reasons = self.num_used != _NOT_REASONING
        tag = self.budget.end if reasons else self.budget.begin
        self.num_used += reasons
        self.num_matched = _matched(tag, self.num_matched, token)
        if self.num_matched == len(tag) or (reasons and token in self.budget.calls):
            self.num_used, self.num_matched = _NOT_REASONING if reasons else 0, 0


def _matched(tag: tuple[int, ...], before: int, token: int) -> int:
    """The number of tokens of `tag` that end a text after `token`, if the text before it ended with `before`."""
    end = (*tag[:before], token)
    return next(length for length in range(len(end), -1, -1) if end[len(end) - length :] == tag[:length])
