"""A bound on the bytes that the core holds for clients that do not acknowledge what they were sent.

Counted are the messages on their way and the outputs that wait for credit. Beyond the bound the sequences of the
clients that hold most of it are not scheduled until those acknowledge: nothing accepted is lost, and the others go on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class Holder(Protocol):
    """A client, as it is seen here."""

    @property
    def unacknowledged_bytes(self) -> int: ...


@dataclass(slots=True)
class UnacknowledgedBudget:
    """With n clients one is paused when all together hold more than `threshold(n)` and it an n-th of that itself.

    That is max_bytes for one client and half of it for many, as one may hold a threshold before the others fill theirs:
    threshold + (n - 1) / n * threshold = max_bytes.
    """

    max_bytes: int
    num_bytes: int = 0  # of all clients
    paused: set[bytes] = field(default_factory=set)

    def threshold(self, num_clients: int) -> int:
        return self.max_bytes * num_clients // (2 * num_clients - 1)

    def is_exceeded(self, num_clients: int) -> bool:
        return self.num_bytes > self.threshold(num_clients)

    def to_pause(self, clients: Iterable[tuple[bytes, Holder]], num_clients: int) -> list[bytes]:
        """To be asked when the threshold is exceeded."""
        share = self.threshold(num_clients) // num_clients
        return [name for name, client in clients if client.unacknowledged_bytes > share and name not in self.paused]

    def may_resume(self, client: Holder, num_clients: int) -> bool:
        """A paused client holds half of what it may, or all together do."""
        threshold = self.threshold(num_clients)
        return 2 * self.num_bytes <= threshold or 2 * num_clients * client.unacknowledged_bytes <= threshold
