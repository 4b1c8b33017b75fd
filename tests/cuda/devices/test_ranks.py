"""Two and four ranks of a CUDA server in one process: graphs, sampler and collectives, with an emulated device.

Ranks enter each collective in a random order drawn from a seed, as on a busy machine.
"""

from contextlib import contextmanager

import pytest
import torch

from paged_serve.protocol.messages.config import Config, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, SchedulerOutput
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.distributed.rank_links import RankLinks
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.cuda_graphs import ladder
from paged_serve.workers.runner.cuda_memory import cuda_budget
from paged_serve.workers.runner.cuda_runner import cuda_runner
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.runner.steps import Steps

from ...workers.ranks import Ranks
from ...workers.runner.test_steps_in_flight import BLOCK_SIZE, MAX_LEN, NUM_ROWS, STEADY, new_row, numbered
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from .emulated_device import (
    Arrivals,
    CaptureError,
    EmulatedDevice,
    EmulatedNccl,
    EmulatedPool,
    ExchangeError,
    Stream,
    StreamLauncher,
)

SCHEDULER = SchedulerConfig(max_num_seqs=NUM_ROWS, max_num_batched_tokens=64, pipeline_depth=2)
GREEDY = SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, top_k=40, repetition_penalty=1.3, logprobs=2)
PLANS = numbered(
    [
        SchedulerOutput(0, 0, new_rows=(new_row(0, 9, GREEDY), new_row(2, 20, DRAWN)), chunks=(Chunk(0, 9),)),
        SchedulerOutput(0, 0, decode_joins=pack_ids([0]), chunks=(Chunk(2, 20),)),
        SchedulerOutput(0, 0, decode_joins=pack_ids([2])),
        STEADY,
        SchedulerOutput(0, 0, new_rows=(new_row(1, 5, DRAWN),), chunks=(Chunk(1, 5),)),
        SchedulerOutput(0, 0, decode_joins=pack_ids([1])),
        STEADY,
        SchedulerOutput(0, 0, decode_leaves=pack_ids([0, 2])),
        STEADY,
    ]
)


@pytest.fixture(scope="module")
def emulator():
    return EmulatorLauncher()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


class EmulatedRanks:
    """Ranks that each have their own device, stream and model."""

    def __init__(self, size, place, emulator, folder, seed):
        self.size = size
        self.devices = [EmulatedDevice() for _ in range(size)]
        self._links = [None] * size
        self._arrivals = Arrivals(size, seed)
        self._place, self._emulator, self._folder = place, emulator, folder
        self._ranks = Ranks(size, place, self._join)

    def _join(self, rank):
        links = self._links[rank] = RankLinks.join(rank, self.size, str(self._place), 60)
        nccl = EmulatedNccl(rank, self.size, links, self.devices[rank].stream, self._arrivals)
        return TensorParallelGroup(rank, self.size, nccl=nccl)

    def model(self, group):
        launcher = StreamLauncher(self._emulator, self.devices[group.rank].stream)
        backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
        return load_model(self._folder, ModelConfig(device="cpu"), group, lambda done, total: None, backend=backend)

    def on_each(self, work):
        return self._ranks.on_each(work)

    def close(self):
        self._ranks.close()
        for links in self._links:
            links.close()


@pytest.fixture
def start(tmp_path, emulator, folder):
    """Starts ranks, which end with the test."""
    made = []

    @contextmanager
    def started(size, seed):
        ranks = EmulatedRanks(size, tmp_path / f"meet-{len(made)}", emulator, folder, seed)
        made.append(ranks)
        try:
            yield ranks
        finally:
            ranks.close()

    return started


def new_cache(model, group):
    cache = KVCache.allocate(model.geometry, NUM_ROWS * MAX_LEN // BLOCK_SIZE, BLOCK_SIZE, group.size)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    return cache


def contents(output):
    """The output without its duration."""
    return output.token_ids, output.logprobs, output.prompt_logprobs, output.nan_indices


class OneRank:
    """The model of `folder` on an emulated device of its own."""

    def __init__(self, emulator, folder):
        self._emulator, self._folder = emulator, folder
        self.devices = (EmulatedDevice(),)

    def model(self, group):
        launcher = StreamLauncher(self._emulator, self.devices[0].stream)
        backend = CudaBackend(launcher, "sm_90a", multiprocessors=2, device="cpu")
        return load_model(self._folder, ModelConfig(device="cpu"), group, lambda done, total: None, backend=backend)


def with_graphs(ranks, group):
    """Run as a worker does: capture all graphs, then execute plans with two steps in flight."""
    model, device = ranks.model(group), ranks.devices[group.rank]
    steps = Steps(cuda_runner(model, new_cache(model, group), group, SCHEDULER, MAX_LEN, device), device.mark)
    progress = []
    steps.prepare(lambda *state: progress.append(state))
    assert progress[-1] == (len(ladder(NUM_ROWS)),) * 2
    outputs, captured = [], device.num_captured
    for plan in PLANS:
        steps.launch(plan)
        if plan.step > 1:
            outputs.append(take(steps))
    outputs.append(take(steps))
    assert device.num_captured == captured, "a graph was captured during the steps"
    return [contents(output) for output in outputs]


def take(steps):
    while (output := steps.take()) is None:
        pass
    return output


def without_graphs(ranks, group):
    model = ranks.model(group)
    sampler = DeviceSampler(model.backend.launcher, model.geometry.vocab_size, "cpu")
    sizes = {"num_rows": NUM_ROWS, "max_model_len": MAX_LEN, "max_tokens": 64, "steps_in_flight": 1}
    runner = ModelRunner(model, new_cache(model, group), group, sampler, **sizes)
    return [contents(runner.execute(plan)) for plan in PLANS]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_with_graphs_give_the_bytes_of_ranks_without(start, size, seed):
    with start(size, seed) as ranks:
        expected = ranks.on_each(lambda group: without_graphs(ranks, group))
        found = ranks.on_each(lambda group: with_graphs(ranks, group))
    assert found[0] == expected[0]
    assert not any(nan_indices for _, _, _, nan_indices in found[0])
    tokens = [[token_ids for token_ids, *_ in of_rank] for of_rank in found]
    assert all(of_rank == tokens[0] for of_rank in tokens)
    assert len({unpack_ids(token_ids)[-1] for token_ids in tokens[0] if token_ids}) > 3


def test_one_rank_gives_the_same_bytes_with_and_without_graphs(emulator, folder):
    rank, group = OneRank(emulator, folder), TensorParallelGroup()
    assert with_graphs(rank, group) == without_graphs(rank, group)


def test_a_rank_that_captures_out_of_turn_is_detected(start):
    """The emulated nccl detects it: rank 0 runs a step of padding, the others run the plan."""

    def work(group):
        model = ranks.model(group)
        device = ranks.devices[group.rank]
        steps = Steps(cuda_runner(model, new_cache(model, group), group, SCHEDULER, MAX_LEN, device), device.mark)
        steps.prepare(lambda done, of: None)
        for plan in PLANS[:4]:
            steps.execute(plan)
        if group.rank == 0:
            steps.prepare(lambda done, of: None)
        steps.execute(PLANS[4])

    with start(2, 1) as ranks, pytest.raises(ExchangeError, match=r"different collectives: allgather .*\[4, 64\]"):
        ranks.on_each(work)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool(x[0] > 0),
        lambda x: x.nonzero(),
        lambda x: torch.empty(3, pin_memory=True),
    ],
)
def test_an_operation_that_a_capture_cannot_contain_is_refused(run):
    with pytest.raises(CaptureError):
        EmulatedPool(Stream()).capture(lambda: run(torch.ones(3)))


def test_a_capture_computes_nothing_and_a_replay_all_of_it():
    x, out = torch.arange(4.0), torch.zeros(2, 4)

    def run():
        out[1].copy_((x * 2).view(2, 2).flatten() + 1)

    replay = EmulatedPool(Stream()).capture(run)
    assert not out.any()
    x += 1
    replay()
    assert out.tolist() == [[0, 0, 0, 0], [3, 5, 7, 9]]


class CountedDevice(EmulatedDevice):
    """A device with 100,000 bytes: 1,000 are used before the first graph, which takes 500; each later one takes 40."""

    def __init__(self, stream):
        super().__init__(stream)
        self.seen = []

    def total_bytes(self):
        return 100_000

    def used_bytes(self):
        self.seen.append(self.num_captured)
        return 1_000 + 500 + 40 * (self.num_captured - 1)

    def peak_bytes(self, run):
        run()
        return 7_000


def test_the_cache_of_a_rank_gets_the_memory_left_by_a_full_step_and_all_graphs(start):
    """Two of 11 sizes are measured; this leaves nothing in memory, and ranks call the same collectives in it."""
    rows = 64
    config = Config(scheduler=SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=rows))
    with start(2, 3) as ranks:
        devices = [CountedDevice(device.stream) for device in ranks.devices]

        def budget(group):
            return cuda_budget(config, ranks.model(group), group, devices[group.rank])

        found = ranks.on_each(budget)
    num_graphs = len(ladder(rows))
    assert num_graphs == 11
    assert found == [90_000 - 7_000 - 1_000 - 500 - 40 * (num_graphs - 1)] * 2
    assert all(device.seen == [1, 2] for device in devices)
