"""A worker without a model, for simulations: it tracks rows, blocks and slots exactly and checks every read.

The next token is a function of (all tokens, seed, position), so any mistake changes the output. Drafts are computed
like tokens: wrong ones leave their hashes in slots, and block tables must have room for as many as the plan allows. No
other row of a step reads a state that a row overwrites. Once a step has reported a poisoned slot and the engine has
applied that step, no new row may read the slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.worker import (
    Chunk,
    ModelRunnerOutput,
    RowFailure,
    RowLogprobs,
    RowPooled,
    SchedulerOutput,
)

from ..correct_results import extend_hash, start_hash, vector
from .failures import reason_of
from .fake_cache import FakeCache
from .fake_row import FakeDrafter, FakeRow
from .worker_died import WorkerDied


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
        self.vocab_size = vocab_size
        self.epoch = epoch
        self.step_s = 0.001
        self.token_s = 0.0  # further seconds of a step for each of its tokens
        self.digest_at: Callable[[int], str] = lambda place: ""  # of the adapter in a place
        self.wrong_param: Callable[[], str | None] = lambda: None  # of a token that cannot be sampled
        self._is_nan = is_nan
        self._poison = poison
        self._needs_whole_prompt = needs_whole_prompt  # to compute a vector
        self._cuts_prompts = cuts_prompts
        self._drafter = drafter
        self.cache = FakeCache(num_blocks, block_size, groups)
        self._num_groups = len(groups)
        self._rows: dict[int, FakeRow] = {}
        self._decode_set: list[int] = []

    def execute(self, plan: SchedulerOutput, background: Background | None = None) -> ModelRunnerOutput:
        assert plan.epoch == self.epoch
        self.cache.copy_blocks(unpack_ids(plan.copied_blocks).tolist())
        self._apply_deltas(plan, background or Background())
        drafted = {chunk.row: self._draft(chunk) for chunk in plan.chunks if chunk.num_drafts}
        work = [(row, 1) for row in self._decode_set]
        work += [(chunk.row, chunk.num_tokens + drafted.get(chunk.row, 0)) for chunk in plan.chunks]
        assert len({row for row, _ in work}) == len(work), "a row is computed twice in one step"
        for row, num_tokens in work:
            self._check(self._rows[row], num_tokens)
        states = [(row, block) for row, _ in work for block in self.cache.states_read(self._rows[row])]
        ill = {row for row, _ in work if self.cache.poisoned and self.cache.poison_of(self._rows[row])}
        writer: dict[tuple[int, int], int] = {}  # the row that writes each slot
        for row, num_tokens in work:
            self.cache.write(self._rows[row], num_tokens, drafted.get(row, 0), writer)
            if row in ill:
                self.cache.spoil_last(self._rows[row], num_tokens)
        output = self._sample(plan, work, drafted, ill)
        for row in drafted:
            self.cache.write_accepted(self._rows[row], writer, is_ill=row in ill)
            if row in ill:
                self.cache.report(self._rows[row], plan.step)
        for row, block in states:
            assert writer.get((block, 0), row) == row, "a row reads a state that another row overwrites"
        return output

    def _check(self, row: FakeRow, num_tokens: int) -> None:
        """Whether the row's next tokens can be computed. Raises WorkerDied if they crash a worker."""
        is_whole = num_tokens == row.new_row.prompt_len
        assert self._cuts_prompts or is_whole, "a bidirectional prompt was divided into chunks"
        if row.is_deadly(num_tokens, self._poison):
            raise WorkerDied
        assert self.digest_at(row.new_row.adapter) == row.digest, "another adapter is in the place of a row's adapter"
        self.cache.check_reads(row, num_tokens)

    def _draft(self, chunk: Chunk) -> int:
        """Append drafts to the chunk's row; returns how many."""
        assert self._drafter is not None, "drafts are allowed for a worker that makes none"
        row = self._rows[chunk.row]
        end = row.num_computed + 1 + chunk.num_drafts
        has_room = all(len(table) * self.cache.block_size >= end for table in row.block_tables)
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
            assert len(new_row.block_tables) == self._num_groups, "a row lacks the block table of a group"
            tables = [unpack_ids(table).tolist() for table in new_row.block_tables]
            salt = background.salts.get(new_row.row, "")
            row = FakeRow(tokens, prefixes, new_row.num_computed_tokens, tables, new_row, salt, digest)
            self._rows[new_row.row] = row
            self.cache.drop_poison_behind(row)
            for slot in self.cache.poison_of(row):
                assert self.cache.poisoned[slot] > background.applied_step, "another sequence received a poisoned block"
        for table, block in zip(unpack_ids(plan.extended_tables), unpack_ids(plan.extended_block_ids), strict=True):
            index, group = divmod(table, self._num_groups)
            self.cache.extend(self._rows[index], group, block)
        for index in unpack_ids(plan.decode_leaves):
            self._decode_set.remove(index)
        joins = unpack_ids(plan.decode_joins).tolist()
        assert not set(joins) & set(self._decode_set), "a row joins the decode set twice"
        self._decode_set = sorted(self._decode_set + joins)

    def _sample_row(
        self, row: FakeRow, position: int, is_bad: Callable[[], bool], tokens: list[int], logprobs: list[RowLogprobs]
    ) -> bool:
        """Samples from `position` on, as long as the row's drafts are right. Returns whether all tokens are finite."""
        while True:
            bad = is_bad()
            token = 0 if bad else row.next_token(position, self.vocab_size)
            self._add_token(row, token, position, tokens, logprobs)
            if bad or position == len(row.tokens) or row.tokens[position] != token:
                row.end_with(position, token)
                return not bad
            position += 1

    def _sample(
        self, plan: SchedulerOutput, work: list[tuple[int, int]], drafted: dict[int, int], ill: set[int]
    ) -> ModelRunnerOutput:
        """`drafted`: the number of drafts of each row that may have some."""
        tokens: list[int] = []
        logprobs: list[RowLogprobs] = []
        prompt_logprobs, nans, failures, pooled, sampled = [], [], list[RowFailure](), [], []
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
            ends = partial(self._is_bad, index, row, num_tokens, ill, plan.step)
            if self._sample_row(row, len(row.tokens) - drafted.get(index, 0), ends, tokens, logprobs):
                self._fail(tokens, logprobs, failures)
            else:
                nans.append(len(tokens) - 1)
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
            tuple(failures),
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

    def _fail(self, tokens: list[int], logprobs: list[RowLogprobs], failures: list[RowFailure]) -> None:
        """At times, replace the last of `tokens`, a row's last one, by a failure and a wrong token."""
        if (param := self.wrong_param()) is not None:
            failures.append(RowFailure(len(tokens) - 1, reason_of(param), param))
            tokens[-1] = (tokens[-1] + 1) % self.vocab_size
            if logprobs and logprobs[-1].index == len(tokens) - 1:
                logprobs.pop()

    def _vector(self, row: FakeRow, pooling: PoolingParams) -> Pooled:
        whole = pooling.task == "token_embed" or self._needs_whole_prompt
        assert not (whole and row.new_row.num_computed_tokens), "the prefix cache replaced tokens that the vector needs"
        return vector(row.prefixes, pooling)

    def _is_bad(self, index: int, row: FakeRow, num_tokens: int, ill: set[int], step: int) -> bool:
        """Whether the result of the row is reported as not finite."""
        if index not in ill and not self._is_nan():
            return False
        if index not in ill:
            self.cache.spoil_last(row, num_tokens)
            ill.add(index)
        self.cache.report(row, step)
        return True
