"""Steps whose kernels run in one call: they have the same bits as through Python, and make no Python calls."""

from collections import Counter
from functools import partial

import pytest
import torch
from msgspec import structs

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import SchedulerOutput
from paged_serve.workers.backends.torch.attention import TorchOracle
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.programs.torch_watch import TorchWatch
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.layers import rotary
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ..host_runners import new_host_runner
from ..invariance.planner import Odds, Planner, Request
from ..mixers import with_parts
from ..tiny_models.checkpoints import write_checkpoint
from ..tiny_models.tiny_model import write_tiny_model
from .recorded_steps import (
    BLOCK_SIZE,
    NUM_ROWS,
    STEADY,
    contents,
    counting,
    join,
    kernel_by_kernel,
    new_runner,
    prefill,
    programs_run,
    same_both_ways,
)

AROUND = {"scan_logits", "token_logprobs"}  # functions that a step calls besides the layers and the output head


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def make_model(folder, make_pool):
    """Gives each model its own pool and buffers, so that no model finds another's results in them."""

    def make(path=folder, threads=1, quantization="auto", model_impl="auto"):
        pool = make_pool(threads)
        if pool is None:
            pytest.skip("the kernels are not built")
        config = ModelConfig(device="cpu", quantization=quantization, model_impl=model_impl)
        return load_model(str(path), config, TensorParallelGroup(), lambda done, total: None, pool), pool

    return make


def test_a_recorded_step_copies_the_inputs_of_layers_for_a_head(make_model):
    plans = [prefill(0, 20), prefill(1, 9), join(0, 1), *[STEADY] * 6]
    (model, pool), (twin, other_pool) = make_model(), make_model()
    for each in (model, twin):
        each.taps.open((1, 0), each.geometry.hidden_size, each.dtype, 64)
    runner, other, num_programs = new_runner(model), new_runner(twin), []
    for plan, num_tokens in zip(plans, (20, 9, *[2] * 7), strict=True):
        with counting(pool) as calls:
            runner.execute(plan)
        with kernel_by_kernel(other_pool):
            other.execute(plan)
        num_programs.append(calls["run_program"])
        assert torch.equal(model.taps.last(num_tokens), twin.taps.last(num_tokens))
    assert num_programs[-1] == 1, "the last steps are recorded"


def test_any_traffic_gets_the_same_bytes(make_model):
    """Row sets change, chunks run in between, blocks are added, and contexts outgrow the memory made for them."""
    requests = [
        Request(tuple((5 * i + j) % 300 for j in range(1 + 11 * i)), params, seed=i, num_output=24)
        for i, params in enumerate([SamplingParams(logprobs=-1), SamplingParams(temperature=0.0, logprobs=3)] * 2)
    ]
    results = []
    for plain in (False, True):
        model, pool = make_model()
        planner = Planner(new_runner(model), num_rows=NUM_ROWS, num_blocks=128, block_size=BLOCK_SIZE, seed=2)
        with kernel_by_kernel(pool) if plain else counting(pool) as calls:
            results.append(planner.play(requests, Odds(admit=0.1, chunk=1, whole_chunk=0.3, preempt=0.01, pause=0.01)))
        assert plain or calls["run_program"] > planner.step / 4
    assert results[0] == results[1]


def test_a_context_that_grows_past_every_boundary_has_the_same_bits(make_model, monkeypatch):
    """Boundaries of blocks (16 tokens), of attention tiles (32 keys) and of the rotary table's pieces."""
    monkeypatch.setattr(rotary, "POSITIONS_AT_ONCE", 48)
    same_both_ways(make_model, [prefill(0, 3), join(0), *[STEADY] * 120])


def test_a_long_context_shared_by_threads_has_the_same_bits(make_model, tmp_path):
    """From some length on each thread attends to a range of keys, and attention is planned anew in every step."""
    path = write_tiny_model(tmp_path, max_position_embeddings=2048)
    plans = [prefill(0, 1018, 2048), join(0), *[STEADY] * 12]
    same_both_ways(lambda: make_model(path, threads=2), plans, 2048)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_weights_give_the_same_bits(make_model, quantization):
    plans = [prefill(0, 9), join(0), STEADY, prefill(3, 14), join(3), *[STEADY] * 20]
    same_both_ways(lambda: make_model(DEMO_MODEL, quantization=quantization), plans)


@pytest.mark.parametrize(
    ("quantization", "head"),
    [("auto", {"gemm_bf16"}), ("int8", {"quantize_rows", "gemm_int8"}), ("int4", {"quantize_rows", "gemm_int8"})],
)
def test_one_call_runs_the_layers_and_the_output_head(make_model, quantization, head):
    model, pool = make_model(DEMO_MODEL, quantization=quantization)
    runner = new_runner(model)
    for plan in (prefill(0, 9), join(0)):
        runner.execute(plan)
    with counting(pool) as calls:
        runner.execute(STEADY)
    assert calls == Counter({"run_program"} | AROUND)
    with counting(pool, programs=False) as calls:
        runner.execute(STEADY)
    assert calls["run_program"] == 0
    assert calls["attention_bf16"] == model.geometry.num_layers
    assert head <= calls.keys()


def test_a_plain_decoder_of_transformers_runs_in_one_call(make_model, tmp_path):
    write_checkpoint("qwen3", tmp_path)
    model, pool = make_model(tmp_path, model_impl="transformers")
    runner = new_runner(model)
    for plan in (prefill(0, 9), join(0)):
        runner.execute(plan)
    with counting(pool) as calls:
        runner.execute(STEADY)
    assert calls == Counter({"run_program"} | AROUND)


def test_each_number_of_rows_goes_through_python_once(make_model):
    model, pool = make_model()
    leave = SchedulerOutput(1, 1, decode_leaves=pack_ids([0]))
    first, second = prefill(0, 4), prefill(1, 3)
    both = structs.replace(first, new_rows=(*first.new_rows, *second.new_rows), chunks=(*first.chunks, *second.chunks))
    plans = [both, join(0), STEADY, join(1), STEADY, leave, join(0)]
    assert programs_run(new_runner(model), pool, plans) == [0, 0, 1, 0, 1, 1, 1]


def test_layers_in_groups_run_in_one_call(make_model, tmp_path):
    """Each group reads its own tables and writes to its own slots, whose addresses do not change."""
    write_checkpoint("gemma3-one-layer-fills-up-a-group", tmp_path)
    answers = []
    for grouped in (False, True):
        model, pool = make_model(tmp_path)
        groups = KVGroups.of_model(model.geometry, 512) if grouped else None
        tables = len(groups.windows) if groups else 1
        runner = new_runner(model, groups=groups)
        starts = [prefill(0, 4, num_groups=tables), join(0), prefill(3, 90, num_groups=tables), join(3)]
        answers.append([contents(runner.execute(plan)) for plan in [*starts, *[STEADY] * 60]])
        assert programs_run(runner, pool, [STEADY]) == [1]
    assert answers[0] == answers[1]
    assert tables == 3


@pytest.mark.parametrize(
    "variant",
    [
        *("lfm2", "mamba", "mamba2", "granite4", "qwen3-next", "kimi-linear", "nemotron-h", "jamba", "falcon-h1"),
        *("gemma4", "gemma4-experts", "gemma3n", "minimax", "bailing-hybrid", "diffllama-grouped", "jetmoe"),
    ],
)
def test_recurrent_layers_and_heads_of_several_sizes_run_in_one_call(make_model, tmp_path, variant):
    write_checkpoint(variant, tmp_path)
    answers = []
    for plain in (False, True):
        model, pool = make_model(tmp_path)
        layout = CacheLayout.of(model.geometry, 512, BLOCK_SIZE)
        tables = len(layout.groups.windows)
        blocks = -(-512 // layout.block_size)
        cache = KVCache.allocate(model.geometry, 2 * tables * blocks, layout.block_size, groups=layout.groups)
        runner = new_host_runner(model, cache, NUM_ROWS, 512)
        of_row = {"max_len": blocks * BLOCK_SIZE, "num_groups": tables}
        starts = [prefill(0, 4, **of_row), join(0), prefill(1, 90, **of_row), join(1)]
        with kernel_by_kernel(pool) if plain else counting(pool) as calls:
            answers.append([contents(runner.execute(plan)) for plan in [*starts, *[STEADY] * 30]])
        assert plain or calls["run_program"] >= 30
    assert answers[0] == answers[1]


def test_memory_that_has_moved_is_not_used_again(make_model):
    """A large chunk makes the buffers grow, so earlier recordings point to freed memory."""
    model, pool = make_model()
    plans = [prefill(0, 4), join(0), STEADY, prefill(1, 200), STEADY, STEADY]
    assert programs_run(new_runner(model), pool, plans) == [0, 0, 1, 0, 0, 1]


def test_a_first_step_that_allocates_the_buffers_does_not_disable_recording(make_model):
    """Allocation is a torch operation."""
    model, pool = make_model()
    first = structs.replace(prefill(0, 1), chunks=(), decode_joins=pack_ids([0]))
    assert programs_run(new_runner(model), pool, [first, STEADY, STEADY]) == [0, 0, 1]


def test_heads_of_any_size_are_computed_by_kernels(make_model, tmp_path):
    """These heads have 24 elements; the cache pads them with zeros."""
    write_checkpoint("llama-multi-query", tmp_path)
    model, pool = make_model(tmp_path)
    assert programs_run(new_runner(model), pool, [prefill(0, 4), join(0), STEADY, STEADY]) == [0, 0, 1, 1]
    assert model.geometry.cached_head_dim == 32
    assert model.geometry.kv_bytes_per_block(16, 1, torch.bfloat16) == 2 * model.geometry.num_layers * 32 * 2 * 16


@pytest.mark.parametrize(
    "variant",
    ["gpt-neox", "phi", "cohere2", "exaone4", "olmo2", "olmo-clipped", "llama4", "stablelm-qk-norm", "opt-350m"],
)
def test_layers_of_other_forms_are_computed_by_kernels(variant, make_model, tmp_path):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    plans = [prefill(0, 4), join(0), STEADY, STEADY]
    model, pool = make_model(tmp_path)
    assert programs_run(new_runner(model), pool, plans) == [0, 0, 1, 1]
    same_both_ways(lambda: make_model(tmp_path), plans)


@pytest.mark.parametrize("variant", ["qwen2-moe", "glm4-moe", "gpt-oss", "deepseek-v2", "deepseek-v3.2", "glm-5"])
def test_experts_are_computed_by_kernels_however_many_tokens_each_has(make_model, tmp_path, variant):
    """Other tokens in each step, so other experts have rows than when the step was recorded."""
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    for quantization in ("auto", "int8"):
        model, pool = make_model(tmp_path, quantization=quantization)
        plans = [prefill(row, 9) for row in range(3)] + [join(0, 1, 2), STEADY, STEADY]
        assert programs_run(new_runner(model), pool, plans)[-1] == 1
        same_both_ways(partial(make_model, tmp_path, quantization=quantization), [*plans, *[STEADY] * 30])


@pytest.mark.parametrize("variant", ["gemma2", "bloom-even"])
def test_caps_slopes_and_the_norm_of_the_embedding_are_computed_by_kernels(make_model, tmp_path, variant):
    write_checkpoint(variant, tmp_path)
    model, pool = make_model(tmp_path)
    assert programs_run(new_runner(model), pool, [prefill(0, 4), join(0), STEADY, STEADY]) == [0, 0, 1, 1]


def test_a_model_in_which_torch_computes_stays_in_python(make_model, caplog):
    model, pool = make_model()
    runner = new_runner(with_parts(model, attention=TorchOracle()))
    with caplog.at_level("DEBUG"):
        assert programs_run(runner, pool, [prefill(0, 4), join(0), STEADY, STEADY]) == [0, 0, 0, 0]
    assert [record.message.split(" torch_computes=")[0] for record in caplog.records] == [
        "decode steps run through Python"  # reported once: recording is not retried
    ]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: x[:, torch.arange(2)],
        lambda x: x.t().flatten(),
        lambda x: torch.cat([x, x]),
        lambda x: torch.empty(3),
        lambda x: torch.tensor([1, 2]),
        lambda x: x.zero_(),
        lambda x: int(x[0, 0]),
    ],
)
def test_torch_operations_are_detected(compute):
    x = torch.ones(4, 6)
    with torch.inference_mode(), TorchWatch() as watch:
        compute(x)
    assert watch.computed


def test_views_do_not_count_as_torch_operations():
    x = torch.ones(4, 6)
    with torch.inference_mode(), TorchWatch() as watch:
        x[1:].view(-1, 3).flatten(1)[:2].contiguous().data_ptr()
    assert not watch.computed
