"""Benchmarks relate results to the machine's measured limits, so the compiler must not optimise these loops away."""

import time

import numpy as np
import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu

MOST_OPERATIONS_PER_S = 5e12  # of one core: more than 512 per cycle at 6 GHz
MOST_OF_TILES = 5e13  # with AMX: more than 4096 per cycle


def test_the_memory_read_test_reads_all_of_it(cpu_library, cpu_pools):
    size = (5 * cpu.READ_BYTES // 4,)
    words = torch.randint(-(2**31), 2**31, size, generator=torch.Generator().manual_seed(0)).int()
    expected = int(np.bitwise_xor.reduce(words.numpy()))
    for pool in cpu_pools:
        assert cpu_library.read_memory(pool.handle, words.data_ptr(), words.nbytes) == expected


def test_the_peak_is_computed_and_not_optimised_away(cpu_library, cpu_pools):
    for number_format in cpu_library.peak_formats:
        most = MOST_OF_TILES if number_format.startswith("amx") else MOST_OPERATIONS_PER_S
        for pool in cpu_pools:
            began = time.perf_counter()
            operations = cpu_library.peak_operations(pool.handle, number_format, 1_000_000)
            assert operations < (time.perf_counter() - began) * most * pool.num_threads


@pytest.mark.parametrize(("number_format", "in_a_step"), [("amx_bf16", 4 * 16384), ("amx_int8", 4 * 32768)])
def test_a_step_of_tiles_is_four_dot_products_of_whole_tiles(cpu_library, cpu_pools, number_format, in_a_step):
    assert (number_format in cpu_library.peak_formats) == (cpu_library.isa == "amx")
    for pool in cpu_pools:
        began = time.perf_counter()
        operations = cpu_library.peak_operations(pool.handle, number_format, 100)
        assert operations == 100 * in_a_step * pool.num_threads
        assert operations < (time.perf_counter() - began) * MOST_OF_TILES * pool.num_threads
