"""Keeps the lease of one generation at the size of its memory, from submission to the last token."""

from collections.abc import Sequence

from paged_serve.protocol.messages.sampling_params import SamplingParams

from ....buffer_budget import Lease
from ...exchange.memory_costs import (
    JOURNAL_TOKEN_BYTES,
    REQUEST_BYTES,
    least_output_tokens,
    output_token_bytes,
    prompt_bytes,
)


class OutputMemory:
    """`keeps`: the answer is not streamed, so it is held until its end."""

    def __init__(self, lease: Lease, prompts: Sequence[tuple[int, SamplingParams]], *, keeps: bool, shows_prompt: bool):
        """`prompts`: (number of tokens, parameters) of each. Takes over the lease.

        Raises Overloaded, or InvalidRequest for a request that can never fit.
        """
        self._lease = lease
        self._keeps = keeps
        self._base = REQUEST_BYTES + sum(
            prompt_bytes(num_tokens, params, is_shown=shows_prompt) for num_tokens, params in prompts
        )
        self._token_bytes = output_token_bytes(prompts[0][1])
        self._num_held = 0  # tokens
        if keeps:
            least = sum(params.n * least_output_tokens(params) for _, params in prompts)
            lease.check(self._base + least * self._token_bytes, "This answer, which is not streamed,")
        lease.resize(self._base)

    def taken(self, num_tokens: int) -> None:
        """Count tokens taken from the client, to be sent. Raises Overloaded or InvalidRequest when they do not fit."""
        self._num_held += num_tokens
        what = "This answer, which is not streamed," if self._keeps else "This request"
        self._lease.resize(self._base + self._num_held * self._token_bytes, what)

    def delivered(self, num_waiting: int) -> None:
        """Release the tokens sent: all but `num_waiting`."""
        if not self._keeps:
            self._base += (self._num_held - num_waiting) * JOURNAL_TOKEN_BYTES
            self._num_held = num_waiting
            self._lease.resize(self._base + self._num_held * self._token_bytes)
