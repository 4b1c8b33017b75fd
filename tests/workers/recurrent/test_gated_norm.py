"""The gated norm of recurrent layers: against float64, and on every instruction set."""

import pytest
import torch
from torch.nn.functional import silu

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.layers.recurrent.weights import GatedNorm

from ..portable_numbers import KINDS, assert_same_bits, normals, numbers

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCES = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 2**-18}
SIZES = [(96, 96), (96, 24), (1000, 250)]


def inputs(size, dtype, kind="plain"):
    """x, and a gate whose rows are part of wider ones."""
    wide = numbers(kind, (7, 3 * size), size).to(dtype)
    return wide[:, :size].contiguous(), wide[:, size : 2 * size]


@pytest.mark.parametrize("gates_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_group_is_normalised_alone(sizes, dtype, gates_last, cpu_pools):
    size, group_size = sizes
    norm = GatedNorm(normals((size,), 1), group_size, 1e-5, gates_last)
    x, gate = inputs(size, dtype)
    gates = silu(gate.double())
    grouped = (x.double() if gates_last else x.double() * gates).view(len(x), -1, group_size)
    normed = (grouped / (grouped.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * norm.weight.double()
    exact = normed * gates if gates_last else normed
    backends = [CpuRecurrences(pool, Buffers()) for pool in cpu_pools]
    found = [each.gated_norm(norm, x, gate).clone() for each in backends]
    assert_same_bits(found[1], found[0])
    for each in (found[0], TorchRecurrences().gated_norm(norm, x, gate)):
        torch.testing.assert_close(each.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert_same_bits(backends[1].gated_norm(norm, x[3:4], gate[3:4]), found[0][3:4])


@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gates_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_instruction_set_has_the_same_bits(sizes, dtype, gates_last, kind, isa_pools):
    size, group_size = sizes
    norm = GatedNorm(normals((size,), 1), group_size, 1e-5, gates_last)
    found = [CpuRecurrences(pool, Buffers()).gated_norm(norm, *inputs(size, dtype, kind)).clone() for pool in isa_pools]
    for each in found[1:]:
        assert_same_bits(each, found[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_without_a_norm_is_a_sigmoid(dtype, cpu_pools):
    x, gate = inputs(277, dtype)
    exact = x.double() * gate.double().sigmoid()
    backends = [TorchRecurrences(), *(CpuRecurrences(pool, Buffers()) for pool in cpu_pools)]
    for each in backends:
        found = each.sigmoid_gated(x, gate)
        torch.testing.assert_close(found.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_has_the_same_bits_on_every_instruction_set(dtype, kind, isa_pools):
    x, gate = inputs(277, dtype, kind)
    found = [CpuRecurrences(pool, Buffers()).sigmoid_gated(x, gate).clone() for pool in isa_pools]
    for each in found[1:]:
        assert_same_bits(each, found[0])
