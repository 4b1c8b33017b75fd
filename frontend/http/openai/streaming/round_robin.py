"""An order of tokens that does not depend on timing: one token of each unfinished choice in turn."""

from collections import deque
from collections.abc import Iterator

from ....client.streams.deltas import SequenceDelta, tokens_then_error


class RoundRobin:
    """Reorders deltas into deltas of one token each, in turn. The last delta of a choice carries its finish."""

    def __init__(self, num_choices: int):
        self._waiting: list[deque[SequenceDelta]] = [deque() for _ in range(num_choices)]
        self._ended = [False] * num_choices
        self._next = 0
        self.num_tokens = 0  # waiting

    def add(self, choice: int, delta: SequenceDelta) -> None:
        for part in tokens_then_error(delta):
            self._waiting[choice].extend(_one_by_one(part))
        self.num_tokens += len(delta.token_ids)

    def end(self, choice: int) -> None:
        """Drop the rest of this choice, so that the others do not wait for it."""
        self._ended[choice] = True
        self.num_tokens -= sum(len(delta.token_ids) for delta in self._waiting[choice])
        self._waiting[choice].clear()

    def take(self) -> tuple[int, SequenceDelta] | None:
        """The next (choice, delta); None if the choice whose turn it is has no token yet, or if all have ended."""
        if all(self._ended):
            return None
        while self._ended[self._next]:
            self._next = (self._next + 1) % len(self._ended)
        choice = self._next
        if not self._waiting[choice]:
            return None
        self._next = (choice + 1) % len(self._ended)
        delta = self._waiting[choice].popleft()
        self.num_tokens -= len(delta.token_ids)
        return choice, delta


def _one_by_one(delta: SequenceDelta) -> Iterator[SequenceDelta]:
    last = len(delta.token_ids) - 1
    if last <= 0:
        yield delta
        return
    for i, token in enumerate(delta.token_ids):
        ends = i == last
        yield SequenceDelta(
            delta.index,
            [token],
            logprobs=None if delta.logprobs is None else delta.logprobs[i : i + 1],
            prompt_logprobs=delta.prompt_logprobs if i == 0 else None,
            finish_reason=delta.finish_reason if ends else None,
            stop_token_id=delta.stop_token_id if ends else None,
            num_cached_tokens=delta.num_cached_tokens,
            times=delta.times if ends else None,
        )
