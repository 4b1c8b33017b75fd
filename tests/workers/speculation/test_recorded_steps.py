"""Steps that verify drafts run in one call, like decode steps."""

from collections import Counter

import numpy as np
import pytest

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.backends.cpu import recorded_forward
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.host_runner import host_runner

from ..tiny_models.checkpoints import write_checkpoint
from ..tiny_models.tiny_model import write_tiny_model

MAX_LEN, BLOCK_SIZE, NUM_ROWS = 256, 16, 4
AROUND = {"scan_logits"}  # what sampling calls


class Wrong:
    """Drafts as many tokens as allowed; they are unlikely to be right."""

    def draft(self, requests):
        return [np.full(request.most, 7 + request.row, np.int32) for request in requests]


class Counted:
    """A runner, and the kernels that its steps call."""

    def __init__(self, pool, path):
        self.pool = pool
        config, group = ModelConfig(device="cpu"), TensorParallelGroup()
        model = load_model(str(path), config, group, lambda done, total: None, pool)
        layout = CacheLayout.of(model.geometry, MAX_LEN, BLOCK_SIZE)
        self.blocks_of_row, self.num_groups = -(-MAX_LEN // layout.block_size), len(layout.groups.windows)
        num_blocks = NUM_ROWS * self.num_groups * self.blocks_of_row
        cache = KVCache.allocate(model.geometry, num_blocks, layout.block_size, groups=layout.groups)
        self.runner = host_runner(model, cache, group, SchedulerConfig(max_num_seqs=NUM_ROWS), MAX_LEN, drafter=Wrong())

    def calls(self, *chunks: Chunk, joins=(), leaves=(), new=()) -> Counter:
        calls = Counter()

        def watch(name, kernel):
            def call(*arguments):
                calls[name] += 1
                kernel(*arguments)

            return call

        sets = {"decode_joins": pack_ids(joins), "decode_leaves": pack_ids(leaves)}
        with self.pool.watched(watch, programs=True):
            self.runner.execute(SchedulerOutput(1, 1, new, chunks=chunks, **sets))
        return calls

    def programs(self, *chunks: Chunk, **changes) -> int:
        return self.calls(*chunks, **changes)["run_program"]

    def start(self, *rows: int) -> None:
        blocks, groups = self.blocks_of_row, self.num_groups
        new = [
            NewRow(
                row,
                pack_ids(3 + (7 * row + i) % 200 for i in range(9)),
                prompt_len=9,
                num_computed_tokens=0,
                block_tables=tuple(
                    pack_ids(range(table * blocks, (table + 1) * blocks))
                    for table in range(row * groups, (row + 1) * groups)
                ),
                seed=row,
                eos_token_ids=(),
                sampling_params=SamplingParams(temperature=0.0),
            )
            for row in rows
        ]
        assert self.programs(*(Chunk(row, 9) for row in rows), new=tuple(new)) == 0
        self.calls(Chunk(rows[0], 1, 15))  # buffers grow, which ends recordings


@pytest.fixture
def counted(make_pool, tmp_path):
    pool = make_pool()
    if pool is None:
        pytest.skip("the kernels are not built")
    return Counted(pool, write_tiny_model(tmp_path))


def test_one_call_runs_the_layers_and_the_output_head(counted):
    counted.start(0)
    assert [counted.programs(Chunk(0, 1, 4)) for _ in range(3)] == [0, 0, 1]
    assert set(counted.calls(Chunk(0, 1, 4))) == {"run_program"} | AROUND


def test_each_number_of_rows_and_tokens_goes_through_python_twice(counted):
    """The second time it is recorded; a size that does not recur is not."""
    counted.start(0, 1, 2)
    assert counted.programs(Chunk(0, 1, 4), Chunk(1, 1, 2)) == 0
    assert counted.programs(Chunk(0, 1, 5), Chunk(1, 1, 1)) == 0
    assert counted.programs(Chunk(0, 1, 3), Chunk(2, 1, 3)) == 1, "other rows have the drafts"
    assert counted.programs(Chunk(0, 1, 4), Chunk(1, 1, 3)) == 0
    assert counted.programs(Chunk(0, 1, 6), joins=[1]) == 1, "one of the two rows decodes"


def test_a_row_without_drafts_costs_a_decode_step(counted):
    counted.start(0, 1)
    assert counted.programs(joins=[0, 1]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wrong, "draft", lambda self, requests: [np.zeros(0, np.int32) for _ in requests])
        assert counted.programs(Chunk(0, 1, 8), leaves=[0]) == 1
    assert counted.programs(joins=[0]) == 1


def test_the_last_used_recordings_are_kept(counted, monkeypatch):
    monkeypatch.setattr(recorded_forward, "MAX_RECORDINGS", 2)
    counted.start(0)
    assert [counted.programs(Chunk(0, 1, n)) for n in (4, 4, 4, 3, 3, 4, 2, 4, 3)] == [0, 0, 1, 0, 0, 1, 0, 1, 0]


NIGHTLY = ["qwen2-moe", "gpt-oss", "deepseek-v2", "gemma2", "qwen3", "phi", "bloom-even", "jamba", "qwen3-next", "lfm2"]


@pytest.mark.parametrize("variant", ["falcon-h1", *(pytest.param(one, marks=pytest.mark.nightly) for one in NIGHTLY)])
def test_families_run_in_one_call(make_pool, tmp_path, variant):
    """No torch operation is in a step with several tokens of a row that is not in a decode step."""
    write_checkpoint(variant, tmp_path)
    pool = make_pool()
    if pool is None:
        pytest.skip("the kernels are not built")
    counted = Counted(pool, tmp_path)
    counted.start(0, 1)
    assert [counted.programs(Chunk(0, 1, 4), Chunk(1, 1, 2)) for _ in range(2)] == [0, 0]
    assert counted.programs(Chunk(0, 1, 3), Chunk(1, 1, 3)) == 1
