"""A small random planner: it admits, chunks, pauses, preempts, shares blocks and asks for drafts at random.

It replaces the engine core and does no scheduling; it only obeys the rules of the protocol. Blocks behind the windows
of a KV group are given to other rows at once, or kept for requests that share the prefix.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput
from paged_serve.workers.geometry.layer_options import AttentionMask
from paged_serve.workers.runner.model_runner import ModelRunner

GIVEN_BACK = -1  # replaces a block behind a window


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    num_output: int
    ends: frozenset[int] = frozenset()  # tokens that end the output
    adapter: int = 0  # its place


@dataclass
class Result:
    """The output of a request: tokens, and the bytes of every logprob."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    prompt_logprobs: dict[int, tuple[bytes, bytes, bytes]] = field(default_factory=dict)  # by prompt position
    failure: str = ""  # why no token can follow

    def is_done(self, request: Request) -> bool:
        length = len(self.token_ids)
        return length == request.num_output or bool(self.failure) or self.token_ids[-1:] in [[e] for e in request.ends]


@dataclass
class Running:
    request: Request
    result: Result
    row: int
    tables: list[list[int]]  # for each KV group
    num_computed: int
    length: int  # tokens of the row, including sampled ones
    decoding: bool = False
    num_drafts: int = 0  # of its chunk in this step


@dataclass
class Odds:
    """The probability of each event in a step."""

    admit: float = 0.5
    chunk: float = 0.6
    whole_chunk: float = 0.2
    preempt: float = 0.05
    pause: float = 0.1  # an unfinished row leaves the decode set
    share: float = 0.7  # a cached prefix is used if there is one
    drop: float = 0.7  # a block behind a window is not kept in the cache
    verify: float = 0.0  # a chunk of the last token verifies drafts
    most_drafts: int = 8


class Planner:
    """Runs requests through a runner until all have their output."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        num_rows: int,
        num_blocks: int,
        block_size: int,
        seed: int,
        groups: tuple[KVGroup, ...] = (KVGroup(),),
    ):
        self.runner, self.block_size, self.groups = runner, block_size, groups
        self.rng = random.Random(seed)
        self.free_blocks = self.rng.sample(range(num_blocks), num_blocks)
        self.free_rows = self.rng.sample(range(num_rows), num_rows)
        # (adapter, prefix) -> block with its last tokens
        self.cached: list[dict[tuple[int, tuple[int, ...]], int]] = [{} for _ in groups]
        self.users: Counter[int] = Counter()  # rows by block
        self.reused = 0  # blocks that a row released while it ran and another row took
        self.given_back: set[int] = set()
        self.hits = 0  # rows that began with a cached prefix
        self.running: list[Running] = []
        self.step = 0
        self.drafts: Counter[str] = Counter()  # made, accepted

    def play(self, requests: list[Request], odds: Odds) -> list[Result]:
        results = [Result() for _ in requests]
        self.waiting = list(zip(requests, results, strict=True))
        self.rng.shuffle(self.waiting)
        while self.waiting or self.running:
            self.one_step(odds)
        return results

    def one_step(self, odds: Odds) -> None:
        leaves = self.finish_and_preempt(odds)
        new_rows = []
        while self.waiting and self.free_rows and self.rng.random() < odds.admit:
            new_rows.append(self.admit(odds))
        joins = []
        for one in self.running:
            ready = one.length - one.num_computed == 1
            if ready and not one.decoding and self.rng.random() > odds.pause:
                one.decoding = True
                joins.append(one.row)
            elif one.decoding and self.rng.random() < odds.pause:
                one.decoding = False
                leaves.append(one.row)
        chunks = self.choose_chunks(odds)
        decodes = sorted((one for one in self.running if one.decoding), key=lambda one: one.row)
        work = [(one, 1) for one in decodes] + chunks
        rows, blocks = self.grow(work)
        plan = SchedulerOutput(
            epoch=1,
            step=self.step,
            new_rows=tuple(new_rows),
            extended_tables=rows,
            extended_block_ids=blocks,
            decode_leaves=pack_ids(row for row in leaves if row not in joins),
            decode_joins=pack_ids(joins),
            chunks=tuple(Chunk(one.row, count, one.num_drafts) for one, count in chunks),
        )
        self.step += 1
        self.apply(work, self.runner.execute(plan), odds)

    def finish_and_preempt(self, odds: Odds) -> list[int]:
        """Rows that leave the decode set permanently; their blocks and row indices are free at once."""
        leaves = []
        for one in list(self.running):
            done = one.result.is_done(one.request)
            if done or self.rng.random() < odds.preempt:
                if one.decoding:
                    leaves.append(one.row)
                if not done:
                    self.waiting.append((one.request, one.result))
                self.running.remove(one)
                self.free_rows.insert(self.rng.randint(0, len(self.free_rows)), one.row)
                for group, table in enumerate(one.tables):
                    self.release(group, [block for block in table if block != GIVEN_BACK])
        return leaves

    def release(self, group: int, blocks: list[int]) -> None:
        """Release blocks of a row; those that are not cached become free when no row uses them."""
        self.users.subtract(blocks)
        kept = set(self.cached[group].values())
        self.free_blocks += [block for block in blocks if not self.users[block] and block not in kept]

    def admit(self, odds: Odds) -> NewRow:
        request, result = self.waiting.pop()
        tokens = (*request.prompt, *result.token_ids)
        num_shared, tables = 0, [[] for _ in self.groups]
        if request.params.prompt_logprobs is None and self.rng.random() < odds.share:
            num_shared, tables = self.longest_prefix(request.adapter, tokens)
            self.hits += num_shared > 0
        computed = num_shared * self.block_size
        one = Running(request, result, self.free_rows.pop(), tables, computed, len(tokens))
        self.running.append(one)
        prompt_len, packed = len(request.prompt), tuple(map(pack_ids, tables))
        seed, params, history = request.seed, request.params, bytes([prompt_len % 2])
        row = NewRow(one.row, pack_ids(tokens), prompt_len, computed, packed, seed, (2,), params, history=history)
        return replace(row, adapter=request.adapter)

    def longest_prefix(self, adapter: int, tokens: tuple[int, ...]) -> tuple[int, list[list[int]]]:
        """The longest cached prefix in whole blocks, shorter than `tokens`; groups with windows need only its end."""
        for count in range((len(tokens) - 1) // self.block_size, 0, -1):
            tables = [self.cached_table(group, adapter, tokens, count) for group in range(len(self.groups))]
            if None not in tables:
                for table in tables:
                    self.users.update(block for block in table if block != GIVEN_BACK)
                return count, tables
        return 0, [[] for _ in self.groups]

    def cached_table(self, group: int, adapter: int, tokens: tuple[int, ...], count: int) -> list[int] | None:
        first = self.first_needed(self.groups[group], count * self.block_size)
        found = [self.cached[group].get((adapter, tokens[: (i + 1) * self.block_size])) for i in range(first, count)]
        return None if None in found else [GIVEN_BACK] * first + found

    def first_needed(self, group: KVGroup, next_position: int) -> int:
        """The index of the first block that the token at `next_position` attends to."""
        return AttentionMask(group.window, group.attention_chunk).first_seen(next_position) // self.block_size

    def choose_chunks(self, odds: Odds) -> list[tuple[Running, int]]:
        chunks = []
        for one in self.rng.sample(self.running, len(self.running)):
            left = one.length - one.num_computed
            if left and not one.decoding and self.rng.random() < odds.chunk:
                chunks.append((one, left if self.rng.random() < odds.whole_chunk else self.rng.randint(1, left)))
            one.num_drafts = 0
            if left == 1 and chunks and chunks[-1][0] is one and odds.verify and self.rng.random() < odds.verify:
                one.num_drafts = self.rng.randint(1, odds.most_drafts)
        return chunks

    def grow(self, work: list[tuple[Running, int]]) -> tuple[bytes, bytes]:
        tables, blocks = [], []
        for one, count in work:
            for group, table in enumerate(one.tables):
                while len(table) * self.block_size < one.num_computed + count + one.num_drafts:
                    table.append(self.new_block())
                    tables.append(one.row * len(self.groups) + group)
                    blocks.append(table[-1])
        return pack_ids(tables), pack_ids(blocks)

    def new_block(self) -> int:
        """A free block, often the one that was released last."""
        index = -1 if self.rng.random() < 0.5 else self.rng.randrange(len(self.free_blocks))
        block = self.free_blocks.pop(index)
        self.users[block] += 1
        self.reused += block in self.given_back
        self.given_back.discard(block)
        return block

    def apply(self, work: list[tuple[Running, int]], output: ModelRunnerOutput, odds: Odds) -> None:
        assert output.nan_indices == b"", "logits are NaN"
        assert output.step == self.step - 1
        token_ids = list(unpack_ids(output.token_ids))
        logprobs = {entry.index: (entry.token_ids, entry.logprobs, entry.rank) for entry in output.logprobs}
        by_row = {one.row: one for one, _ in work}
        for found in output.prompt_logprobs:
            self.note_prompt_logprobs(by_row[found.row], found)
        failures = {failure.index: failure.reason for failure in output.failures}
        index, verified = 0, zip(unpack_ids(output.num_drafted), unpack_ids(output.num_sampled), strict=True)
        for one, count in work:
            taken = int(one.num_computed + count == one.length)
            if one.num_drafts:
                made, taken = next(verified)
                assert 1 <= taken <= made + 1 <= one.num_drafts + 1
                self.drafts.update(made=made, accepted=taken - 1)
            for number in range(index, index + taken):
                self.take(one, token_ids[number], logprobs.pop(number, None), failures.get(number, ""))
            index += taken
            one.num_computed += count + max(0, taken - 1)
            one.length += taken
            if one.result.is_done(one.request):  # tokens past its end are computed, but not known
                one.num_computed = min(one.num_computed, len(one.request.prompt) + len(one.result.token_ids))
            self.cache_prefixes(one)
            self.free_behind_windows(one, odds)
        assert (index, logprobs, list(verified)) == (len(token_ids), {}, [])

    def take(self, one: Running, token: int, logprobs: tuple[bytes, bytes, int] | None, failure: str) -> None:
        """Store the next token of a row, unless its output has ended."""
        if one.result.is_done(one.request):
            return
        if failure:
            one.result.failure = failure
            return
        one.result.token_ids.append(token)
        assert (logprobs is not None) == (one.request.params.logprobs is not None)
        if logprobs is not None:
            one.result.logprobs.append(logprobs)

    def note_prompt_logprobs(self, one: Running, found) -> None:
        """Store logprobs by position; a position that is computed again after a preemption must have the same ones."""
        count = len(found.ranks) // 4
        width = len(found.token_ids) // count
        for place in range(count):
            cut = slice(place * width, (place + 1) * width)
            entry = (found.token_ids[cut], found.logprobs[cut], found.ranks[4 * place : 4 * place + 4])
            assert one.result.prompt_logprobs.setdefault(found.start + place, entry) == entry

    def cache_prefixes(self, one: Running) -> None:
        tokens = (*one.request.prompt, *one.result.token_ids)
        for cached, table in zip(self.cached, one.tables, strict=True):
            for index in range(one.num_computed // self.block_size):
                if table[index] != GIVEN_BACK:
                    cached.setdefault((one.request.adapter, tokens[: (index + 1) * self.block_size]), table[index])

    def free_behind_windows(self, one: Running, odds: Odds) -> None:
        """Release the blocks behind windows, although the row's table on the worker still contains them."""
        tokens = (*one.request.prompt, *one.result.token_ids)
        for group, table in enumerate(one.tables):
            for index in range(self.first_needed(self.groups[group], one.num_computed)):
                if (block := table[index]) != GIVEN_BACK:
                    table[index] = GIVEN_BACK
                    prefix = one.request.adapter, tokens[: (index + 1) * self.block_size]
                    is_cached = self.cached[group].get(prefix) == block
                    if is_cached and self.users[block] == 1 and self.rng.random() < odds.drop:
                        del self.cached[group][prefix]
                    self.release(group, [block])
                    self.given_back.update({block} & set(self.free_blocks[-1:]))
