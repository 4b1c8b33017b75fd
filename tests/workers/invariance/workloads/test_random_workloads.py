"""The determinism contract as a property of whole workloads: requests have the same bits alone and in any batch.

Each workload is drawn from a seed (random_workload.py). The real engine core plans for the real model runner on the CPU
kernels: requests arrive and end, share prefixes, are chunked, preempted, aborted, and computed again after their worker
has died. Then each request is computed alone in a new engine with enough memory for everything.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.decoder import Model

from ...one_process import NotWaiting, OneProcess, Received
from ...ranks import SharedModel
from .random_workload import MAX_MODEL_LEN, Workload, draw_workload
from .workload_models import Models

# Not 1 and 5, whose model is the demo model, as much work as all others; 52: two threads share the attention of a long
# prompt; 55: four ranks, int8; 551: two ranks lose their state.
SLICE = (0, 2, 3, 4, 6, 7, 52, 55, 551)
NIGHTLY = range(1000)
MAX_TICKS = 20_000
ALONE = Config(
    cache=CacheConfig(block_size=64, enable_prefix_caching=False),
    scheduler=SchedulerConfig(
        max_num_seqs=1, max_num_batched_tokens=MAX_MODEL_LEN, policy="priority", pipeline_depth=1
    ),
)


@pytest.fixture(scope="module")
def load(tmp_path_factory, chosen_isa):
    """Loads the model of a ModelChoice; each is loaded once."""
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    models = Models(tmp_path_factory.mktemp("models"), chosen_isa)
    yield models.load
    models.close()


def alone(model: Model, request: EngineCoreRequest, process_type: type[OneProcess] = OneProcess) -> dict[int, Received]:
    """The output of each sequence of the request when nothing else runs, not even its other sequences."""
    process = process_type(model, ALONE, num_blocks=MAX_MODEL_LEN // 64 + 1, max_model_len=MAX_MODEL_LEN)
    process.add(request)
    while not process.is_idle:
        for act in (process.plan, process.execute, process.apply, process.read):
            act()
    return process.received


def together(
    model: Model | SharedModel, workload: Workload, process_type: type[OneProcess] = OneProcess
) -> tuple[dict[int, Received], Counter[str]]:
    """The output of each request, and the faults that occurred."""
    rng, outcomes = random.Random(workload.seed), Counter[str]()
    process = process_type(model, workload.config, workload.num_blocks, MAX_MODEL_LEN)
    process.engine.clients[b"client:0"].credit = workload.client_credit
    last_arrival = max(tick for tick, _ in workload.arrivals)
    for tick in range(MAX_TICKS):
        for _, request in (arrival for arrival in workload.arrivals if arrival[0] == tick):
            process.add(request)
        if tick in workload.restart_ticks:
            outcomes["restarts"] += not process.engine.is_idle
            process.replace_workers()
        if tick in workload.abort_ticks and (live := list(process.engine.clients[b"client:0"].streams)):
            process.abort(rng.choice(live))
        for act in (process.plan, process.execute, process.apply):
            if rng.random() < 0.8:
                act()
        if rng.random() < workload.client_pace:
            process.read()
        if tick > last_arrival and process.is_idle:
            break
    else:
        raise AssertionError(f"some requests have not ended after {MAX_TICKS} ticks")
    check_invariants(process.engine)
    scheduler, pool = process.engine.scheduler, process.engine.kv_cache.pool
    assert pool.num_free == pool.num_blocks
    outcomes["steps"] = scheduler.step
    outcomes["preemptions"] = scheduler.num_preemptions
    outcomes["cached tokens"] = process.engine.counters.prefix_cache_hits
    return process.received, outcomes


def cut_short(received: Received, count: int) -> Received:
    """The expected output of a sequence that is aborted after `count` tokens."""
    if not count:
        return Received(finish_reason=FinishReason.ABORT)
    parts = [column[: len(column) * count // len(received.token_ids)] for column in received.logprobs]
    return Received(received.token_ids[:count], parts, received.prompt_logprobs if count else None, FinishReason.ABORT)


def run_slice(load, seeds: Iterable[int], draw: Callable[[int], Workload], *more_events: str) -> Counter[str]:
    """Runs the workloads of `seeds`, in which these events must occur."""
    total = sum((run_workload(load, seed, draw=draw) for seed in seeds), Counter[str]())
    for event in ("cached tokens", "preemptions", "restarts", *more_events):
        assert total[event], f"there were no {event}, so the slice does not test them"
    return total


def run_workload(
    load,
    seed: int,
    process_type: type[OneProcess] = OneProcess,
    alone_type: type[OneProcess] = OneProcess,
    draw: Callable[[int], Workload] = draw_workload,
) -> Counter[str]:
    workload = draw(seed)
    try:
        single = load(replace(workload.choice, threads=1, ranks=1))
        shared = load(workload.choice if process_type is OneProcess else replace(workload.choice, ranks=1))
        found, outcomes = together(shared, workload, process_type)
        for _, request in workload.arrivals:
            for stream_id, wanted in alone(single, request, alone_type).items():
                got = found[stream_id]
                is_aborted = got.finish_reason is FinishReason.ABORT
                outcomes["aborts"] += is_aborted
                assert got == (cut_short(wanted, len(got.token_ids)) if is_aborted else wanted), request.sampling_params
    except BaseException as error:
        error.add_note(f"{workload.choice} {workload.config.cache} {workload.config.scheduler} {workload.num_blocks=}")
        if draw is draw_workload:
            test = f"{Path(__file__)}::{test_a_random_workload_gives_each_request_the_same_bytes.__name__}[{seed}]"
            error.add_note(f"to repeat: python -m pytest -m nightly '{test}'")
        raise
    outcomes.update(workloads=1, requests=len(workload.arrivals), streams=len(found), ranks=workload.choice.ranks)
    outcomes[workload.choice.dtype] += 1
    outcomes["vectors"] += sum(received.pooled is not None for received in found.values())
    outcomes["tokens"] += sum(len(received.token_ids) for received in found.values())
    return outcomes


@pytest.mark.long_in_software  # each seed draws its instruction set, the portable one among them
def test_a_slice_of_random_workloads_gives_each_request_the_same_bytes(load):
    total = sum((run_workload(load, seed) for seed in SLICE), Counter[str]())
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"
    assert total["float16"], "no model was computed in float16"
    for event in ("vectors", "cached tokens", "preemptions", "aborts", "restarts"):
        assert total[event], f"there were no {event}, so the slice shows nothing of them"


@pytest.mark.long_in_software  # each seed draws its instruction set, the portable one among them
def test_a_workload_with_steps_in_flight_gives_each_request_the_same_bytes(load):
    total = sum((run_workload(load, seed, NotWaiting) for seed in SLICE[:-2]), Counter[str]())
    for event in ("cached tokens", "preemptions", "aborts", "restarts"):
        assert total[event], f"there were no {event}, so the slice shows nothing of them"


@pytest.fixture(scope="module")
def total():
    total = Counter[str]()
    yield total
    print(dict(total))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", NIGHTLY)
def test_a_random_workload_gives_each_request_the_same_bytes(load, total, seed):
    total += run_workload(load, seed)
