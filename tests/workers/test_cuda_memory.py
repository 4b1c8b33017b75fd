"""What a CUDA device's memory leaves for the KV cache, as far as it can be known without one."""

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.cuda_memory import GRAPHS_BYTES, kv_budget

GIB = 1 << 30


def test_the_cache_gets_what_weights_a_full_step_and_others_leave():
    assert kv_budget(0.9, 80 * GIB, 20 * GIB) == 52 * GIB - GRAPHS_BYTES


def test_too_small_a_share_is_refused_with_one_that_would_do():
    with pytest.raises(
        ConfigError, match=r"gpu_memory_utilization=0\.2 of .* raise gpu_memory_utilization above 0\.26"
    ):
        kv_budget(0.2, 80 * GIB, 20 * GIB)


def test_a_full_device_is_refused_with_what_else_would_do():
    with pytest.raises(ConfigError, match="use tensor_parallel_size, a smaller model"):
        kv_budget(0.9, 80 * GIB, 80 * GIB)
