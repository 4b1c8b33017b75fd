"""Bounds the bytes that the core holds for clients that do not acknowledge their messages.

Messages in flight count, and so do outputs that wait for credit. Beyond the bound, the sequences of the clients with
the most bytes are not scheduled until these clients acknowledge. Nothing accepted is lost, and other clients continue.
"""

from dataclasses import dataclass
from typing import Protocol


class Holder(Protocol):
    """A client with unacknowledged bytes."""

    @property
    def unacknowledged_bytes(self) -> int: ...


@dataclass(slots=True)
class UnacknowledgedBudget:
    """With n clients, one is paused when all hold more than `threshold(n)` together and it holds an n-th of that.

    The threshold is max_bytes for one client and half of it for many, because one client may hold a whole threshold
    before the others fill their shares: threshold + (n - 1) / n * threshold = max_bytes.
    """

    max_bytes: int
    num_bytes: int = 0  # of all clients

    def threshold(self, num_clients: int) -> int:
        return self.max_bytes * num_clients // (2 * num_clients - 1)

    def is_exceeded(self, num_clients: int) -> bool:
        return self.num_bytes > self.threshold(num_clients)

    def exceeds_share(self, client: Holder, num_clients: int) -> bool:
        """Whether a client is to be paused; called when the threshold is exceeded."""
        return client.unacknowledged_bytes > self.threshold(num_clients) // num_clients

    def may_resume(self, client: Holder, num_clients: int) -> bool:
        """Whether a paused client, or all clients together, are down to half of their limit."""
        threshold = self.threshold(num_clients)
        return 2 * self.num_bytes <= threshold or 2 * num_clients * client.unacknowledged_bytes <= threshold
