"""A worker without a model, for simulations: honest about rows, blocks and slots, exact about what it reads.

Its KV slots hold a hash of all tokens up to the slot's own. A step that reads a slot which somebody else has written,
or nobody, raises AssertionError. The next token is a function of (all tokens, seed, position), so any slip shows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paged_serve.protocol.message import pack_ids, unpack_ids
from paged_serve.protocol.sampling_params import SamplingParams
from paged_serve.protocol.worker import (
    ModelRunnerOutput,
    NewRow,
    RowLogprobs,
    RowPromptLogprobs,
    SchedulerOutput,
)


def extend_hash(prefix: int, token: int) -> int:
    return hash((prefix, token))


def sample(prefix: int, seed: int, position: int, vocab_size: int, masked: frozenset[int]) -> int:
    """The one right token at output `position` after the tokens that `prefix` stands for."""
    token = hash((prefix, seed, position)) % vocab_size
    while token in masked:
        token = (token + 1) % vocab_size
    return token


def masked_ids(params: SamplingParams, eos_ids: frozenset[int], position: int) -> frozenset[int]:
    """Tokens that min_tokens forbids at output `position`."""
    return eos_ids.union(params.stop_token_ids) if position < params.min_tokens else frozenset()


POISONED_AFTER = 3  # output tokens


class WorkerDied(Exception):
    """As by a segmentation fault, in mid-step."""


@dataclass(slots=True)
class FakeRow:
    tokens: list[int]
    prefixes: list[int]  # hash of tokens[: i + 1]
    num_computed: int
    block_ids: list[list[int]]  # per KV group
    new_row: NewRow


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
    ):
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.epoch = epoch
        self.step_s = 0.001
        self._is_nan = is_nan
        self._poison = poison
        self._slots = [[0] * block_size for _ in range(num_blocks)]
        self._rows: dict[int, FakeRow] = {}
        self._decode_set: list[int] = []

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        assert plan.epoch == self.epoch
        self._apply_deltas(plan)
        work = [(row, 1) for row in self._decode_set] + [(chunk.row, chunk.num_tokens) for chunk in plan.chunks]
        assert len({row for row, _ in work}) == len(work), "a row is computed twice in one step"
        for row, num_tokens in work:
            if self._is_deadly(self._rows[row], num_tokens):
                raise WorkerDied
            self._check_reads(self._rows[row], num_tokens)
        written: set[tuple[int, int]] = set()
        for row, num_tokens in work:
            self._write(self._rows[row], num_tokens, written)
        return self._sample(plan, work)

    def _is_deadly(self, row: FakeRow, num_tokens: int) -> bool:
        end = row.num_computed + num_tokens
        return row.new_row.seed == self._poison and end >= row.new_row.prompt_len + POISONED_AFTER

    def _apply_deltas(self, plan: SchedulerOutput) -> None:
        for new_row in plan.new_rows:
            tokens, prefixes, prefix = unpack_ids(new_row.token_ids).tolist(), [], 0
            for token in tokens:
                prefix = extend_hash(prefix, token)
                prefixes.append(prefix)
            assert new_row.num_computed_tokens < len(tokens), "nothing is left to compute"
            blocks = [unpack_ids(ids).tolist() for ids in new_row.block_ids]
            self._rows[new_row.row] = FakeRow(tokens, prefixes, new_row.num_computed_tokens, blocks, new_row)
        for new_blocks in plan.new_blocks:
            for row, block in zip(unpack_ids(new_blocks.rows), unpack_ids(new_blocks.block_ids), strict=True):
                self._rows[row].block_ids[new_blocks.group].append(block)
        for row in unpack_ids(plan.decode_leaves):
            self._decode_set.remove(row)
        joins = unpack_ids(plan.decode_joins).tolist()
        assert not set(joins) & set(self._decode_set), "a row joins the decode set twice"
        self._decode_set = sorted(self._decode_set + joins)

    def _check_reads(self, row: FakeRow, num_tokens: int) -> None:
        """Every slot before the first new token holds exactly this row's tokens, written in an earlier step."""
        size, slots, end = self.block_size, self._slots, row.num_computed
        assert row.num_computed + num_tokens <= len(row.tokens), "a row computes tokens that it does not have"
        for table in row.block_ids:
            assert len(table) * size >= row.num_computed + num_tokens, "a row writes beyond its blocks"
            for index in range(end // size):
                assert slots[table[index]] == row.prefixes[index * size : index * size + size], "a block is not ours"
            if rest := end % size:
                assert slots[table[end // size]][:rest] == row.prefixes[end - rest : end], "the last block is not ours"

    def _write(self, row: FakeRow, num_tokens: int, written: set[tuple[int, int]]) -> None:
        for table in row.block_ids:
            for position in range(row.num_computed, row.num_computed + num_tokens):
                block, offset = table[position // self.block_size], position % self.block_size
                assert (block, offset) not in written, "two rows write one slot in one step"
                written.add((block, offset))
                self._slots[block][offset] = row.prefixes[position]
        row.num_computed += num_tokens

    def _sample(self, plan: SchedulerOutput, work: list[tuple[int, int]]) -> ModelRunnerOutput:
        tokens: list[int] = []
        logprobs, prompt_logprobs, nans = [], [], []
        for index, num_tokens in work:
            row = self._rows[index]
            if (part := self._prompt_logprobs(index, row, num_tokens)) is not None:
                prompt_logprobs.append(part)
            if row.num_computed < len(row.tokens):
                assert index not in self._decode_set, "a decode row has more than one token to compute"
                continue
            params, position = row.new_row.sampling_params, len(row.tokens) - row.new_row.prompt_len
            masked = masked_ids(params, frozenset(row.new_row.eos_token_ids), position)
            token = sample(row.prefixes[-1], row.new_row.seed, position, self.vocab_size, masked)
            if self._is_nan():
                nans.append(len(tokens))
                token = 0
            if params.logprobs is not None:
                ids = pack_ids((token,) * (params.logprobs + 1))
                logprobs.append(RowLogprobs(len(tokens), ids, ids, position))
            row.tokens.append(token)
            row.prefixes.append(extend_hash(row.prefixes[-1], token))
            tokens.append(token)
        return ModelRunnerOutput(
            self.epoch,
            plan.step,
            pack_ids(tokens),
            self.step_s,
            tuple(logprobs),
            tuple(prompt_logprobs),
            pack_ids(nans),
        )

    def _prompt_logprobs(self, index: int, row: FakeRow, num_tokens: int) -> RowPromptLogprobs | None:
        wanted = row.new_row.sampling_params.prompt_logprobs
        start = max(1, row.num_computed - num_tokens)
        end = min(row.num_computed, row.new_row.prompt_len)
        if wanted is None or start >= end:
            return None
        ids = pack_ids(token for token in row.tokens[start:end] for _ in range(wanted + 1))
        return RowPromptLogprobs(index, start, ids, ids, pack_ids(range(start, end)))
