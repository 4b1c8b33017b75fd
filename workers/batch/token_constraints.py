"""Constraints by token id: bad words, minimum length, biases; and the mask of allowed tokens."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.sampling_params import SamplingParams

MAX_BIAS = 100.0
MAX_REASON_CHARS = 256


class Failure(NamedTuple):
    """Why a row has no token, although its logits are finite; it ends the row's request."""

    reason: str
    param: str = ""  # the parameter of the request that is the cause; "": none is


@dataclass(frozen=True, slots=True)
class Constraints:
    """One row's rules, prepared once at admission."""

    bad_words: tuple[tuple[NDArray[np.int32], int], ...]  # (all but the last token, the last token)
    min_tokens: int
    ends: NDArray[np.int64]  # EOS and stop tokens, masked while output is shorter than min_tokens
    biased: NDArray[np.int64]
    bias: NDArray[np.float32]  # the biases of the tokens in `biased`

    @classmethod
    def prepare(cls, params: SamplingParams, eos_token_ids: tuple[int, ...]) -> "Constraints | None":
        """The constraints of a request; None if it has none."""
        biases = params.logit_bias or {}
        if not params.bad_words_token_ids and not params.min_tokens and not biases:
            return None
        return cls(
            bad_words=tuple((np.array(word[:-1], np.int32), word[-1]) for word in params.bad_words_token_ids if word),
            min_tokens=params.min_tokens,
            ends=np.array(sorted({*eos_token_ids, *params.stop_token_ids}), np.int64),
            biased=np.array(list(biases), np.int64),
            bias=np.clip(np.array(list(biases.values()), np.float32), -MAX_BIAS, MAX_BIAS),
        )

    def apply(self, logits: NDArray[np.float32], output: NDArray[np.int32]) -> None:
        """Apply them in place to one row [vocab] whose output so far is `output`."""
        if forbidden := self.forbidden_after(output):
            logits[forbidden] = -np.inf
        if len(self.biased):
            logits[self.biased] += self.bias

    @property
    def failure(self) -> Failure:
        """The failure of a row of which these constraints leave no token."""
        param = "bad_words" if self.bad_words else "min_tokens"
        return Failure(f"{param} forbids every token that the request's other rules allow", param)

    def forbidden_after(self, output: NDArray[np.int32]) -> list[int]:
        """Tokens that would complete a bad word, or end the output before min_tokens."""
        last_tokens = [
            last
            for prefix, last in self.bad_words
            if len(prefix) <= len(output) and np.array_equal(output[len(output) - len(prefix) :], prefix)
        ]
        return last_tokens + (self.ends.tolist() if len(output) < self.min_tokens else [])


def mask_of_allowed(params: SamplingParams, vocab_size: int) -> NDArray[np.int32] | None:
    """The mask [words] of allowed_token_ids; None: all tokens are allowed."""
    if params.allowed_token_ids is None:
        return None
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(params.allowed_token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
