"""Decides which sequences speculate, and with how many drafts. It changes the speed alone, never a token.

A draft is worth its place in a step if the whole step then yields more tokens per second. The chance that draft number
j becomes a token is a ** j, where a is the chance that one draft is accepted; the drafts of all rows compete for the
same step, so those above one threshold of this chance are made, and the best threshold is sought. A sequence that is
worth no draft decodes plainly, and is tried again after a growing number of tokens: text that was new may begin to
repeat. Attempts are paid from a budget of LOSS of the time.
"""

import math
from collections.abc import Sequence

from ..requests.speculating import DraftHistory
from .step_curve import StepCurve

THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)
MIN_GAIN = 1.02  # tokens per second against a plain step: less is within the error of the averages
FIRST_INTERVAL, LAST_INTERVAL = 32, 512  # tokens between two attempts of a sequence
ATTEMPT_STEPS, ATTEMPT_DRAFTS = 4, 4
LOSS = 0.02  # share of the time that attempts may cost
MAX_SAVED = 2.0  # of the attempts' budget, in plain steps

Rates = tuple[float, float]  # the share of allowed drafts that are made, the chance that one is accepted


class DraftPolicy:
    """Learns from every applied step."""

    def __init__(self, num_drafts: int):
        """`num_drafts`: the most of a row in one step."""
        self.num_drafts = num_drafts
        self.curve = StepCurve()
        self._of_all = DraftHistory(offered=1.0, made=1.0, tested=1.0, accepted=0.5)
        self._saved = MAX_SAVED

    def wanted(self, histories: Sequence[DraftHistory], num_decoding: int) -> list[int]:
        """Drafts of each speculating sequence in the next step; one that is worth none should decode."""
        rates = [history.rates(self._of_all) for history in histories]
        counts = most_valuable(rates, num_decoding + len(rates), self.curve, self.num_drafts)
        for index, history in enumerate(histories):
            if history.num_attempt_steps:
                counts[index] = max(counts[index], min(ATTEMPT_DRAFTS, self.num_drafts))
            elif counts[index]:
                history.interval = 0
        return counts

    def begins(self, history: DraftHistory, num_rows: int) -> bool:
        """Whether a sequence speculates as soon as its prompt is computed. `num_rows`: with its own."""
        return most_valuable([history.rates(self._of_all)], num_rows, self.curve, self.num_drafts)[0] > 0

    def begin_attempt(self, history: DraftHistory, num_rows: int) -> bool:
        """Let a sequence that decodes speculate for a few steps; False if the budget does not allow it now."""
        num_drafts = min(ATTEMPT_DRAFTS, self.num_drafts)
        longer = self.curve.relative(num_rows + num_drafts) / self.curve.relative(num_rows) - 1.0
        cost = ATTEMPT_STEPS * max(0.0, longer)
        if cost > self._saved:
            return False
        self._saved -= cost
        history.num_attempt_steps = ATTEMPT_STEPS
        return True

    def next_interval(self, history: DraftHistory) -> int:
        """Tokens that a sequence decodes before its next attempt; twice as many after each attempt that did not pay."""
        history.num_attempt_steps = 0
        history.interval = min(LAST_INTERVAL, 2 * history.interval) if history.interval else FIRST_INTERVAL
        return history.interval

    def observe(self, history: DraftHistory, offered: int, made: int, accepted: int) -> None:
        """Record a verification: the drafts that were allowed, made and accepted."""
        history.num_attempt_steps = max(0, history.num_attempt_steps - 1)
        if offered:
            history.add(offered, made, accepted)
            self._of_all.add(offered, made, accepted)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Record a step of decode rows and verifications; `num_tokens` were computed, drafts included."""
        self.curve.observe(num_tokens, seconds)
        self._saved = min(MAX_SAVED, self._saved + LOSS)


def most_valuable(rates: Sequence[Rates], num_rows: int, curve: StepCurve, most: int) -> list[int]:
    """Drafts for each of these rows, at most `most`, so that a step of `num_rows` yields the most tokens per second."""
    best = [0] * len(rates)
    speed = MIN_GAIN * num_rows / curve.relative(num_rows)
    for threshold in THRESHOLDS:
        counts = [num_likely(accepted, threshold, most) for _, accepted in rates]
        num_tokens = num_positions = float(num_rows)
        for (made, accepted), count in zip(rates, counts, strict=True):
            num_tokens += made * expected(accepted, count)
            num_positions += made * count
        found = num_tokens / curve.relative(num_positions)
        if found > speed:
            best, speed = counts, found
    return best


def num_likely(accepted: float, threshold: float, most: int) -> int:
    """How many drafts each become a token with a chance of at least `threshold`."""
    if accepted >= 1.0:
        return most
    return 0 if accepted <= 0.0 else min(most, int(math.log(threshold) / math.log(accepted)))


def expected(accepted: float, count: int) -> float:
    """The number of accepted drafts to expect of `count`."""
    return float(count) if accepted >= 1.0 else accepted * (1.0 - accepted**count) / (1.0 - accepted)
