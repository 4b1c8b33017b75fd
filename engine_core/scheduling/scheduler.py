"""Decides which tokens each step computes. There is no prefill or decode phase: sequences catch up with their tokens.

Running sequences come first, then waiting ones; the earliest is served first and preempted last. The first running
sequence is never preempted for lack of blocks, so one always advances. A sequence is preempted in favour of others at
most a few times, so every sequence ends.
"""

from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from itertools import accumulate

from ..drafting.draft_policy import DraftPolicy
from ..kv.kv_cache import KVCache
from ..requests.forks import Forks
from ..requests.order import insert, order_of, remove
from ..requests.request import Sequence, SequenceEvent, SequenceState
from .decode_rows import DecodeRows
from .fair_share import FairShares
from .loading import LoadingSequences
from .row_assigner import RowAssigner
from .scheduled_step import ScheduledChunk, ScheduledStep
from .scheduler_output import MAX_CARRIED_BYTES, carried_bytes
from .speculation import Speculation, without_open_lengths
from .waiting_queue import WaitingQueue
from .worker_poison import WorkerPoison


class Scheduler:
    """Assigns rows, blocks and the token budget. It is independent of messages and of time."""

    def __init__(
        self,
        kv_cache: KVCache,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        draft_policy: DraftPolicy,
        cuts_prompts: bool = True,  # False if tokens attend to later ones: a prompt must be one chunk
        max_loras: int = 0,
    ):
        self.kv_cache = kv_cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_rows = min(max_num_seqs, max_num_batched_tokens)  # each decode row needs a token of the budget
        self.step = 0  # the last one planned
        self.shares = FairShares(self.max_num_rows)
        self.waiting = WaitingQueue(self.shares, max_loras)
        self.loading = LoadingSequences(kv_cache, self.waiting)
        self.row_assigner = RowAssigner(kv_cache, self.waiting, self.shares, self.max_num_rows, cuts_prompts)
        self.running: list[Sequence] = []  # by order
        self.prefilling: list[Sequence] = []  # by order; tokens not all planned yet
        self.in_flight: deque[ScheduledStep] = deque()
        self.decode_rows = DecodeRows(kv_cache.block_size, self.shares)
        self.forks = Forks(kv_cache.block_size, has_states=kv_cache.groups.has_states)
        self.speculation = Speculation(kv_cache, self.shares, self.decode_rows, draft_policy, max_num_batched_tokens)
        self.num_live = 0  # sequences not finished
        self.num_queued = 0  # of them, never ran
        self.num_queued_tokens = 0
        self.num_preemptions = 0
        self.free_rows = list(range(self.max_num_rows))  # a heap: low indices keep the workers' tables short
        self.worker_poison = WorkerPoison()
        self._prefilled: list[Sequence] = []  # sequences whose last chunk was in the last plan

    @property
    def num_waiting(self) -> int:
        """Sequences without row or blocks: queued, waiting for their leader, or preempted."""
        return self.num_live - len(self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)
        self.shares.sequence_arrived(sequence.request.tenant)
        self.num_live += 1
        self._count_queued(sequence, +1)

    def schedule(self) -> ScheduledStep | None:
        """Plan one step over all that can run, or None when nothing can."""
        candidate = self.worker_poison.first()
        if self.waiting.paused:
            self._preempt_paused(candidate)
        is_closed = self.worker_poison.is_closed if candidate is None else not self._isolate(candidate)
        if is_closed or self.waiting.adapters.stops_steps:
            return None
        plan = ScheduledStep(self.step + 1)
        self._join_decode_set(plan.step, may_draft=candidate is None)
        preempted = self._extend_block_tables(plan)
        budget = self.max_num_batched_tokens - len(self.decode_rows.decode_set)
        if plan.verifications:
            budget -= plan.num_verified
        for sequence in self.prefilling:
            if budget:
                budget -= self._schedule_chunk(plan, sequence, budget)
        self.prefilling = [sequence for sequence in self.prefilling if sequence.num_scheduled < sequence.prefill_len]
        if candidate is not None:
            self._admit_candidate(plan, candidate, budget)
        elif not preempted:
            self._admit(plan, budget)
        plan.decode = self.decode_rows.decode_set
        if not (plan.chunks or plan.decode or plan.verifications):
            return None
        self.shares.charge_decode_step()
        plan.leaves, plan.joins = self.decode_rows.take_changes()
        plan.last = self.decode_rows.last_token_due.take(plan.step)
        self.decode_rows.leave(plan.last, plan.step)
        plan.copies = self.kv_cache.copies.take()
        self.step = plan.step
        self.in_flight.append(plan)
        return plan

    def _join_decode_set(self, step: int, *, may_draft: bool) -> None:
        """Let sequences whose last chunk is planned decode or speculate, and queue their waiting siblings."""
        joining = [sequence for sequence in self._prefilled if sequence.prefill_len + 1 < sequence.token_limit]
        for sequence in self._prefilled + self.forks.begin_step(self.prefilling):
            self._release_followers(sequence)
        self._prefilled = []
        if self.speculation.is_on:
            joining = self.speculation.choose_decoding(joining, step, may_draft=may_draft)
        if joining:
            self.decode_rows.join(joining, step)

    def _extend_block_tables(self, plan: ScheduledStep) -> bool:
        """Allocate blocks to the rows that have filled theirs; True if another sequence was preempted for that."""
        due, preempted = self.decode_rows.block_due.take(plan.step), False
        windows, others = self.kv_cache.groups.windows, self.speculation.ready()
        if windows:
            others = self.prefilling + others
        due += others
        decoding = not others
        if windows:
            self.kv_cache.release_behind(due)
        if sum(self.kv_cache.num_wanted(due, decoding=decoding)) > self.kv_cache.pool.num_free:
            due = without_open_lengths(due)
            due.sort(key=order_of)
            counts = accumulate(self.kv_cache.num_wanted(due, decoding=decoding))
            for count, sequence in zip(counts, due, strict=True):
                while sequence.state is SequenceState.RUNNING and self.kv_cache.pool.num_free < count:
                    assert len(self.running) > 1 or self.kv_cache.has_transfers, f"{sequence.stream_id} does not fit"
                    self.preempt(self.running[-1])
                    preempted = True
            due = [sequence for sequence in due if sequence.state is SequenceState.RUNNING]
        if others:
            self.speculation.grant(due, watermark=self.kv_cache.num_groups * len(self.running))
        if due:
            plan.extended, plan.extended_tables, plan.new_blocks = self.kv_cache.extend(due, decoding=decoding)
            for sequence in due if decoding else [each for each in due if each.joined_step]:
                self.decode_rows.expect_block(sequence)
            plan.verifications = [] if decoding else self.speculation.plan_verifications(due)
        return preempted

    def _admit(self, plan: ScheduledStep, budget: int) -> None:
        num_carried = 0  # bytes of tokens and parameters in the plan's message
        while budget and self.waiting and num_carried <= MAX_CARRIED_BYTES:
            first = self.waiting.first()
            if self.loading.set_aside(first, len(self.running)):
                continue
            sequence, victims = self.row_assigner.choose(first, self.running, plan.admitted, budget)
            if sequence is None:
                return
            if victims:
                budget += self._preempt_for(sequence, victims, plan)
            self.waiting.remove(sequence)
            budget -= self._start_in(plan, sequence, budget)
            num_carried += carried_bytes(sequence)

    def _preempt_for(self, sequence: Sequence, victims: Collection[Sequence], plan: ScheduledStep) -> int:
        """Preempt `victims` and allocate the blocks of `sequence`; returns the tokens of this step that become free."""
        num_tokens = 0
        for victim in victims:
            num_tokens += plan.withdraw(victim)
            victim.record_yield()
            self.preempt(victim)
        has_room = self.row_assigner.find_room(sequence, len(self.running))
        assert has_room, f"{len(victims)} sequences were preempted for stream {sequence.stream_id} for nothing"
        return num_tokens

    def _isolate(self, candidate: Sequence) -> bool:
        """Let only `candidate` run; False while steps in flight must be answered first."""
        if self.running == [candidate]:
            return candidate.num_scheduled < candidate.prefill_len or not self.in_flight
        if self.in_flight:
            return False
        for sequence in reversed([s for s in self.running if s is not candidate]):  # the prefix cache keeps their work
            self.preempt(sequence)
        return True

    def _admit_candidate(self, plan: ScheduledStep, candidate: Sequence, budget: int) -> None:
        may_start = candidate.state is not SequenceState.RUNNING and self.waiting.adapters.use(candidate)
        if may_start and self.kv_cache.admit(candidate, None, 0):
            self.loading.remove_waiting(candidate)
            self._start_in(plan, candidate, budget)

    def _start_in(self, plan: ScheduledStep, sequence: Sequence, budget: int) -> int:
        """Start `sequence` in `plan`; returns how many tokens of `budget` its first chunk takes."""
        self._start(sequence)
        plan.admitted.append(sequence)
        num_tokens = self._schedule_chunk(plan, sequence, budget)
        if sequence.num_scheduled < sequence.prefill_len:
            insert(self.prefilling, sequence)
        return num_tokens

    def _start(self, sequence: Sequence) -> None:
        sequence.prefill_len = sequence.num_tokens
        if sequence.state is SequenceState.WAITING:
            self._count_queued(sequence, -1)
            if not sequence.output:  # output of a former core was charged before
                self.shares.charge_prompt(sequence.request.tenant, sequence.prefill_len - sequence.num_scheduled)
        sequence.fire(SequenceEvent.SCHEDULE)
        sequence.has_yielded = False
        sequence.row = heappop(self.free_rows)
        insert(self.running, sequence)
        request = sequence.request
        if len(request.sequences) > 1:
            is_leader = sequence.num_scheduled < request.num_shareable_tokens
            request.leader = sequence if is_leader else None
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = min(sequence.num_scheduled, request.prompt_len)

    def _schedule_chunk(self, plan: ScheduledStep, sequence: Sequence, budget: int) -> int:
        start = sequence.num_scheduled
        end = sequence.num_scheduled = min(start + budget, self.forks.chunk_limit(sequence))
        is_last, pools = end == sequence.prefill_len, sequence.request.pooling is not None
        plan.chunks.append(ScheduledChunk(sequence, sequence.row, start, end, is_last and not pools, is_last and pools))
        if is_last:
            self._prefilled.append(sequence)
        return end - start

    def preempt(self, sequence: Sequence) -> None:
        """Release the row and blocks of `sequence`; it keeps its output and is recomputed later, to the same bits."""
        sequence.fire(SequenceEvent.PREEMPT)
        self._stop_running([sequence])
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def _preempt_paused(self, candidate: Sequence | None) -> None:
        """Preempt the sequences of paused clients, except a candidate for which all others wait."""
        for sequence in reversed([each for each in self.running if each.request.client in self.waiting.paused]):
            if sequence is not candidate:
                self.preempt(sequence)

    def finish(self, sequences: list[Sequence]) -> None:
        """End `sequences`, in any state, and release their rows and blocks."""
        running = [sequence for sequence in sequences if sequence.state is SequenceState.RUNNING]
        for sequence in sequences:
            if sequence.state is SequenceState.WAITING:
                self._count_queued(sequence, -1)
            if sequence.state is not SequenceState.RUNNING:
                self.loading.remove_waiting(sequence)
            sequence.fire(SequenceEvent.FINISH)
            self.shares.sequence_ended(sequence.request.tenant, sequence.request.prompt_len, len(sequence.output))
            self.worker_poison.discard(sequence)
            self.waiting.adapters.leave(sequence)
        self.num_live -= len(sequences)
        self._stop_running(running)

    def restart(self) -> None:
        """Queue all running sequences again, in order and with their output: the workers have lost their state."""
        self.in_flight.clear()
        for sequence in self.running:
            sequence.fire(SequenceEvent.PREEMPT)
            self._release_row(sequence)
            self._release_followers(sequence)
            sequence.lose_blocks()
            self.waiting.add(sequence)
        self.loading.restart()
        self.running, self.prefilling, self._prefilled = [], [], []
        self.decode_rows.clear()
        self.speculation.clear()
        self.kv_cache.reset()

    def _stop_running(self, sequences: list[Sequence]) -> None:
        self.decode_rows.leave([sequence for sequence in sequences if sequence.joined_step], self.step)
        for sequence in sequences:
            self.speculation.remove(sequence)
            for step in self.in_flight:
                step.discard(sequence)
            remove(self.running, sequence)
            remove(self.prefilling, sequence)
            if sequence in self._prefilled:
                self._prefilled.remove(sequence)
            self._release_followers(sequence)
            self.kv_cache.release(sequence)
            self._release_row(sequence)

    def _release_row(self, sequence: Sequence) -> None:
        heappush(self.free_rows, sequence.row)
        self.shares.row_returned()
        sequence.row = -1
        sequence.prefill_len = sequence.num_scheduled = sequence.num_applied = sequence.num_published = 0
        sequence.joined_step, sequence.num_decoded, sequence.speculating = 0, 0, None
        sequence.request.fork = None

    def _release_followers(self, sequence: Sequence) -> None:
        for sibling in sequence.request.take_followers(sequence):
            self.waiting.add(sibling)

    def _count_queued(self, sequence: Sequence, sign: int) -> None:
        """Add (+1) or remove (-1) a sequence that never ran to or from the counts of queued sequences."""
        self.num_queued += sign
        self.num_queued_tokens += sign * sequence.num_tokens
        sequence.request.tenant.queue(sequence.num_tokens, sequence.token_limit, sign)
