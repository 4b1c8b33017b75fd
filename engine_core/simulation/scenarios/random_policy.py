"""A policy of drafts that draws its decisions: sequences begin and stop speculating in any step."""

import random
from collections.abc import Sequence

from ...drafting.draft_policy import DraftPolicy
from ...requests.speculating import DraftHistory

MAX_INTERVAL = 6  # tokens between two attempts


class RandomPolicy(DraftPolicy):
    """Outputs may not depend on what it decides."""

    def __init__(self, num_drafts: int, rng: random.Random):
        super().__init__(num_drafts)
        self._rng = rng

    def wanted(self, histories: Sequence[DraftHistory], num_decoding: int) -> list[int]:
        return [self._rng.randint(1, self.num_drafts) if self._rng.random() < 0.8 else 0 for _ in histories]

    def begins(self, history: DraftHistory, num_rows: int) -> bool:
        return self._rng.random() < 0.5

    def begin_attempt(self, history: DraftHistory, num_rows: int) -> bool:
        return self._rng.random() < 0.7

    def next_interval(self, history: DraftHistory) -> int:
        history.interval = self._rng.randint(1, MAX_INTERVAL)
        return history.interval
