"""The memory of one generation, as its lease has it: from submission to the last token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..buffer_budget import Lease
from .memory_costs import (
    JOURNAL_TOKEN_BYTES,
    REQUEST_BYTES,
    least_output_tokens,
    output_token_bytes,
    prompt_bytes,
)

if TYPE_CHECKING:
    from .generation import Prompt


class OutputMemory:
    """`keeps`: the answer is told at its end, so all of it is held until then."""

    def __init__(self, lease: Lease, prompts: "Sequence[Prompt]", *, keeps: bool, shows_prompt: bool):
        """The lease is for the prompts from now on. Raises Overloaded, or InvalidRequest for what never fits."""
        self._lease = lease
        self._keeps = keeps
        self._base = REQUEST_BYTES + sum(
            prompt_bytes(len(prompt.token_ids), prompt.params, is_shown=shows_prompt) for prompt in prompts
        )
        params = prompts[0].params
        self._token_bytes = output_token_bytes(params)
        self._num_held = 0  # tokens
        if keeps:
            least = sum(prompt.params.n * least_output_tokens(prompt.params) for prompt in prompts)
            lease.check(self._base + least * self._token_bytes, "This answer, which is no stream,")
        lease.resize(self._base)

    def taken(self, num_tokens: int) -> None:
        """From the client, to be told. Raises Overloaded or InvalidRequest when there is no room for them."""
        self._num_held += num_tokens
        what = "This answer, which is no stream," if self._keeps else "This request"
        self._lease.resize(self._base + self._num_held * self._token_bytes, what)

    def told(self, num_waiting: int) -> None:
        """All but so many tokens have been sent."""
        if not self._keeps:
            self._base += (self._num_held - num_waiting) * JOURNAL_TOKEN_BYTES
            self._num_held = num_waiting
            self._lease.resize(self._base + self._num_held * self._token_bytes)
