"""Steps that start before the previous step's tokens are known, against the same steps one at a time."""

import numpy as np
import pytest
import torch
from msgspec import structs

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.backends.torch.backend import SingleRowsBackend, TorchBackend
from paged_serve.workers.batch.device_rows import DeviceRows
from paged_serve.workers.batch.input_batch import step_arrays
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.batch.staging import Staging
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.decode_step import EagerDecodeStep
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.sampling.host_sampling import HostSampling
from paged_serve.workers.sampling.sampler import Sampler

from ..host_runners import new_host_runner
from ..tiny_models.tiny_model import write_tiny_model

NUM_ROWS, MAX_LEN, BLOCK_SIZE = 4, 256, 16
PARAMS = SamplingParams(temperature=0.9, logprobs=3, prompt_logprobs=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_model(folder, ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None)


def new_cache(model):
    return KVCache.allocate(model.geometry, NUM_ROWS * MAX_LEN // BLOCK_SIZE, BLOCK_SIZE)


@pytest.fixture
def waiting(model):
    return new_host_runner(model, new_cache(model), NUM_ROWS, MAX_LEN)


def new_runner(model, **options):
    sampling = HostSampling(Sampler(model.backend.sampling(model.geometry.vocab_size)))
    sizes = {"num_rows": NUM_ROWS, "max_model_len": MAX_LEN, "max_tokens": 64, "steps_in_flight": 3}
    return ModelRunner(model, new_cache(model), TensorParallelGroup(), sampling, **sizes, **options)


@pytest.fixture
def runner(model):
    return new_runner(model)


def new_row(row: int, length: int, params: SamplingParams = PARAMS) -> NewRow:
    """A request that owns the blocks with its row's number."""
    per_row = MAX_LEN // BLOCK_SIZE
    blocks = pack_ids(range(row * per_row, (row + 1) * per_row))
    token_ids = pack_ids([3 + (7 * i + row + length) % 290 for i in range(length)])
    return NewRow(row, token_ids, length, 0, (blocks,), seed=row + length, eos_token_ids=(), sampling_params=params)


def numbered(plans: list[SchedulerOutput]) -> list[SchedulerOutput]:
    return [structs.replace(plan, step=index) for index, plan in enumerate(plans, start=1)]


def same_both_ways(waiting, runner, plans, depth: int = 2):
    """Run all steps through both runners, with `depth` steps started before the first result is taken."""
    plans, started, found = numbered(plans), [], []
    for plan in plans:
        started.append(runner.launch(plan))
        if len(started) == depth:
            found.append(runner.result(started.pop(0)))
    found += [runner.result(step) for step in started]
    expected = [waiting.execute(plan) for plan in plans]
    assert [structs.replace(output, step_s=0.0) for output in found] == [
        structs.replace(output, step_s=0.0) for output in expected
    ]
    return found


STEADY = SchedulerOutput(0, 0)
NO_ROWS = np.zeros(0, np.int64)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_next_token_is_computed_from_one_that_the_host_has_not_seen(waiting, runner, depth):
    start = SchedulerOutput(0, 0, new_rows=(new_row(1, 20), new_row(2, 5)), chunks=(Chunk(1, 20), Chunk(2, 3)))
    more = SchedulerOutput(0, 0, decode_joins=pack_ids([1]), chunks=(Chunk(2, 2),))
    both = SchedulerOutput(0, 0, decode_joins=pack_ids([2]))
    found = same_both_ways(waiting, runner, [start, more, both, *[STEADY] * 30], depth)
    assert len({unpack_ids(output.token_ids)[0] for output in found}) > 10


class PaddedDecodeStep(EagerDecodeStep):
    """Pads decode steps, as CUDA graphs do."""

    def padded(self, num_rows: int) -> int:
        return NUM_ROWS


@pytest.mark.parametrize("backend", [TorchBackend, SingleRowsBackend])
def test_rows_of_padding_change_nothing(tmp_path, backend):
    """Tokens stay the same, and so does the end of the cache, which a slot of -1 would address."""
    folder = write_tiny_model(tmp_path)
    config, group = ModelConfig(device="cpu"), TensorParallelGroup()
    model = load_model(folder, config, group, lambda done, total: None, backend=backend())
    caches = new_cache(model), new_cache(model)
    for tensor in (*caches[1].keys, *caches[1].values):
        tensor.fill_(7.0)
    sampling = HostSampling(Sampler(model.backend.sampling(model.geometry.vocab_size)))
    sizes = {"num_rows": NUM_ROWS, "max_model_len": MAX_LEN, "max_tokens": 64, "steps_in_flight": 3}
    waiting = new_host_runner(model, caches[0], NUM_ROWS, MAX_LEN)
    runner = ModelRunner(model, caches[1], group, sampling, **sizes, decode_step=PaddedDecodeStep())
    start = SchedulerOutput(0, 0, new_rows=(new_row(1, 20), new_row(0, 5)), chunks=(Chunk(1, 20), Chunk(0, 5)))
    same_both_ways(waiting, runner, [start, SchedulerOutput(0, 0, decode_joins=pack_ids([0, 1])), STEADY, STEADY])
    assert all((tensor[-1] == 7.0).all() for tensor in (*caches[1].keys, *caches[1].values))


def test_a_late_token_of_a_finished_request_does_not_reach_the_next_request_of_its_row(waiting, runner):
    """This happens after an abort. The next request's prompt is longer; its second half follows the late token."""
    plans = [
        SchedulerOutput(0, 0, new_rows=(new_row(0, 20),), chunks=(Chunk(0, 20),)),
        SchedulerOutput(0, 0, new_rows=(new_row(0, 60),), chunks=(Chunk(0, 15),)),
        SchedulerOutput(0, 0, chunks=(Chunk(0, 45),)),
    ]
    same_both_ways(waiting, runner, plans)


def test_rows_that_depend_on_earlier_tokens_wait_for_them(waiting, runner):
    params = SamplingParams(temperature=0.0, repetition_penalty=1.9, frequency_penalty=1.5, logprobs=2)
    start = SchedulerOutput(0, 0, new_rows=(new_row(3, 9, params),), chunks=(Chunk(3, 9),))
    same_both_ways(waiting, runner, [start, SchedulerOutput(0, 0, decode_joins=pack_ids([3])), *[STEADY] * 20], 3)


def test_rows_that_join_with_known_tokens_start_from_these(waiting, runner):
    """This happens after a prefix hit that leaves one token: the row decodes at once, without a chunk."""
    start = SchedulerOutput(0, 0, new_rows=(new_row(0, 17),), chunks=(Chunk(0, 16),))
    back = structs.replace(new_row(0, 17), num_computed_tokens=16)
    join = SchedulerOutput(0, 0, new_rows=(back,), decode_joins=pack_ids([0]))
    same_both_ways(waiting, runner, [start, join, STEADY, STEADY])


def test_a_device_keeps_the_last_blocks_and_tokens_it_was_sent():
    rows = DeviceRows(NUM_ROWS, 64, BLOCK_SIZE, 64, "cpu", 2)
    rows.reset(structs.replace(new_row(2, 5), block_tables=(pack_ids([4]),)))
    host = RequestRows(NUM_ROWS, 64, BLOCK_SIZE, 300)
    host.num_blocks[:] = 0, 2, 1, 0
    plan = SchedulerOutput(0, 0, extended_tables=pack_ids([1, 1, 2]), extended_block_ids=pack_ids([7, 8, 9]))
    rows.append_blocks(plan, host.append_blocks(plan))
    rows.reset(structs.replace(new_row(3, 4), block_tables=(pack_ids([5]),)))
    rows.reset(structs.replace(new_row(3, 6), block_tables=(pack_ids([6]),)))
    rows.update()
    assert rows.block_tables[1].tolist() == [0, 0, 7, 8]
    assert rows.block_tables[2, 1] == 9
    assert rows.block_tables[3, 0] == 6
    assert rows.last_token.tolist() == [0, 0, *(unpack_ids(new_row(*row).token_ids)[-1] for row in ((2, 5), (3, 6)))]


def test_a_row_has_a_table_for_each_group():
    host, rows = RequestRows(3, 64, BLOCK_SIZE, 300, num_groups=2), DeviceRows(3, 64, BLOCK_SIZE, 64, "cpu", 2, 2)
    tables = pack_ids([-1, -1, 7]), pack_ids([4, 5, 6])
    new = structs.replace(new_row(1, 50), block_tables=tables, num_computed_tokens=47)
    extended = {"extended_tables": pack_ids([2, 3, 0, 1]), "extended_block_ids": pack_ids([8, 9, 2, 3])}
    plan = SchedulerOutput(0, 0, new_rows=(new,), **extended, chunks=(Chunk(1, 3),))
    rows.apply(plan, host.apply(plan))
    rows.update()
    arrays = step_arrays(host, NO_ROWS, plan.chunks)
    batch = rows.batch(rows.stage(arrays, 1), 50)
    assert [table.tolist() for table in batch.block_tables] == [[[-1, -1, 7, 8]], [[4, 5, 6, 9]]]
    assert [slots.tolist() for slots in batch.slots] == [[127, 128, 129], [111, 144, 145]]
    assert rows.block_tables[0].tolist() == [2, 0, 0, 0, 3, 0, 0, 0]
    with pytest.raises(AssertionError, match="a row has 1 block tables, but the model has 2 KV groups"):
        host.reset(new_row(1, 50))


def test_arrays_of_equal_sizes_have_equal_addresses_and_a_step_in_flight_keeps_its_own():
    staging = Staging("cpu", 64, steps_in_flight=2)
    first = staging.put([np.arange(3), np.arange(5, dtype=np.int32)])
    places = [tensor.data_ptr() for tensor in first]
    again = staging.put([np.arange(3) + 1, np.arange(5, dtype=np.int32) + 1])
    assert [tensor.data_ptr() for tensor in again] == places
    assert [tensor.tolist() for tensor in again] == [[1, 2, 3], [1, 2, 3, 4, 5]]
    [grown] = staging.put([np.arange(100)])
    assert torch.equal(grown, torch.arange(100))


@pytest.mark.parametrize("num_groups", [1, 7])
@pytest.mark.parametrize(("num_rows", "max_tokens"), [(1, 1), (64, 1), (64, 5), (3, 500)])
def test_no_step_moves_what_graphs_read(num_rows, max_tokens, num_groups):
    state = RequestRows(num_rows, 1024, BLOCK_SIZE, 300, num_groups=num_groups)
    rows = DeviceRows(num_rows, 1024, BLOCK_SIZE, max_tokens, "cpu", 2, num_groups)
    first = rows.stage(step_arrays(state, NO_ROWS, ()), 1).token_ids.data_ptr()
    padding = rows.stage(step_arrays(state, NO_ROWS, ()), num_rows)
    state.length[0] = max_tokens
    chunk = rows.stage(step_arrays(state, NO_ROWS, (Chunk(0, max_tokens),)), 1)
    assert padding.token_ids.data_ptr() == chunk.token_ids.data_ptr() == first
