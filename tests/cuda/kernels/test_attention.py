"""Paged attention against a float64 oracle: every kind of head, cache and option, and lengths around boundaries."""

from dataclasses import replace

import pytest
import torch

from paged_serve.workers.backends.cuda.attention import CudaPagedAttention
from paged_serve.workers.kernels.cuda.attention_kernels import AttentionShape, paged_kernel, prefill_shape

from ...workers.cache_views import reading_view
from ..checks.attention_case import ALL_DECODE, PLAIN, Options, assert_right, batch, options_of, run
from ..checks.checks_attention import BFLOAT16, FLOAT16, FP8, USUAL, check_attention
from ..emulated import EmulatorLauncher
from ..executors import arch_of, device_of

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 575, 577, 1023, 1024, 1025, 1100)
KINDS = (  # each head dimension, group, block size, dtype and kind of cache at least once
    AttentionShape(BFLOAT16, BFLOAT16, 8, 2, 128, 16),
    AttentionShape(FLOAT16, FLOAT16, 3, 1, 96, 64),
    AttentionShape(BFLOAT16, FP8, 8, 1, 128, 16),
    AttentionShape(FLOAT16, FP8, 4, 1, 80, 32),
    AttentionShape(BFLOAT16, BFLOAT16, 2, 2, 256, 32),
    AttentionShape(BFLOAT16, BFLOAT16, 3, 3, 64, 16, has_alibi=True),
    AttentionShape(BFLOAT16, BFLOAT16, 4, 1, 512, 16),
)
BATCH = [(1, 40), (3, 62), (1, 530), (70, 10)]  # new tokens, past tokens


def test_attention_is_correct_and_race_free_in_every_schedule(scheduled):
    check_attention(scheduled)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("heads", KINDS)
@pytest.mark.parametrize("options", [PLAIN, Options(window=33, cap=8.0, sinks=True, scales=(0.25, 3.0))])
def test_every_head_layout_matches_the_oracle(launcher, heads, options):
    options = options if heads.cache_dtype == FP8 else replace(options, scales=(1.0, 1.0))
    cases = batch(heads, BATCH)
    assert_right(run(launcher, cases, options), cases, options)
    assert launcher.stats.bank_conflicts == 0


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("heads", [replace(USUAL, num_heads=4, kv_heads=1), KINDS[5]])
def test_bidirectional_tokens_attend_to_all_keys_of_their_request(launcher, heads):
    cases = batch(replace(heads, is_bidirectional=True), [(1, 0), (16, 0), (63, 0), (65, 0), (530, 0)])
    assert_right(run(launcher, cases), cases)


@pytest.mark.cpu_kernels
def test_lengths_at_the_edges_of_blocks_tiles_and_splits_match_the_oracle(launcher):
    cases = batch(USUAL, [(1, length - 1) for length in EDGES])
    assert_right(run(launcher, cases), cases)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("new", [1, 15, 16, 17, 63, 64, 65])
def test_chunks_of_any_length_match_the_oracle(launcher, new):
    cases = batch(USUAL, [(new, 0), (new, 1)])
    assert_right(run(launcher, cases), cases)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 511, 512, 513, 2000])
def test_windows_at_the_edges_of_tiles_and_splits_match_the_oracle(launcher, window):
    cases = batch(USUAL, [(1, 1040), (2, 63), (18, 500)], window=window)
    assert_right(run(launcher, cases, Options(window=window)), cases, Options(window=window))


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("chunk", [1, 48, 64, 512, 600, 2000])
def test_attention_chunks_at_the_edges_of_tiles_and_splits_match_the_oracle(launcher, chunk):
    cases = batch(replace(USUAL, attention_chunk=chunk), [(1, 1040), (1, chunk - 1), (2, 63), (18, 500), (20, 1010)])
    options = Options(sinks=chunk == 48)
    assert_right(run(launcher, cases, options), cases, options)


@pytest.mark.cpu_kernels
def test_requests_without_new_tokens_are_left_out(launcher):
    cases = batch(USUAL, [(1, 70), (0, 33), (2, 40), (0, 5)])
    assert_right(run(launcher, cases), cases)


@pytest.mark.cpu_kernels
def test_more_requests_than_threads_of_the_plan_match_the_oracle(launcher):
    cases = batch(replace(USUAL, num_heads=4, kv_heads=1), [(1, i % 3) for i in range(260)])
    assert_right(run(launcher, cases), cases)


def test_prefill_uses_the_decode_shape_where_registers_or_shared_memory_are_short():
    heads = KINDS[4]
    assert prefill_shape(heads, "sm_89").rows == 16
    assert prefill_shape(heads, "sm_90a").rows == 64
    assert paged_kernel(heads, prefill_shape(heads, "sm_89"), "sm_89").shared_bytes <= 99 * 1024


def test_less_shared_memory_changes_no_bit(launcher):
    cases, options = batch(KINDS[0], BATCH), Options(max_decode_rows=ALL_DECODE)
    assert torch.equal(run(launcher, cases, options, arch="sm_89"), run(launcher, cases))


@pytest.mark.parametrize("num_heads", [64, 71])
def test_a_decode_step_has_any_number_of_heads_per_kv_head(launcher, num_heads):
    """Falcon 7B has 71 query heads and one KV head."""
    heads = AttentionShape(BFLOAT16, BFLOAT16, num_heads, 1, 64, 16)
    cases, device = batch(heads, [(1, 40), (1, 530)]), device_of(launcher)
    tensors = (cases.keys, cases.values, cases.tables, cases.row_starts, cases.kv_lens)
    view = replace(reading_view(*(tensor.to(device) for tensor in tensors)), num_decode_rows=len(cases.requests))
    backend = CudaPagedAttention(launcher, arch_of(launcher), multiprocessors=2)
    [plan] = backend.plan([view], num_heads)
    found = backend.attend(plan, 0, cases.query.to(device), options_of(heads, PLAIN, device))
    assert_right(found.cpu(), cases)


@pytest.mark.parametrize("heads", KINDS[1:3])
def test_a_cache_of_a_layer_may_have_most_of_a_device(tmp_path, heads):
    """In a model with states, the keys of each layer have the addresses of the whole cache (KVCache)."""
    cases = batch(heads, [(1, 40), (70, 10)])
    expected, more = run(EmulatorLauncher(), cases), (100 << 30) // cases.keys[0].nbytes
    cases.tables += more
    cases.keys = after_unused_blocks(cases.keys, more, tmp_path / "keys")
    cases.values = after_unused_blocks(cases.values, more, tmp_path / "values")
    assert torch.equal(run(EmulatorLauncher(), cases), expected)


def after_unused_blocks(blocks, more, path):
    """The blocks after `more` others, which have addresses but no memory: they are holes in a file."""
    nbytes = (more + len(blocks)) * blocks[0].nbytes
    memory = torch.from_file(str(path), shared=True, size=nbytes, dtype=torch.uint8)
    every_block = memory.view(blocks.dtype).view(-1, *blocks.shape[1:])
    every_block[more:] = blocks
    return every_block
