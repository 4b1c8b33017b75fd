"""A tenant: all requests under one API key, counted together."""

import math
from dataclasses import dataclass, field

PROMPT_TOKEN_COST, OUTPUT_TOKEN_COST = 1.0, 2.0  # of service; the weights of the paper that fair_share.py names
RATE_OVER_S = 10.0  # time constant of the decay


@dataclass(slots=True)
class Rate:
    """An exponentially decaying average rate, per second or per unit of another clock."""

    over: float = RATE_OVER_S
    _sum: float = 0.0
    _at: float = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._sum * self._faded(now) + amount
        self._at = now

    def value(self, now: float) -> float:
        """The rate per second, or per unit of the clock."""
        return self._sum * self._faded(now) / self.over

    def _faded(self, now: float) -> float:
        return math.exp(min(0.0, self._at - now) / self.over)


@dataclass(slots=True, eq=False)
class Tenant:
    """The requests under one API key; within a tenant they are served in the policy's order."""

    name: str
    weight: float = 1.0
    service: float = 0.0  # virtual time: cost of its tokens / weight
    num_live: int = 0  # sequences
    num_queued: int = 0  # of them, never ran
    num_decoding: int = 0  # of them, in the decode set
    queued_prompt_tokens: int = 0
    queued_output_tokens: int = 0  # at most
    arrivals: Rate = field(default_factory=Rate)  # cost of what was accepted
    sequence_arrivals: Rate = field(default_factory=Rate)  # sequences for each row that was returned

    def queue(self, num_tokens: int, token_limit: int, sign: int) -> None:
        """Count a sequence that never ran in (+1) or out (-1)."""
        self.num_queued += sign
        self.queued_prompt_tokens += sign * num_tokens
        self.queued_output_tokens += sign * (token_limit - num_tokens)
