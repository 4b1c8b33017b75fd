"""A 16-bit model with an int8 KV cache: the same bits in any batch, and close to a full-precision cache."""

from dataclasses import replace

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config
from paged_serve.workers.kv.budget import cache_dtype

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint

LENGTH = 300
CONFIG = Config(cache=CacheConfig(kv_cache_dtype="int8"))


@pytest.fixture(scope="module", params=[("qwen3", "bfloat16"), ("qwen2-upper-layers-slide", "float16")], ids="-".join)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def dtype(case):
    return case[1]


@pytest.fixture(scope="module")
def home(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(case[0], folder)
    return folder


@pytest.fixture(scope="module")
def model(home, dtype, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    return ours(home, dtype, pool=make_pool())


def loop_of(model, **options):
    return PagedLoop(model, num_blocks=160, dtype=torch.int8, **options)


@pytest.fixture(scope="module")
def alone(model):
    """Each prompt's logits, computed alone in one chunk."""
    found = []
    for seed in range(3):
        loop = loop_of(model)
        found.append(loop.prefill(loop.row(random_tokens(LENGTH, seed))))
    return found


@pytest.mark.parametrize("chunk", [1, 16, 77])
def test_chunks_of_any_size_give_the_same_bits(model, alone, chunk):
    loop = loop_of(model, seed=chunk)
    assert torch.equal(loop.prefill(loop.row(random_tokens(LENGTH)), chunk), alone[0])


def test_neighbours_threads_and_blocks_change_no_bit(home, dtype, make_pool, alone):
    for threads, block_size in ((1, 16), (2, 64), (3, 32)):
        loop = loop_of(ours(home, dtype, pool=make_pool(threads)), block_size=block_size, seed=threads)
        rows = [loop.row(random_tokens(LENGTH, seed)) for seed in range(3)]
        steps = [loop.step([(row, count) for row in rows]).split(count) for count in (130, 1, 1, 60, 1, LENGTH - 193)]
        for row in range(3):
            assert torch.equal(torch.cat([step[row] for step in steps]), alone[row])


def test_a_row_continues_from_cached_blocks(model, alone):
    loop = loop_of(model)
    first = loop.row(random_tokens(LENGTH))
    loop.prefill(first)
    continued = loop.row(random_tokens(LENGTH), shared=first, shared_blocks=9)
    assert torch.equal(loop.prefill(continued, chunk=50), alone[0][9 * 16 :])


def test_a_model_of_states_alone_has_nothing_to_code(tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    write_checkpoint("mamba2", tmp_path, torch.bfloat16)
    model = ours(tmp_path, pool=pool)
    coded, plain = PagedLoop(model, dtype=torch.int8), PagedLoop(model)
    found, expected = (loop.prefill(loop.row(random_tokens(40))) for loop in (coded, plain))
    assert torch.equal(found, expected)


def test_logits_are_near_those_of_the_full_precision_cache(model, alone):
    loop = PagedLoop(model)
    whole = loop.prefill(loop.row(random_tokens(LENGTH)))
    error = ((alone[0] - whole).norm() / whole.norm()).item()
    assert 1e-4 < error < 0.05


def test_a_block_takes_half_the_memory_plus_its_scales(model):
    geometry = replace(model.geometry, head_dim=128)
    codes, whole = (geometry.kv_bytes_per_block(16, 1, dtype) for dtype in (torch.int8, torch.bfloat16))
    assert codes / whole == (128 + 4) / 256


def test_an_int8_cache_is_refused_without_a_kernel_that_reads_it(home, model, dtype, make_pool):
    with pytest.raises(ConfigError, match=r"kv_cache_dtype=fp8 needs the CUDA kernels .*; use kv_cache_dtype=int8$"):
        cache_dtype(Config(cache=CacheConfig(kv_cache_dtype="fp8")), model)
    assert cache_dtype(CONFIG, model) == torch.int8
    assert cache_dtype(Config(), model) == model.dtype
    with pytest.raises(ConfigError, match=rf"this server computes on cpu in {dtype}; use kv_cache_dtype=auto$"):
        cache_dtype(CONFIG, ours(home, dtype))
    with pytest.raises(ConfigError, match="this model is float32; use kv_cache_dtype=auto or dtype=bfloat16"):
        cache_dtype(CONFIG, ours(home, "float32", pool=make_pool()))
