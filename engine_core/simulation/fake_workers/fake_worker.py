"""A worker without a model, for simulations: it tracks rows, blocks and slots exactly and checks every read.

A KV slot holds a hash of all tokens up to its own; a block records the salt and the KV group for which it was written.
A block of a state group has one slot, which each of its tokens overwrites. Reading a slot that another sequence wrote,
or that was never written, raises AssertionError; each group reads as far back as its window or attention chunk, or the
state before the token. No other row of a step reads a state that a row overwrites. States after drafts are written once
these are accepted, others never. The next token is a function of
(all tokens, seed, position), so any mistake changes the output. Drafts are computed like tokens: wrong ones leave their
hashes in slots, and block tables must have room for as many as the plan allows. A slot can also be poisoned: results
computed from it are not finite and poison the slots that they write. Once a step has reported this and the engine has
applied that step, no new row may read the slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.worker import (
    Chunk,
    KVGroup,
    ModelRunnerOutput,
    RowLogprobs,
    RowPooled,
    SchedulerOutput,
)

from ..correct_results import extend_hash, start_hash, vector
from .fake_row import FakeDrafter, FakeRow
from .worker_died import WorkerDied

NOT_REPORTED = 1 << 62  # a step


@dataclass(frozen=True, slots=True)
class Background:
    """State of the engine when it scheduled a step that is not part of the message to the workers."""

    applied_step: int = 0  # the last step applied
    salts: dict[int, str] = field(default_factory=dict)  # of new rows


class FakeWorker:
    """Executes plans in order. `is_nan` decides, per sampled token, whether its logits are reported as not finite."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        epoch: int,
        is_nan: Callable[[], bool] = lambda: False,
        poison: int | None = None,
        groups: Sequence[KVGroup] = (KVGroup(),),
        needs_whole_prompt: bool = False,
        cuts_prompts: bool = True,
        drafter: FakeDrafter | None = None,
    ):
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.epoch = epoch
        self.step_s = 0.001
        self.token_s = 0.0  # further seconds of a step for each of its tokens
        self.digest_at: Callable[[int], str] = lambda place: ""  # of the adapter in a place
        self._is_nan = is_nan
        self._poison = poison
        self._needs_whole_prompt = needs_whole_prompt  # to compute a vector
        self._cuts_prompts = cuts_prompts
        self._drafter = drafter
        self.slots = [[0] * block_size for _ in range(num_blocks)]
        self.written_for = [("", 0)] * num_blocks  # salt and group
        self._groups = groups
        self._states = frozenset(index for index, group in enumerate(groups) if group.is_state)
        self.poisoned: dict[tuple[int, int], int] = {}  # (block, offset) -> the step that reported it
        self._rows: dict[int, FakeRow] = {}
        self._decode_set: list[int] = []

    def spoil(self, block: int, offset: int) -> None:
        """Make a value in this slot not finite; a state has one slot."""
        _, group = self.written_for[block]
        self.poisoned[block, 0 if self._groups[group].is_state else offset] = NOT_REPORTED

    def reported(self, step: int) -> set[tuple[int, int]]:
        """The poisoned slots, (block, offset), that steps until `step` have reported."""
        return {slot for slot, reported in self.poisoned.items() if reported <= step}

    def execute(self, plan: SchedulerOutput, background: Background | None = None) -> ModelRunnerOutput:
        assert plan.epoch == self.epoch
        self._copy_blocks(unpack_ids(plan.copied_blocks).tolist())
        self._apply_deltas(plan, background or Background())
        drafted = {chunk.row: self._draft(chunk) for chunk in plan.chunks if chunk.num_drafts}
        work = [(row, 1) for row in self._decode_set]
        work += [(chunk.row, chunk.num_tokens + drafted.get(chunk.row, 0)) for chunk in plan.chunks]
        assert len({row for row, _ in work}) == len(work), "a row is computed twice in one step"
        for row, num_tokens in work:
            is_whole = num_tokens == self._rows[row].new_row.prompt_len
            assert self._cuts_prompts or is_whole, "a bidirectional prompt was divided into chunks"
            if self._rows[row].is_deadly(num_tokens, self._poison):
                raise WorkerDied
            self._check_reads(self._rows[row], num_tokens)
        states = [(row, block) for row, _ in work for block in self._states_read(self._rows[row])]
        ill = {row for row, _ in work if self.poisoned and self._poison_of(self._rows[row])}
        writer: dict[tuple[int, int], int] = {}  # the row that writes each slot
        for row, num_tokens in work:
            self._write(row, num_tokens, drafted.get(row, 0), writer)
            if row in ill:
                self._spoil_last(self._rows[row], num_tokens)
        output = self._sample(plan, work, drafted, ill)
        for row in drafted:
            self._write_accepted(row, writer, is_ill=row in ill)
            if row in ill:
                self._report(self._rows[row], plan.step)
        for row, block in states:
            assert writer.get((block, 0), row) == row, "a row reads a state that another row overwrites"
        return output

    def _copy_blocks(self, pairs: list[int]) -> None:
        sources, destinations = pairs[::2], pairs[1::2]
        assert len(set(destinations)) == len(destinations), "two blocks are copied to one"
        assert not set(sources) & set(destinations), "a block is overwritten in the step that copies it"
        for source, block in zip(sources, destinations, strict=True):
            self.slots[block] = self.slots[source][:]
            self.written_for[block] = self.written_for[source]
            for offset in range(self.block_size):
                self.poisoned.pop((block, offset), None)
                if (source, offset) in self.poisoned:
                    self.poisoned[block, offset] = self.poisoned[source, offset]

    def _draft(self, chunk: Chunk) -> int:
        """Append drafts to the chunk's row; returns how many."""
        assert self._drafter is not None, "drafts are allowed for a worker that makes none"
        row = self._rows[chunk.row]
        end = row.num_computed + 1 + chunk.num_drafts
        has_room = all(len(table) * self.block_size >= end for table in row.block_tables)
        assert has_room, "a row has no blocks for the drafts that it may make"
        return self._drafter.draft(row, chunk.num_drafts)

    def _apply_deltas(self, plan: SchedulerOutput, background: Background) -> None:
        for new_row in plan.new_rows:
            tokens, prefixes, digest = unpack_ids(new_row.token_ids).tolist(), [], self.digest_at(new_row.adapter)
            prefix = start_hash(digest)
            for token in tokens:
                prefix = extend_hash(prefix, token)
                prefixes.append(prefix)
            assert new_row.num_computed_tokens < len(tokens), "nothing is left to compute"
            assert len(new_row.block_tables) == len(self._groups), "a row lacks the block table of a group"
            tables = [unpack_ids(table).tolist() for table in new_row.block_tables]
            salt = background.salts.get(new_row.row, "")
            row = FakeRow(tokens, prefixes, new_row.num_computed_tokens, tables, new_row, salt, digest)
            self._rows[new_row.row] = row
            self._drop_poison_behind(row)
            for slot in self._poison_of(row):
                assert self.poisoned[slot] > background.applied_step, "another sequence received a poisoned block"
        for table, block in zip(unpack_ids(plan.extended_tables), unpack_ids(plan.extended_block_ids), strict=True):
            index, group = divmod(table, len(self._groups))
            self._rows[index].block_tables[group].append(block)
            if group not in self._states:
                for offset in range(self.block_size):
                    self.poisoned.pop((block, offset), None)
        for index in unpack_ids(plan.decode_leaves):
            self._decode_set.remove(index)
        joins = unpack_ids(plan.decode_joins).tolist()
        assert not set(joins) & set(self._decode_set), "a row joins the decode set twice"
        self._decode_set = sorted(self._decode_set + joins)

    def _drop_poison_behind(self, row: FakeRow) -> None:
        """Blocks may hold later tokens of other rows, which the new row overwrites before it reads them."""
        index, length = divmod(row.num_computed, self.block_size)
        for group, table in enumerate(row.block_tables):
            if group not in self._states:
                for number in range(index, len(table)):
                    for offset in range(length if number == index else 0, self.block_size):
                        self.poisoned.pop((table[number], offset), None)

    def _check_reads(self, row: FakeRow, num_tokens: int) -> None:
        """Every slot that the first new token sees holds exactly this row's tokens, written in an earlier step."""
        size, slots, end = self.block_size, self.slots, row.num_computed
        assert row.num_computed + num_tokens <= len(row.tokens), "a row computes tokens that it does not have"
        assert self.digest_at(row.new_row.adapter) == row.digest, "another adapter is in the place of a row's adapter"
        for group, table in enumerate(row.block_tables):
            assert len(table) * size >= row.num_computed + num_tokens, "a row writes beyond its blocks"
            first = self._first_seen(row, group) // size
            seen = table[first : -(-end // size)]
            is_own = all(self.written_for[block] == (row.salt, group) for block in seen)
            assert is_own, "a row reads a block of another salt or KV group"
            if self._groups[group].is_state:
                is_own = all(slots[block][0] == row.prefixes[end - 1] for block in seen)
                assert is_own, "a row starts from another state than that of its last token"
                continue
            for index in range(first, end // size):
                block_prefixes = row.prefixes[index * size : index * size + size]
                assert slots[table[index]] == block_prefixes, "a row reads a block with other tokens"
            if (rest := end % size) and seen:
                is_own = slots[table[end // size]][:rest] == row.prefixes[end - rest : end]
                assert is_own, "a row reads other tokens in its last block"

    def _first_seen(self, row: FakeRow, group: int) -> int:
        """The first position that the row's next token attends to."""
        position, kind = row.num_computed, self._groups[group]
        if kind.is_state:
            return max(0, position - 1)
        if kind.attention_chunk:
            return position - position % kind.attention_chunk
        return max(0, position - kind.window + 1) if kind.window else 0

    def _states_read(self, row: FakeRow) -> list[int]:
        """The blocks of the states from which the row's next token starts."""
        last = row.num_computed - 1
        if last < 0:
            return []
        return [row.block_tables[group][last // self.block_size] for group in self._states]

    def _write(self, index: int, num_tokens: int, num_drafts: int, writer: dict[tuple[int, int], int]) -> None:
        row, first = self._rows[index], self._rows[index].num_computed
        row.num_computed += num_tokens
        row.num_stored = row.num_computed - num_drafts
        for position in range(first, row.num_computed):
            for group in range(len(row.block_tables)):
                if group not in self._states or position < row.num_stored:
                    self._write_slot(index, group, position, writer)

    def _write_accepted(self, index: int, writer: dict[tuple[int, int], int], *, is_ill: bool) -> None:
        """Write the states after accepted drafts."""
        row = self._rows[index]
        for position in range(row.num_stored, row.num_computed):
            for group in self._states:
                self._write_slot(index, group, position, writer)
                if is_ill:
                    self.spoil(row.block_tables[group][position // self.block_size], 0)
        row.num_stored = row.num_computed

    def _write_slot(self, index: int, group: int, position: int, writer: dict[tuple[int, int], int]) -> None:
        row = self._rows[index]
        block, offset = row.block_tables[group][position // self.block_size], position % self.block_size
        if group in self._states:
            for other in range(self.block_size):  # they may be left from another group's use of the block
                self.poisoned.pop((block, other), None)
            offset = 0
        assert block >= 0, "a row writes to a block that it does not have"
        assert writer.setdefault((block, offset), index) == index, "two rows write one slot in one step"
        self.slots[block][offset] = row.prefixes[position]
        self.written_for[block] = (row.salt, group)
        self.poisoned.pop((block, offset), None)

    def _poison_of(self, row: FakeRow) -> list[tuple[int, int]]:
        """Poisoned slots within the row's window, computed by the row or taken from the prefix cache."""
        used: dict[int, tuple[int, int]] = {}  # block -> position of its first slot, first position that is seen
        for group, table in enumerate(row.block_tables):
            seen = self._first_seen(row, group)
            if group in self._states:
                seen -= seen % self.block_size  # the state is at the beginning of its block
            for index in range(seen // self.block_size, len(table)):
                used[table[index]] = (index * self.block_size, seen)
        return [
            (block, offset)
            for block, offset in self.poisoned
            if block in used and used[block][1] <= used[block][0] + offset < row.num_computed
        ]

    def _spoil_last(self, row: FakeRow, num_tokens: int) -> None:
        """Poison the slots that the row has just written."""
        for position in range(row.num_computed - num_tokens, row.num_computed):
            for group, table in enumerate(row.block_tables):
                if group not in self._states or position < row.num_stored:
                    self.spoil(table[position // self.block_size], position % self.block_size)

    def _sample(
        self, plan: SchedulerOutput, work: list[tuple[int, int]], drafted: dict[int, int], ill: set[int]
    ) -> ModelRunnerOutput:
        """`drafted`: the number of drafts of each row that may have some."""
        tokens: list[int] = []
        logprobs: list[RowLogprobs] = []
        prompt_logprobs, nans, pooled, sampled = [], [], [], []
        for index, num_tokens in work:
            row = self._rows[index]
            if (part := row.prompt_logprobs(num_tokens)) is not None:
                prompt_logprobs.append(part)
            if row.num_computed < len(row.tokens):
                assert index not in self._decode_set, "a decode row has more than one token to compute"
                continue
            if row.new_row.pooling_params is not None:
                assert index not in self._decode_set, "a pooling row is in the decode set"
                is_bad = self._is_bad(index, row, num_tokens, ill, plan.step)
                pooled.append(RowPooled(index, None if is_bad else self._vector(row, row.new_row.pooling_params)))
                continue
            first = len(tokens)
            position = len(row.tokens) - drafted.get(index, 0)
            while True:
                token = row.next_token(position, self.vocab_size)
                if is_bad := self._is_bad(index, row, num_tokens, ill, plan.step):
                    nans.append(len(tokens))
                    token = 0
                self._add_token(row, token, position, tokens, logprobs)
                if is_bad or position == len(row.tokens) or row.tokens[position] != token:
                    break
                position += 1
            row.end_with(position, token)
            if index in drafted:
                sampled.append(len(tokens) - first)
        return ModelRunnerOutput(
            self.epoch,
            plan.step,
            pack_ids(tokens),
            self.step_s + self.token_s * sum(num_tokens for _, num_tokens in work),
            tuple(logprobs),
            tuple(prompt_logprobs),
            pack_ids(nans),
            pooled=tuple(pooled),
            num_drafted=pack_ids(drafted.values()),
            num_sampled=pack_ids(sampled),
        )

    def _add_token(
        self, row: FakeRow, token: int, position: int, tokens: list[int], logprobs: list[RowLogprobs]
    ) -> None:
        params = row.new_row.sampling_params
        if params.logprobs is not None:
            ids = pack_ids((token,) * (params.logprobs + 1))
            logprobs.append(RowLogprobs(len(tokens), ids, ids, position - row.new_row.prompt_len))
        tokens.append(token)

    def _vector(self, row: FakeRow, pooling: PoolingParams) -> Pooled:
        whole = pooling.task == "token_embed" or self._needs_whole_prompt
        assert not (whole and row.new_row.num_computed_tokens), "the prefix cache replaced tokens that the vector needs"
        return vector(row.prefixes, pooling)

    def _is_bad(self, index: int, row: FakeRow, num_tokens: int, ill: set[int], step: int) -> bool:
        """Whether the result of the row is reported as not finite."""
        if index not in ill and not self._is_nan():
            return False
        if index not in ill:
            self._spoil_last(row, num_tokens)
            ill.add(index)
        self._report(row, step)
        return True

    def _report(self, row: FakeRow, step: int) -> None:
        """Slots behind the row's windows count, too: the row has read them, and they may not be overwritten yet."""
        for group, table in enumerate(row.block_tables):
            numbers = {block: index for index, block in enumerate(table)}
            for block, offset in self.poisoned:
                first = numbers.get(block, row.num_computed) * self.block_size
                position = first + offset
                if group in self._states and first < row.num_computed:  # of the state in the block
                    position = min(row.num_computed, first + self.block_size) - 1
                if position >= row.num_computed or self.written_for[block] != (row.salt, group):
                    continue
                if self.slots[block][offset] == row.prefixes[position]:
                    self.poisoned[block, offset] = min(self.poisoned[block, offset], step)
