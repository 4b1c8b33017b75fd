"""Norms and gates of recurrent layers: against float64, and on every instruction set."""

import pytest
import torch
from torch.nn.functional import silu, softplus

from paged_serve.workers.backends.cpu.ops import CpuOps
from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences, CpuSelectiveScan
from paged_serve.workers.backends.torch.ops import TorchOps
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences, TorchSelectiveScan
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.recurrent.factors import scale_by_position
from paged_serve.workers.layers.ops import HeadLayout
from paged_serve.workers.layers.recurrent.weights import GatedNorm, PartNorms

from ..portable_numbers import KINDS, assert_same_bits, normals, numbers

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCES = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 2**-18}
SIZES = [(96, 96), (96, 24), (1000, 250)]
GATES = [{}, {"gates_last": True}, {"gates_last": True, "sigmoid_gates": True}]


def inputs(size, dtype, kind="plain"):
    """x, and a gate whose rows are part of wider ones."""
    wide = numbers(kind, (7, 3 * size), size).to(dtype)
    return wide[:, :size].contiguous(), wide[:, size : 2 * size]


@pytest.mark.parametrize("options", GATES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_group_is_normalised_alone(sizes, dtype, options, cpu_pools):
    size, group_size = sizes
    norm = GatedNorm(normals((size,), 1), group_size, 1e-5, **options)
    x, gate = inputs(size, dtype)
    gates_last = norm.gates_last
    gates = (torch.sigmoid if norm.sigmoid_gates else silu)(gate.double())
    grouped = (x.double() if gates_last else x.double() * gates).view(len(x), -1, group_size)
    normed = (grouped / (grouped.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * norm.weight.double()
    exact = normed * gates if gates_last else normed
    backends = [CpuRecurrences(pool, Buffers()) for pool in cpu_pools]
    found = [each.gated_norm(norm, x, gate).clone() for each in backends]
    assert_same_bits(found[1], found[0])
    for each in (found[0], TorchRecurrences().gated_norm(norm, x, gate)):
        torch.testing.assert_close(each.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert_same_bits(backends[1].gated_norm(norm, x[3:4], gate[3:4]), found[0][3:4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", GATES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_instruction_set_has_the_same_bits(sizes, dtype, options, kind, isa_pools):
    size, group_size = sizes
    norm = GatedNorm(normals((size,), 1), group_size, 1e-5, **options)
    found = [CpuRecurrences(pool, Buffers()).gated_norm(norm, *inputs(size, dtype, kind)).clone() for pool in isa_pools]
    for each in found[1:]:
        assert_same_bits(each, found[0])


@pytest.mark.parametrize("gate_kind", ["sigmoid", "silu", "softplus"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_without_a_norm_is_a_function_of_its_own(dtype, gate_kind, cpu_pools):
    x, gate = inputs(277, dtype)
    function = {"sigmoid": torch.sigmoid, "silu": silu, "softplus": softplus}[gate_kind]
    exact = x.double() * function(gate.double())
    for backend in (TorchRecurrences(), *(CpuRecurrences(pool, Buffers()) for pool in cpu_pools)):
        found = getattr(backend, f"{gate_kind}_gated")(x, gate)
        torch.testing.assert_close(found.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate_kind", ["sigmoid", "silu", "softplus"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_has_the_same_bits_on_every_instruction_set(dtype, gate_kind, kind, isa_pools):
    x, gate = inputs(277, dtype, kind)
    gated = f"{gate_kind}_gated"
    found = [getattr(CpuRecurrences(pool, Buffers()), gated)(x, gate).clone() for pool in isa_pools]
    for each in found[1:]:
        assert_same_bits(each, found[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_are_scaled_in_place_and_rounded_once(dtype, isa_pools):
    factors, x = normals((277,), 2), inputs(277, dtype)[1]
    exact = (x.double() * factors.double()).to(torch.float32).to(dtype)
    heads = HeadLayout(1, 1, 16, ())
    for ops in (TorchOps(heads), *(CpuOps(pool, Buffers(), heads) for pool in isa_pools)):
        assert_same_bits(ops.scale(x, factors).clone(), exact)
        wide = torch.cat([x, x], 1)
        part = wide[:, 277:]
        assert ops.scale(part, factors, out=part) is part
        assert_same_bits(wide, torch.cat([x, exact], 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_scaled_by_the_factors_of_their_positions(dtype, isa_pools):
    factors, positions, x = normals((50,), 2), torch.tensor([3, 0, 49, 7, 7, 12, 1]), inputs(277, dtype)[1]
    factors[7] = 1.0
    exact = (x.double() * factors.double()[positions, None]).to(torch.float32).to(dtype)
    for pool in isa_pools:
        wide = torch.cat([x, x], 1)
        scale_by_position(pool, wide[:, 277:], factors, positions)
        assert_same_bits(wide, torch.cat([x, exact], 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_part_of_a_projection_of_mamba_1_is_normalised_alone(dtype, isa_pools):
    steps, state_size = 37, 24
    x, weight = numbers("plain", (5, steps + 2 * state_size + 3), 3).to(dtype)[:, 3:], normals((85,), 1)
    norms = PartNorms(steps, state_size, weight, 1e-3)
    parts = x.double().split([steps, state_size, state_size], 1)
    exact = torch.cat([part / (part.square().mean(-1, keepdim=True) + 1e-3).sqrt() for part in parts], 1) * weight
    found = [CpuSelectiveScan(pool, Buffers()).normed_parts(norms, x).clone() for pool in isa_pools]
    for each in (found[0], TorchSelectiveScan().normed_parts(norms, x)):
        torch.testing.assert_close(each.double(), exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    for each in found[1:]:
        assert_same_bits(each, found[0])


def test_parts_without_norms_are_a_copy(isa_pools):
    x = numbers("plain", (5, 88), 3)[:, 3:]
    for backend in (TorchSelectiveScan(), *(CpuSelectiveScan(pool, Buffers()) for pool in isa_pools)):
        assert torch.equal(backend.normed_parts(PartNorms(37, 24, None, 0.0), x), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_any_stride_are_copied(dtype, isa_pools):
    _, x = inputs(277, dtype)
    for pool in isa_pools:
        assert_same_bits(CpuRecurrences(pool, Buffers()).copied("copies", x), x)
