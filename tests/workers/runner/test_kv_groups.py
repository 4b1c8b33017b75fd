"""Layers with different windows, with several block tables per row: a request has the same bytes alone, in any batch,
preempted, from cached prefixes and on two ranks, while blocks behind windows move from row to row."""

import random

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.warm_up import warm_up
from paged_serve.workers.runner.host_runner import host_runner

from ..invariance.planner import Odds, Planner, Request
from ..ranks import Ranks, SharedModel
from ..tiny_models.tiny_model import FFN, VOCAB_SIZE, write_tiny_model

NUM_ROWS, BLOCK_SIZE, MAX_LEN = 6, 16, 320
UNDISTURBED = Odds(admit=1, chunk=1, whole_chunk=1, preempt=0, pause=0, share=0)
KINDS = {
    "mixed": {  # two layers with full attention and three with windows, the last of them in a group of its own
        "num_hidden_layers": 5,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    },
    "all slide": {"num_hidden_layers": 2, "sliding_window": 33, "max_window_layers": 0},
    "attention chunks": {  # and a layer with full attention
        "model_type": "llama4_text",
        "architectures": ["Llama4ForCausalLM"],
        "num_hidden_layers": 3,
        "intermediate_size_mlp": FFN,
        "moe_layers": [],
        "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 40,
        "floor_scale": 32,
    },
}
GROUPS = {
    "mixed": (KVGroup(0), KVGroup(24), KVGroup(24)),
    "all slide": (KVGroup(33),),
    "attention chunks": (KVGroup(), KVGroup(attention_chunk=40), KVGroup(attention_chunk=40)),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=["bfloat16", "float16", "float32", "int8 cache"])
def numbers(request):
    return request.param


@pytest.fixture(scope="module")
def load(kind, numbers, tmp_path_factory, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    family = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}
    dtype = getattr(torch, "bfloat16" if numbers == "int8 cache" else numbers)
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), dtype, **family | KINDS[kind])
    config = ModelConfig(device="cpu")
    return lambda group: load_model(folder, config, group, lambda done, total: None, make_pool())


@pytest.fixture(scope="module")
def model(load):
    return load(TensorParallelGroup())


@pytest.fixture(scope="module")
def runner_of(numbers, kind):
    """Makes a runner for a model that a rank has loaded."""

    def make(model, group, num_blocks=160):
        groups = KVGroups.of_model(model.geometry, MAX_LEN)
        assert groups.kinds == GROUPS[kind]
        dtype = torch.int8 if numbers == "int8 cache" else None
        cache = KVCache.allocate(model.geometry, num_blocks, BLOCK_SIZE, group.size, dtype=dtype, groups=groups)
        for layer in range(model.geometry.num_layers):
            for tensor in cache.scales_of(layer) or (cache.keys[layer], cache.values[layer]):
                tensor.fill_(torch.nan)
        return host_runner(model, cache, group, SchedulerConfig(max_num_seqs=NUM_ROWS), MAX_LEN)

    return make


def planner_of(runner, kind: str, seed: int, num_blocks: int = 160) -> Planner:
    sizes = {"num_rows": NUM_ROWS, "num_blocks": num_blocks, "block_size": BLOCK_SIZE}
    return Planner(runner, **sizes, seed=seed, groups=GROUPS[kind])


def random_requests(rng: random.Random) -> list[Request]:
    """Requests several windows long, some with a common prefix."""
    common = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(40, 100))]
    requests = []
    for _ in range(rng.randint(3, 7)):
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
        params = SamplingParams(temperature=rng.choice([0.0, 1.0]), logprobs=3, max_tokens=32)
        prompt = (*(common if rng.random() < 0.7 else common[:20]), *own)
        requests.append(Request(prompt, params, rng.randrange(2**63), rng.randint(1, 25)))
    return requests


def play(runner_of, model, kind: str, seed: int) -> Planner:
    """Run a random workload and each of its requests alone, and compare the outputs."""
    rng = random.Random(seed)
    requests = random_requests(rng)
    odds = Odds(
        admit=0.3, chunk=rng.uniform(0.3, 1), whole_chunk=rng.random(), preempt=rng.choice([0, 0.05]), drop=rng.random()
    )
    together = planner_of(runner_of(model, TensorParallelGroup()), kind, seed)
    for request, found in zip(requests, together.play(requests, odds), strict=True):
        (alone,) = planner_of(runner_of(model, TensorParallelGroup()), kind, 0).play([request], UNDISTURBED)
        assert found == alone
    return together


def test_a_request_gets_the_same_bytes_alone_and_among_rows_that_take_its_blocks(model, runner_of, kind):
    played = [play(runner_of, model, kind, seed) for seed in range(3)]
    assert sum(planner.reused for planner in played) > 10
    assert sum(planner.hits for planner in played) > 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_many_workloads_give_the_same_bytes(model, runner_of, kind):
    for seed in range(100, 160):
        play(runner_of, model, kind, seed)


def test_one_group_for_all_layers_gives_the_bytes_of_several(model, runner_of, kind, numbers):
    """One group, with one table for all layers, against several groups."""
    requests = random_requests(random.Random(5))
    found = planner_of(runner_of(model, TensorParallelGroup()), kind, 1).play(requests, Odds())
    dtype = torch.int8 if numbers == "int8 cache" else None
    cache = KVCache.allocate(model.geometry, 160, BLOCK_SIZE, dtype=dtype)
    scheduler = SchedulerConfig(max_num_seqs=NUM_ROWS)
    whole = host_runner(model, cache, TensorParallelGroup(), scheduler, MAX_LEN)
    planner = Planner(whole, num_rows=NUM_ROWS, num_blocks=160, block_size=BLOCK_SIZE, seed=2)
    assert planner.play(requests, Odds()) == found


def test_two_ranks_give_the_bytes_of_one(load, model, runner_of, kind, numbers, tmp_path):
    if numbers == "float16":
        pytest.skip("as bfloat16")
    requests = random_requests(random.Random(8))[:3]
    expected = planner_of(runner_of(model, TensorParallelGroup()), kind, 1).play(requests, Odds())
    ranks = Ranks(2, tmp_path / "rendezvous")
    try:
        shared = SharedModel(ranks, load)
        assert planner_of(shared.runner(runner_of), kind, 2).play(requests, Odds()) == expected
    finally:
        ranks.close()


def test_warm_up_steps_have_a_table_for_each_group(model, runner_of, kind):
    request = random_requests(random.Random(9))[0]
    results = []
    for is_warm in (False, True):
        runner = runner_of(model, TensorParallelGroup())
        if is_warm:
            warm_up(runner.execute, MAX_LEN, len(GROUPS[kind]))
        results.append(planner_of(runner, kind, 1).play([request], UNDISTURBED))
    assert results[0] == results[1]
