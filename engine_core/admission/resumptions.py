"""Limits how many resumed requests, which clients mark as accepted before, may bypass the queue's limits."""

from dataclasses import dataclass


@dataclass(slots=True)
class Resumptions:
    """Counts how many requests marked as accepted before are trusted: no more than can have been lost.

    `most`: the most requests that a core can have held. A core that replaces another starts with that many; each
    request lost with a client adds one. Requests beyond the count are treated as new.
    """

    most: int
    left: int = 0

    def start_after_core(self) -> None:
        self.left = self.most

    def lost(self, count: int) -> None:
        """Count the requests of a removed client, which it may send again."""
        self.left = min(self.most, self.left + count)

    def take(self) -> bool:
        """Use up one; False if none is left."""
        if not self.left:
            return False
        self.left -= 1
        return True
