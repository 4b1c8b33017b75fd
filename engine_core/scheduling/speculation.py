"""Keeps the sequences that speculate: each takes one token or more a step, from a verification, not by decoding.

Results in flight leave the length of such a sequence open, so everything is booked for the longest that they allow:
the token limit, and the blocks of every KV group. Blocks behind windows are released for the shortest. Once no drafts
are in flight, the length is certain, and the sequence may join the decode set. When the longest length is the token
limit, the sequence rests until results arrive.
"""

from collections.abc import Collection

from ..drafting.draft_policy import DraftPolicy
from ..kv.kv_cache import KVCache
from ..requests.order import insert, remove
from ..requests.request import Sequence
from ..requests.speculating import Speculating
from .decode_rows import DecodeRows
from .fair_share import FairShares
from .scheduled_step import ScheduledStep, ScheduledVerification


class Speculation:
    """The speculating sequences, and the attempts of those that decode. Without drafts it stays empty."""

    def __init__(
        self,
        kv_cache: KVCache,
        shares: FairShares,
        decode_rows: DecodeRows,
        policy: DraftPolicy,
        max_num_batched_tokens: int,
    ) -> None:
        """Without drafts of `policy` no sequence speculates."""
        self.is_on = policy.num_drafts > 0
        self.policy = policy
        self.rows: list[Sequence] = []  # by order
        self._kv_cache = kv_cache
        self._shares = shares
        self._decode_rows = decode_rows
        self._max_num_batched_tokens = max_num_batched_tokens
        self._wanted: dict[Sequence, int] = {}  # drafts in the step that is being planned
        self._attempts_due: dict[int, list[tuple[Sequence, int]]] = {}  # by step; each with its joined_step

    def choose_decoding(self, prefilled: list[Sequence], step: int, *, may_draft: bool) -> list[Sequence]:
        """Which of `prefilled`, and of the sequences that speculate, join the decode set in `step`; the rest speculate.

        `may_draft`: False while a sequence runs alone because it may be poison. A sequence that had a result that was
        not finite drafts no more: an infinite value of a wrong draft, too, makes the tokens before it NaN.
        """
        self._begin_attempts(step, may_draft)
        num_rows = len(self._decode_rows.decode_set) + len(self.rows) + len(prefilled)
        joining: list[Sequence] = []
        for sequence in prefilled:
            if may_draft and not sequence.num_nans and self.policy.begins(sequence.draft_history, num_rows):
                self._begin(sequence, step)
            else:
                joining.append(sequence)
        wanted = [0] * len(self.rows)
        if may_draft and self.rows:
            histories = [sequence.draft_history for sequence in self.rows]
            wanted = self.policy.wanted(histories, num_rows - len(self.rows))
        self._wanted = dict(zip(self.rows, wanted, strict=True))
        for sequence in [each for each, count in self._wanted.items() if not count and _is_certain(each)]:
            self.remove(sequence)
            sequence.end_speculating()
            joining.append(sequence)
        for sequence in joining:
            if not sequence.num_nans:
                self._expect_attempt(sequence, step, step + self.policy.next_interval(sequence.draft_history))
        return joining

    def _begin(self, sequence: Sequence, step: int) -> None:
        sequence.begin_speculating(step)
        insert(self.rows, sequence)

    def _begin_attempts(self, step: int, may_draft: bool) -> None:
        for sequence, joined_step in self._attempts_due.pop(step, ()):
            if sequence.joined_step != joined_step:
                continue  # it has left the decode set
            num_rows = len(self._decode_rows.decode_set) + len(self.rows)
            if may_draft and self.policy.begin_attempt(sequence.draft_history, num_rows):
                self._begin(sequence, step)
                self._decode_rows.leave([sequence], step - 1)
            else:
                self._expect_attempt(sequence, joined_step, step + sequence.draft_history.interval)

    def _expect_attempt(self, sequence: Sequence, joined_step: int, step: int) -> None:
        self._attempts_due.setdefault(step, []).append((sequence, joined_step))

    def ready(self) -> list[Sequence]:
        """The sequences that may take a token in the next step, whatever the results in flight are."""
        return [sequence for sequence in self.rows if bounds_of(sequence).longest < sequence.token_limit]

    def grant(self, due: list[Sequence], watermark: int) -> None:
        """Set the drafts of the sequences of `due` that speculate; no sequence is preempted for a draft.

        `due` is all that wants blocks in this step; `watermark` blocks stay free besides. Drafts get at most half of
        the step's tokens that no row needs, so that prompts advance, too.
        """
        verifying = [sequence for sequence in due if sequence.speculating is not None]
        if not verifying:
            return
        num_wanted = sum(self._kv_cache.num_wanted(due, decoding=False))
        num_blocks = max(0, self._kv_cache.pool.num_free - num_wanted - watermark) // self._kv_cache.num_groups
        num_tokens = (self._max_num_batched_tokens - len(self._decode_rows.decode_set) - len(verifying)) // 2
        size = self._kv_cache.block_size
        for sequence in verifying:
            bounds = bounds_of(sequence)
            num_owned = max(len(sequence.block_tables[0]), -(-bounds.longest // size))  # in each group
            bounds.num_granted = min(
                self._wanted[sequence],
                num_tokens,
                sequence.token_limit - bounds.longest - 1,
                self._max_num_batched_tokens - bounds.num_drafts - 1,  # windows have blocks for one chunk
                (num_owned + num_blocks) * size - bounds.longest,
            )
            num_tokens -= bounds.num_granted
            num_blocks -= max(0, -(-(bounds.longest + bounds.num_granted) // size) - num_owned)

    def plan_verifications(self, due: list[Sequence]) -> list[ScheduledVerification]:
        """The verifications of the step, for which all blocks are allocated."""
        verifying = [(each, each.speculating) for each in due if each.speculating is not None]
        return [ScheduledVerification(each, each.row, bounds.sent(), bounds) for each, bounds in verifying]

    def applied(self, plan: ScheduledStep, step_s: float) -> None:
        """The tokens of `plan`, which took `step_s` seconds, are appended; no sequence has ended yet."""
        if not self.is_on:
            return
        for verification in plan.verifications:
            sequence = verification.sequence
            verification.bounds.applied(verification.num_drafts, verification.num_applied)
            if not verification.discarded:
                self._shares.charge_output(sequence.request.tenant, verification.num_applied)
                num_accepted = verification.num_sampled - 1
                made = verification.num_drafted
                self.policy.observe(sequence.draft_history, verification.num_drafts, made, num_accepted)
        if not plan.chunks:
            self.policy.observe_step(plan.num_generating + sum(each.num_drafted for each in plan.verifications), step_s)

    def remove(self, sequence: Sequence) -> None:
        """It ends, loses its row, or joins the decode set."""
        remove(self.rows, sequence)

    def clear(self) -> None:
        """The workers were lost, and all rows with them."""
        self.rows = []
        self._wanted.clear()
        self._attempts_due.clear()


def bounds_of(sequence: Sequence) -> Speculating:
    assert sequence.speculating is not None, f"stream {sequence.stream_id} does not speculate"
    return sequence.speculating


def without_open_lengths(sequences: Collection[Sequence]) -> list[Sequence]:
    """Those without drafts in flight: the others may need fewer blocks than they would have to book now."""
    return [each for each in sequences if each.speculating is None or not each.speculating.num_drafts]


def _is_certain(sequence: Sequence) -> bool:
    """Whether the length of a sequence is known for the next step, and it takes a token in it."""
    bounds = bounds_of(sequence)
    return not bounds.num_drafts and bounds.shortest < sequence.token_limit
