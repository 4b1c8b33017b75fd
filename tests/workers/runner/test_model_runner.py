"""The determinism contract: a request has the same tokens and logprobs alone and in any batch, bit for bit."""

import random

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.model_runner import ModelRunner

from ..host_runners import new_host_runner
from ..invariance.planner import Odds, Planner, Request
from ..tiny_models.tiny_model import VOCAB_SIZE, write_tiny_model

NUM_ROWS, NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 8, 160, 16, 128


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def folder(request, tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture(scope="module")
def model(folder, pool, row_variant):
    return load(folder, pool)


def load(folder, pool):
    return load_model(folder, ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None, pool)


def new_runner(model) -> ModelRunner:
    cache = KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE)
    return new_host_runner(model, cache, NUM_ROWS, MAX_LEN)


def new_planner(model, seed: int) -> Planner:
    return Planner(new_runner(model), num_rows=NUM_ROWS, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, seed=seed)


def random_params(rng: random.Random) -> SamplingParams:
    options = {}
    if rng.random() < 0.4:
        options |= {"temperature": 0.0}
    elif rng.random() < 0.7:
        options |= {"temperature": rng.uniform(0.2, 2.0), "top_p": rng.choice([1.0, 0.9, 0.5])}
    if rng.random() < 0.3:
        options |= {"top_k": rng.choice([1, 5, 50]), "min_p": rng.choice([0.0, 0.05])}
    if rng.random() < 0.3:
        options |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": rng.choice([0.0, 0.7])}
    if rng.random() < 0.2:
        options |= {"min_tokens": 4, "stop_token_ids": (5, 6), "logit_bias": {2: 20.0, 7: 3.0}}
    if rng.random() < 0.1:
        options |= {"allowed_token_ids": tuple(range(40, 90)), "bad_words_token_ids": ((41,), (50, 51))}
    if rng.random() < 0.4:
        options |= {"logprobs": rng.choice([0, 3, -1])}
    if rng.random() < 0.25:
        options |= {"prompt_logprobs": rng.choice([0, 2, -1])}
    return SamplingParams(**options, max_tokens=32)


def random_requests(rng: random.Random) -> list[Request]:
    """Requests of which several have a common prefix to share."""
    common = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 50))]
    requests = []
    for _ in range(rng.randint(2, 10)):
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
        prompt = (*(common if rng.random() < 0.6 else ()), *own)
        requests.append(Request(prompt, random_params(rng), rng.randrange(2**63), rng.randint(1, 20)))
    return requests


def same_alone_and_together(model, seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng)
    odds = Odds(
        admit=rng.uniform(0.2, 1),
        chunk=rng.uniform(0.3, 1),
        whole_chunk=rng.random(),
        preempt=rng.choice([0, 0.03, 0.1]),
        pause=rng.choice([0, 0.1, 0.3]),
        share=rng.choice([0, 1]),
    )
    together = new_planner(model, seed).play(requests, odds)
    undisturbed = Odds(admit=1, chunk=1, whole_chunk=1, preempt=0, pause=0, share=0)
    for request, found in zip(requests, together, strict=True):
        (alone,) = new_planner(model, 0).play([request], undisturbed)
        assert found == alone
        wanted = request.params.prompt_logprobs is not None
        assert sorted(found.prompt_logprobs) == (list(range(1, len(request.prompt))) if wanted else [])


@pytest.mark.parametrize("seed", range(4))
def test_a_request_gets_the_same_bytes_alone_and_in_any_batch(model, seed):
    same_alone_and_together(model, seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(10))
def test_a_thousand_workloads_give_the_same_bytes(model, batch):
    for seed in range(1000 + 50 * batch, 1050 + 50 * batch):
        same_alone_and_together(model, seed)


def test_the_number_of_threads_changes_nothing(folder, make_pool):
    """The workload is small because threads that share few cores slow each other down."""
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    requests = [Request(tuple(range(3, 60)), SamplingParams(logprobs=-1), 5, 3), Request((9,), SamplingParams(), 6, 4)]
    results = []
    for threads in (1, 2):
        model = load(folder, make_pool(threads))
        results.append(new_planner(model, seed=3).play(requests, Odds(admit=1)))
    assert results[0] == results[1]


def new_row(row: int, prompt: list[int], params: SamplingParams, block: int) -> NewRow:
    return NewRow(row, pack_ids(prompt), len(prompt), 0, (pack_ids([block]),), 1, (2,), params)


def test_results_are_in_the_order_of_the_plan(model):
    """Decode rows come first, ascending, in whatever order they joined; then completed chunks in plan order."""
    greedy = SamplingParams(temperature=0.0)
    prompts = {5: [11, 12], 1: [21, 22, 23], 3: [31], 6: [41, 42, 43], 0: [51, 52]}
    alone = {}
    for row, prompt in prompts.items():
        plan = SchedulerOutput(1, 0, (new_row(row, prompt, greedy, 0),), chunks=(Chunk(row, len(prompt)),))
        runner = new_runner(model)
        first = runner.execute(plan).token_ids
        alone[row] = (first, runner.execute(SchedulerOutput(1, 1, decode_joins=pack_ids([row]))).token_ids)
    runner = new_runner(model)
    early = tuple(new_row(row, prompts[row], greedy, row) for row in (5, 1, 3))
    chunks = (Chunk(5, 2), Chunk(1, 3), Chunk(3, 1))
    assert runner.execute(SchedulerOutput(1, 0, early, chunks=chunks)).token_ids == b"".join(
        alone[row][0] for row in (5, 1, 3)
    )
    late = tuple(new_row(row, prompts[row], greedy, row) for row in (6, 0))
    plan = SchedulerOutput(1, 1, late, decode_joins=pack_ids([5, 1, 3]), chunks=(Chunk(6, 2), Chunk(0, 2)))
    expected = [alone[1][1], alone[3][1], alone[5][1], alone[0][0]]  # row 6 is not at its end: it samples nothing
    assert runner.execute(plan).token_ids == b"".join(expected)
    plan = SchedulerOutput(1, 2, decode_leaves=pack_ids([1, 3, 5]), chunks=(Chunk(6, 1),))
    assert runner.execute(plan).token_ids == alone[6][0]


def test_a_step_without_work_returns_nothing(model):
    output = new_runner(model).execute(SchedulerOutput(1, 9))
    assert (output.step, output.token_ids, output.logprobs, output.nan_indices) == (9, b"", (), b"")


def test_non_finite_logits_are_reported_and_the_other_row_continues(model):
    class Poisoned:
        geometry, backend, device, pooling = model.geometry, model.backend, model.device, model.pooling
        forward = staticmethod(model.forward)
        broken, adapters, needs_all_tokens, weights_bytes = False, None, False, 0

        def logits(self, hidden, out=None):
            logits = model.logits(hidden).clone()
            if self.broken:
                logits[0, 3] = float("nan")
            return logits

    poisoned = Poisoned()
    runners = [new_runner(poisoned), new_runner(model)]
    params = SamplingParams(logprobs=1)
    outputs = []
    for runner in runners:
        poisoned.broken = runner is runners[0]
        rows = (new_row(0, [9, 8], params, 0), new_row(1, [7, 6, 5], params, 1))
        outputs.append(runner.execute(SchedulerOutput(1, 0, rows, chunks=(Chunk(0, 2), Chunk(1, 3)))))
    broken, clean = outputs
    assert broken.nan_indices == pack_ids([0])
    assert broken.token_ids == pack_ids([0]) + clean.token_ids[4:]
    assert broken.logprobs == clean.logprobs[1:]
