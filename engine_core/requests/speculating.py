"""What the core knows of a speculating sequence: bounds of its length, and how its drafts fared."""

from dataclasses import dataclass

KEEP = 0.9  # of a history per verification: one counts half after 7 more
PRIOR = 2.0  # verifications that a sequence's history weighs as much as that of all sequences


@dataclass(slots=True)
class Speculating:
    """Bounds of the length, in tokens of prompt and output, of a sequence whose verifications are in flight.

    Every verification yields at least one token and at most one more than its drafts:
      [0, base) known or certain | one token for each verification in flight | num_drafts more, perhaps
    """

    base: int  # once all steps before the verifications in flight are applied
    num_verifications: int = 0  # in flight
    num_drafts: int = 0  # in these, at most
    num_granted: int = 0  # drafts of the verification that is being planned

    @property
    def shortest(self) -> int:
        return self.base + self.num_verifications

    @property
    def longest(self) -> int:
        return self.shortest + self.num_drafts

    @property
    def span(self) -> tuple[int, int]:
        """For the next verification: the first position it may compute, and the tokens whose K and V need places."""
        return self.shortest - 1, self.longest + self.num_granted

    def sent(self) -> int:
        """The verification with the granted drafts is planned; returns their number."""
        num_drafts, self.num_granted = self.num_granted, 0
        self.num_verifications += 1
        self.num_drafts += num_drafts
        return num_drafts

    def applied(self, num_drafts: int, num_tokens: int) -> None:
        """The oldest verification in flight, with at most `num_drafts` drafts, yielded `num_tokens` tokens."""
        self.base += num_tokens
        self.num_verifications -= 1
        self.num_drafts -= num_drafts


@dataclass(slots=True)
class DraftHistory:
    """How the drafts of one sequence, or of all, fared lately; each verification fades the earlier ones."""

    offered: float = 0.0  # drafts that were allowed
    made: float = 0.0  # of these, made by the worker
    tested: float = 0.0  # of these, accepted or the first that was not
    accepted: float = 0.0
    num_attempt_steps: int = 0  # verifications of the attempt that still run
    interval: int = 0  # tokens from the last attempt to the next; 0: none yet

    def add(self, offered: int, made: int, accepted: int) -> None:
        self.offered = KEEP * self.offered + offered
        self.made = KEEP * self.made + made
        if made:
            self.tested = KEEP * self.tested + min(made, accepted + 1)
            self.accepted = KEEP * self.accepted + accepted

    def rates(self, of_all: "DraftHistory") -> tuple[float, float]:
        """The share of allowed drafts that are made, and the chance that one is accepted if all before it were.

        The history of all sequences stands in for what this one has not shown yet.
        """
        made = self.made + PRIOR * of_all.made / of_all.offered
        accepted = self.accepted + PRIOR * of_all.accepted / of_all.tested
        return made / (self.offered + PRIOR), accepted / (self.tested + PRIOR)
