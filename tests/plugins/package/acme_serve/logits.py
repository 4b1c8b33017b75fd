"""Logits processors: one that follows from its arguments and the tokens, and one that fails."""

import numpy as np
from numpy.typing import NDArray


class Every:
    """Tokens whose ids leave the remainder `of` when divided by `step`, and never the last token again."""

    def __init__(self, vocab_size: int, step: int = 2, of: int = 0):
        if not 0 <= of < step:
            raise ValueError(f"of={of} must be at least 0 and less than step={step}")
        self._excluded = np.arange(vocab_size) % step != of

    def apply(self, logits: NDArray[np.float32], token_ids: NDArray[np.int32], prompt_len: int) -> None:
        logits[self._excluded] = -np.inf
        logits[token_ids[-1]] = -np.inf


class Faulty:
    """At its third token, raises or leaves a NaN."""

    def __init__(self, vocab_size: int, raises: bool = True):
        self._raises = raises

    def apply(self, logits: NDArray[np.float32], token_ids: NDArray[np.int32], prompt_len: int) -> None:
        if len(token_ids) - prompt_len == 2:
            if self._raises:
                raise RuntimeError("the third token is too much")
            logits[7] = np.nan
