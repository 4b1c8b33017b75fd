"""How many requests may come as accepted before, by a former core or by this one, and pass the queue's limits."""

from dataclasses import dataclass


@dataclass(slots=True)
class Resumptions:
    """A client marks a request as accepted before; no more are trusted than can have been lost.

    `most`: as many as a core can have had. A core that follows another begins with so many; later as many are granted
    as were lost with clients. What comes beyond is treated as new.
    """

    most: int
    left: int = 0

    def follow_a_core(self) -> None:
        self.left = self.most

    def lost(self, count: int) -> None:
        """Count the requests of a removed client, which it may send again."""
        self.left = min(self.most, self.left + count)

    def take(self) -> bool:
        """Whether one more is believed."""
        if not self.left:
            return False
        self.left -= 1
        return True
