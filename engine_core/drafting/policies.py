"""The policy of a configuration: drafts that pay by measured times, or as many as allowed in every step."""

from collections.abc import Sequence

from paged_serve.protocol.messages.config import SpeculationConfig

from ..requests.speculating import DraftHistory
from .draft_policy import DraftPolicy


class FixedPolicy(DraftPolicy):
    """Every sequence speculates, with the most drafts: no decision depends on how long steps take."""

    def wanted(self, histories: Sequence[DraftHistory], num_decoding: int) -> list[int]:
        return [self.num_drafts] * len(histories)

    def begins(self, history: DraftHistory, num_rows: int) -> bool:
        return True

    def begin_attempt(self, history: DraftHistory, num_rows: int) -> bool:
        return True

    def next_interval(self, history: DraftHistory) -> int:
        """Only while nothing may be drafted do sequences decode; they speculate again in the first step that may."""
        history.interval = 1
        return history.interval


def policy_of(config: SpeculationConfig, device: str) -> DraftPolicy:
    """`device`: as WorkerReady names it. Without speculation there are no drafts."""
    num_drafts = config.num_drafts if config.is_on(device) else 0
    return DraftPolicy(num_drafts) if config.adaptive else FixedPolicy(num_drafts)
