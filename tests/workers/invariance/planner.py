"""A small random planner: it admits, chunks, pauses, preempts and shares blocks at random.

It stands in for the engine core, and knows nothing of scheduling; it only keeps the protocol's rules.
"""

import random
from dataclasses import dataclass, field

from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, NewRow, SchedulerOutput
from paged_serve.workers.runner.model_runner import ModelRunner


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    num_output: int


@dataclass
class Result:
    """What was delivered of a request: tokens, and the bytes of every logprob."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    prompt_logprobs: dict[int, tuple[bytes, bytes, bytes]] = field(default_factory=dict)  # by prompt position


@dataclass
class Running:
    request: Request
    result: Result
    row: int
    blocks: list[int]
    num_computed: int
    length: int  # tokens the row has, sampled ones included
    decoding: bool = False


@dataclass
class Odds:
    """The probability of each event in a step."""

    admit: float = 0.5
    chunk: float = 0.6
    whole_chunk: float = 0.2
    preempt: float = 0.05
    pause: float = 0.1  # leaving the decode set while unfinished
    share: float = 0.7  # using a cached prefix where there is one


class Planner:
    """Plays requests through a runner until all have their output."""

    def __init__(self, runner: ModelRunner, *, num_rows: int, num_blocks: int, block_size: int, seed: int):
        self.runner, self.block_size = runner, block_size
        self.rng = random.Random(seed)
        self.free_blocks = self.rng.sample(range(num_blocks), num_blocks)
        self.free_rows = self.rng.sample(range(num_rows), num_rows)
        self.cached: dict[tuple[int, ...], int] = {}  # whole prefix -> block that holds its last tokens
        self.running: list[Running] = []
        self.step = 0

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
            chunks=tuple(Chunk(one.row, count) for one, count in chunks),
        )
        self.step += 1
        self.apply(work, self.runner.execute(plan))

    def finish_and_preempt(self, odds: Odds) -> list[int]:
        """Rows that leave the decode set for good; their blocks and indices are free at once."""
        leaves = []
        for one in list(self.running):
            done = len(one.result.token_ids) == one.request.num_output
            if done or self.rng.random() < odds.preempt:
                if one.decoding:
                    leaves.append(one.row)
                if not done:
                    self.waiting.append((one.request, one.result))
                self.running.remove(one)
                self.free_rows.insert(self.rng.randint(0, len(self.free_rows)), one.row)
                kept = set(self.cached.values())
                self.free_blocks += [block for block in one.blocks if block not in kept]
        return leaves

    def admit(self, odds: Odds) -> NewRow:
        request, result = self.waiting.pop()
        tokens = (*request.prompt, *result.token_ids)
        blocks: list[int] = []
        if request.params.prompt_logprobs is None and self.rng.random() < odds.share:
            while (end := (len(blocks) + 1) * self.block_size) < len(tokens) and tokens[:end] in self.cached:
                blocks.append(self.cached[tokens[:end]])
        computed = len(blocks) * self.block_size
        one = Running(request, result, self.free_rows.pop(), blocks, computed, len(tokens))
        self.running.append(one)
        prompt_len = len(request.prompt)
        return NewRow(
            one.row, pack_ids(tokens), prompt_len, computed, (pack_ids(blocks),), request.seed, (2,), request.params
        )

    def choose_chunks(self, odds: Odds) -> list[tuple[Running, int]]:
        chunks = []
        for one in self.rng.sample(self.running, len(self.running)):
            left = one.length - one.num_computed
            if left and not one.decoding and self.rng.random() < odds.chunk:
                chunks.append((one, left if self.rng.random() < odds.whole_chunk else self.rng.randint(1, left)))
        return chunks

    def grow(self, work: list[tuple[Running, int]]) -> tuple[bytes, bytes]:
        rows, blocks = [], []
        for one, count in work:
            while len(one.blocks) * self.block_size < one.num_computed + count:
                one.blocks.append(self.free_blocks.pop(self.rng.randrange(len(self.free_blocks))))
                rows.append(one.row)
                blocks.append(one.blocks[-1])
        return pack_ids(rows), pack_ids(blocks)

    def apply(self, work: list[tuple[Running, int]], output: ModelRunnerOutput) -> None:
        assert output.nan_indices == b""
        assert output.step == self.step - 1
        token_ids = list(unpack_ids(output.token_ids))
        logprobs = {entry.index: (entry.token_ids, entry.logprobs, entry.rank) for entry in output.logprobs}
        by_row = {one.row: one for one, _ in work}
        for found in output.prompt_logprobs:
            self.note_prompt_logprobs(by_row[found.row], found)
        index = 0
        for one, count in work:
            one.num_computed += count
            if one.num_computed == one.length:
                one.result.token_ids.append(token_ids[index])
                one.length += 1
                if one.request.params.logprobs is not None:
                    one.result.logprobs.append(logprobs.pop(index))
                index += 1
            self.cache_prefixes(one)
        assert (index, logprobs) == (len(token_ids), {})

    def note_prompt_logprobs(self, one: Running, found) -> None:
        """Cut into positions; a position that is delivered twice, after a preemption, must be the same."""
        count = len(found.ranks) // 4
        width = len(found.token_ids) // count
        for place in range(count):
            cut = slice(place * width, (place + 1) * width)
            entry = (found.token_ids[cut], found.logprobs[cut], found.ranks[4 * place : 4 * place + 4])
            assert one.result.prompt_logprobs.setdefault(found.start + place, entry) == entry

    def cache_prefixes(self, one: Running) -> None:
        tokens = (*one.request.prompt, *one.result.token_ids)
        for index in range(one.num_computed // self.block_size):
            self.cached.setdefault(tokens[: (index + 1) * self.block_size], one.blocks[index])
