"""Decides which tokens each step computes. There is no prefill or decode phase: sequences catch up with their tokens.

Running sequences come first, then waiting ones; the earliest is served first and preempted last. The first running
sequence is never preempted for lack of blocks, so one always advances. A sequence is preempted in favour of others at
most a few times, and a bounded number of sequences is admitted past one that does not fit, so every sequence ends.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import accumulate, islice

from paged_serve.protocol.block_hash import TOKEN_BYTES

from ..kv.kv_cache import KVCache
from ..requests.order import insert, order_of, remove
from ..requests.request import Sequence, SequenceEvent, SequenceState
from .decode_set import DecodeSet
from .fair_share import FairShares
from .preemption import choose_victims, is_row_reserved
from .scheduled_step import ScheduledChunk, ScheduledStep
from .step_calendar import StepCalendar
from .waiting_queue import WaitingQueue
from .worker_poison import WorkerPoison

MAX_CARRIED_BYTES = 1 << 20  # of rows admitted in one step, except the last: decoding them delays all other rows
PASSES_PER_ROW = 4  # admissions past a sequence that does not fit, per row
MAX_PASSERS_TRIED = 8  # sequences behind it that are looked at in a step


class Scheduler:
    """Assigns rows, blocks and the token budget. It is independent of messages and of time."""

    def __init__(self, kv_cache: KVCache, max_num_seqs: int, max_num_batched_tokens: int, *, cuts_prompts: bool = True):
        self.kv_cache = kv_cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self.cuts_prompts = cuts_prompts  # False: tokens attend to later ones, so a prompt is one chunk
        self.max_num_rows = min(max_num_seqs, max_num_batched_tokens)  # a decode row must find its token
        self.max_passes = PASSES_PER_ROW * self.max_num_rows
        self.step = 0  # the last one planned
        self.shares = FairShares(self.max_num_rows)
        self.waiting = WaitingQueue(self.shares)
        self.stalled: dict[bytes, list[Sequence]] = {}  # by client, by order: its client must acknowledge first
        self.running: list[Sequence] = []  # by order
        self.prefilling: list[Sequence] = []  # by order; tokens not all planned yet
        self.in_flight: deque[ScheduledStep] = deque()
        self.decode_set = DecodeSet()
        self.num_live = 0  # sequences not finished
        self.num_queued = 0  # of them, never ran
        self.num_queued_tokens = 0
        self.num_preemptions = 0
        self.free_rows = list(range(self.max_num_rows))  # a heap: low indices keep the workers' tables short
        self.block_due = StepCalendar()
        self.last_token_due = StepCalendar()
        self.worker_poison = WorkerPoison()
        self._prefilled: list[Sequence] = []  # the last plan had their last chunk
        self._leaves: list[int] = []  # rows that the workers must still take out of the decode set
        self._joins: list[int] = []  # rows, while a plan is being made

    @property
    def num_waiting(self) -> int:
        """Sequences without row or blocks: queued, held back for their leader, or preempted."""
        return self.num_live - len(self.running)

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._enqueue(sequence)
        self.shares.begins_to_live(tenant)
        tenant.queue(sequence.num_tokens, sequence.token_limit, +1)
        self.num_live += 1
        self.num_queued += 1
        self.num_queued_tokens += sequence.num_tokens

    def schedule(self) -> ScheduledStep | None:
        """Plan one step over all that can run, or None when nothing can."""
        candidate = self.worker_poison.first()
        if self.stalled:
            self._stop_stalled(candidate)
        if self.worker_poison.is_closed if candidate is None else not self._isolate(candidate):
            return None
        plan = ScheduledStep(self.step + 1)
        self._join_decode_set(plan.step)
        preempted = self._extend_block_tables(plan)
        budget = self.max_num_batched_tokens - len(self.decode_set)
        for sequence in self.prefilling:
            if budget:
                budget -= self._schedule_chunk(plan, sequence, budget)
        self.prefilling = [sequence for sequence in self.prefilling if sequence.num_scheduled < sequence.prefill_len]
        if candidate is not None:
            self._admit_candidate(plan, candidate, budget)
        elif not preempted:
            self._admit(plan, budget)
        if not plan.chunks and not self.decode_set:
            return None
        plan.decode = self.decode_set
        self.shares.charge_decode_step()
        plan.leaves, plan.joins = self._leaves, self._joins
        self._leaves, self._joins = [], []
        plan.last = self.last_token_due.take(plan.step)
        self._leave_decode_set(plan.last)
        self.step = plan.step
        self.in_flight.append(plan)
        return plan

    def _join_decode_set(self, step: int) -> None:
        """Move sequences whose last chunk is planned to the decode set, and queue their waiting siblings."""
        joining = [sequence for sequence in self._prefilled if sequence.prefill_len + 1 < sequence.token_limit]
        for sequence in self._prefilled:
            self._release_followers(sequence)
        self._prefilled = []
        if not joining:
            return
        for sequence in joining:
            sequence.joined_step = step
            self.last_token_due.add(sequence.last_step, sequence)
            self._expect_block(sequence)
            self._joins.append(sequence.row)
            self.shares.join_decode_set(sequence.request.tenant)
        self.decode_set = self.decode_set.joined(joining, step)

    def _extend_block_tables(self, plan: ScheduledStep) -> bool:
        """Allocate blocks to the rows that have filled theirs; True if another sequence was preempted for that."""
        due, preempted, windows = self.block_due.take(plan.step), False, self.kv_cache.groups.windows
        if windows:
            due += self.prefilling
            self.kv_cache.release_behind(due)
        if sum(self.kv_cache.num_wanted(due)) > self.kv_cache.pool.num_free:
            due.sort(key=order_of)
            for count, sequence in zip(accumulate(self.kv_cache.num_wanted(due)), due, strict=True):
                while sequence.state is SequenceState.RUNNING and self.kv_cache.pool.num_free < count:
                    assert len(self.running) > 1, f"stream {sequence.stream_id} does not fit in an empty cache"
                    self.preempt(self.running[-1])
                    preempted = True
            due = [sequence for sequence in due if sequence.state is SequenceState.RUNNING]
        if due:
            plan.extended, plan.extended_tables, plan.new_blocks = self.kv_cache.extend(due)
            for sequence in [each for each in due if each.joined_step] if windows else due:
                self._expect_block(sequence)
        return preempted

    def _admit(self, plan: ScheduledStep, budget: int) -> None:
        num_carried = 0  # bytes of tokens and parameters in the plan's message
        while budget and self.waiting and num_carried <= MAX_CARRIED_BYTES:
            sequence = self.waiting.first()
            if sequence.request.leader is not None:
                self.waiting.take(sequence)
                sequence.request.followers.append(sequence)
                continue
            if self._is_row_reserved(sequence) or not self._may_begin(sequence, budget):
                return
            if not self._find_room(sequence):
                victims = choose_victims(sequence, self.running, plan.admitted, self.shares, self.kv_cache)
                if victims:
                    budget += self._preempt_for(sequence, victims, plan)
                elif (passer := self._find_passer(sequence, budget)) is not None:
                    sequence = passer
                else:
                    return
            self.waiting.remove(sequence)
            budget -= self._start_in(plan, sequence, budget)
            num_carried += sequence.prefill_len * TOKEN_BYTES + sequence.request.params_bytes

    def _may_begin(self, sequence: Sequence, budget: int) -> bool:
        """Whether the first chunk of `sequence` may start now, with `budget` tokens."""
        return self.cuts_prompts or sequence.num_tokens <= budget

    def _find_room(self, sequence: Sequence) -> bool:
        watermark = self.kv_cache.num_groups * len(self.running)  # each may fill its blocks before one is preempted
        return bool(self.free_rows) and self.kv_cache.admit(sequence, sequence.request.sharer, watermark)

    def _is_row_reserved(self, sequence: Sequence) -> bool:
        return is_row_reserved(sequence, len(self.free_rows), self.max_num_rows, self.waiting, self.shares)

    def _preempt_for(self, sequence: Sequence, victims: list[Sequence], plan: ScheduledStep) -> int:
        """Preempt `victims` and allocate the blocks of `sequence`; returns the tokens of this step that become free."""
        num_tokens = 0
        for victim in victims:
            num_tokens += plan.withdraw(victim)
            victim.yields()
            self.preempt(victim)
        has_room = self._find_room(sequence)
        assert has_room, f"{len(victims)} sequences were preempted for stream {sequence.stream_id} for nothing"
        return num_tokens

    def _find_passer(self, first: Sequence, budget: int) -> Sequence | None:
        """Find a sequence that fits although `first`, which precedes it, does not, and allocate its blocks.

        It is preempted once `first` fits without it, so it is never one that was preempted in favour of another. Every
        sequence that it passes counts the pass, and none is passed more than `max_passes` times.
        """
        if not self.free_rows or first.num_passed >= self.max_passes:
            return None
        passed = [first]
        for sequence in islice(self.waiting.behind(first), MAX_PASSERS_TRIED):
            may_pass = sequence.request.leader is None and not sequence.num_yielded
            may_pass = may_pass and self._may_begin(sequence, budget)
            if may_pass and not self._is_row_reserved(sequence) and self._find_room(sequence):
                for each in passed:
                    each.num_passed += 1
                sequence.passed = first
                return sequence
            if sequence.num_passed >= self.max_passes:
                return None
            passed.append(sequence)
        return None

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
        if candidate.state is not SequenceState.RUNNING and self.kv_cache.admit(candidate, None, 0):
            self._dequeue(candidate)
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
            self._unqueue(sequence)
            if not sequence.output:  # what an earlier life of the engine has computed is not charged again
                self.shares.charge_prompt(sequence.request.tenant, sequence.prefill_len - sequence.num_scheduled)
        sequence.fire(SequenceEvent.SCHEDULE)
        sequence.has_yielded = False
        sequence.row = heappop(self.free_rows)
        insert(self.running, sequence)
        request = sequence.request
        if len(request.sequences) > 1:
            is_leader = sequence.num_scheduled < request.num_shareable_tokens(self.kv_cache.block_size)
            request.leader = sequence if is_leader else None
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = min(sequence.num_scheduled, request.prompt_len)

    def _schedule_chunk(self, plan: ScheduledStep, sequence: Sequence, budget: int) -> int:
        start = sequence.num_scheduled
        end = sequence.num_scheduled = min(start + budget, sequence.prefill_len)
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
        self._enqueue(sequence)

    def pause(self, client: bytes) -> None:
        """Schedule no sequence of `client` until `resume`, except a candidate that holds up all others."""
        own = [sequence for sequence in self.waiting if sequence.request.client == client]
        self.stalled[client] = []
        for sequence in own:
            self.waiting.remove(sequence)
            insert(self.stalled[client], sequence)

    def resume(self, client: bytes) -> None:
        for sequence in self.stalled.pop(client, ()):
            self.waiting.add(sequence)

    def _stop_stalled(self, candidate: Sequence | None) -> None:
        for sequence in reversed([each for each in self.running if each.request.client in self.stalled]):
            if sequence is not candidate:
                self.preempt(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        if (stalled := self.stalled.get(sequence.request.client)) is None:
            self.waiting.add(sequence)
        else:
            insert(stalled, sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        """Remove `sequence` from wherever it waits."""
        if not self.waiting.remove(sequence) and not remove(self.stalled.get(sequence.request.client, []), sequence):
            sequence.request.followers.remove(sequence)

    def finish(self, sequences: list[Sequence]) -> None:
        """End `sequences`, in whatever state, and release their rows and blocks."""
        running = [sequence for sequence in sequences if sequence.state is SequenceState.RUNNING]
        for sequence in sequences:
            if sequence.state is SequenceState.WAITING:
                self._unqueue(sequence)
            if sequence.state is not SequenceState.RUNNING:
                self._dequeue(sequence)
            sequence.fire(SequenceEvent.FINISH)
            self.shares.ends(sequence.request.tenant, sequence.request.prompt_len, len(sequence.output))
            self.worker_poison.discard(sequence)
        self.num_live -= len(sequences)
        self._stop_running(running)

    def restart(self) -> None:
        """Queue all running sequences again, in order and with their output: the workers have lost their state."""
        self.in_flight.clear()
        self.block_due.clear()
        self.last_token_due.clear()
        for sequence in self.running:
            sequence.fire(SequenceEvent.PREEMPT)
            self._give_row_back(sequence)
            self._release_followers(sequence)
            sequence.block_tables, sequence.num_released = (), []
            self._enqueue(sequence)
        self.running, self.prefilling, self._prefilled, self._leaves = [], [], [], []
        self.decode_set = DecodeSet()
        self.shares.workers_lost()
        self.kv_cache.reset()

    def _stop_running(self, sequences: list[Sequence]) -> None:
        self._leave_decode_set([sequence for sequence in sequences if sequence.joined_step])
        for sequence in sequences:
            for step in self.in_flight:
                step.discard(sequence)
            remove(self.running, sequence)
            remove(self.prefilling, sequence)
            if sequence in self._prefilled:
                self._prefilled.remove(sequence)
            self._release_followers(sequence)
            self.kv_cache.release(sequence)
            self._give_row_back(sequence)

    def _leave_decode_set(self, sequences: Iterable[Sequence]) -> None:
        indices = []
        for sequence in sequences:
            index = self.decode_set.index(sequence)
            assert index is not None, f"stream {sequence.stream_id} is not in the decode set"
            indices.append(index)
            self.shares.leave_decode_set(sequence.request.tenant)
            self.block_due.remove(sequence.next_block_step(self.kv_cache.block_size), sequence)
            self.last_token_due.remove(sequence.last_step, sequence)
            if sequence.row in self._joins:
                self._joins.remove(sequence.row)  # the workers never hear of it
            else:
                self._leaves.append(sequence.row)
            sequence.joined_step = 0
        if indices:
            self.decode_set = self.decode_set.without(indices)

    def _expect_block(self, sequence: Sequence) -> None:
        step = sequence.next_block_step(self.kv_cache.block_size)
        if step <= sequence.last_step:
            self.block_due.add(step, sequence)

    def _give_row_back(self, sequence: Sequence) -> None:
        heappush(self.free_rows, sequence.row)
        self.shares.row_returned()
        sequence.row = -1
        sequence.prefill_len = sequence.num_scheduled = sequence.num_applied = sequence.num_published = 0
        sequence.joined_step = 0

    def _release_followers(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.leader is sequence:
            request.leader = None
            for sibling in request.followers:
                self._enqueue(sibling)
            request.followers = []

    def _unqueue(self, sequence: Sequence) -> None:
        self.num_queued -= 1
        self.num_queued_tokens -= sequence.num_tokens
        sequence.request.tenant.queue(sequence.num_tokens, sequence.token_limit, -1)
