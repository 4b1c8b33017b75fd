"""Convolutions of recurrent layers: against float64, whatever the steps, and on every instruction set."""

import pytest
import torch

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.weights import CausalConv

from ..portable_numbers import KINDS, assert_same_bits, normals, numbers
from .schedules import Requests, at_once, mixed, one_by_one

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
LENGTHS = (33, 1, 16, 2)
CHANNELS = 277  # more than one part, and no whole vectors
FORMS = {  # width, bias, silu, factors of inputs and results
    "mamba": (4, True, True, False),
    "gated delta": (4, False, True, False),
    "short convolution": (3, False, False, True),
    "two": (2, True, True, True),
}


def conv_of(form, channels=CHANNELS):
    width, has_bias, activates, _ = FORMS[form]
    bias = normals((channels,), 2) if has_bias else None
    return CausalConv(normals((width, channels), 1), bias, activates)


def requests_of(form, dtype, kind="plain", lengths=LENGTHS, channels=CHANNELS):
    """Each request's inputs, and factors if the form has any, which are columns of one wider matrix."""
    count = 3 if FORMS[form][3] else 1
    return Requests.of([[numbers(kind, (n, count * channels), 10 + n).to(dtype)] for n in lengths])


def columns(form, wide):
    """x, and its factors if the form has any."""
    return wide.chunk(3, 1) if FORMS[form][3] else (wide,)


def runner(pool, form):
    conv, recurrences = conv_of(form), CpuRecurrences(pool, Buffers())

    def run(rows, states, wide):
        x, *factors = columns(form, wide)
        return recurrences.causal_conv(rows, states, conv, x, *factors)

    return run


def states_for(requests, form, dtype):
    """NaN where nothing was stored, and room of another layer's between blocks."""
    shape = requests.num_blocks, FORMS[form][0], CHANNELS
    return torch.full(shape, torch.nan, dtype=dtype)[:, 1:]


def exact(form, wide):
    conv = conv_of(form)
    x, *factors = columns(form, wide)
    inputs = (x * factors[0] if factors else x).double()
    padded = torch.cat([torch.zeros(conv.width - 1, CHANNELS, dtype=torch.float64), inputs])
    total = sum(padded[j : j + len(x)] * conv.weight[j].double() for j in range(conv.width))
    total = total if conv.bias is None else total + conv.bias.double()
    total = torch.nn.functional.silu(total) if conv.activates else total
    return total * factors[1].double() if factors else total


TOLERANCES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_convolutions_are_those_of_float64(form, dtype, cpu_pools):
    requests = requests_of(form, dtype)
    for pool in cpu_pools:
        states = states_for(requests, form, dtype)
        found = requests.computed(runner(pool, form), states, at_once(LENGTHS))
        for own, (wide,) in zip(found, requests.inputs, strict=True):
            tolerance = TOLERANCES[dtype]
            torch.testing.assert_close(own.double(), exact(form, wide), rtol=tolerance, atol=4 * tolerance)


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_bits_depend_on_no_other_row_and_on_no_division_into_steps(form, dtype, cpu_pools):
    requests = requests_of(form, dtype)
    whole = states_for(requests, form, dtype)
    expected = requests.computed(runner(cpu_pools[0], form), whole, at_once(LENGTHS))
    for steps in (one_by_one(LENGTHS), mixed(LENGTHS, 1), mixed(LENGTHS, 2)):
        states = states_for(requests, form, dtype)
        for found, own in zip(requests.computed(runner(cpu_pools[1], form), states, steps), expected, strict=True):
            assert_same_bits(found, own)
        for found, own in zip(requests.full_blocks(states), requests.full_blocks(whole), strict=True):
            assert_same_bits(found, own)


def test_the_state_is_the_last_inputs_as_they_came(cpu_pools):
    requests = requests_of("mamba", torch.bfloat16)
    states = states_for(requests, "mamba", torch.bfloat16)
    requests.computed(runner(cpu_pools[1], "mamba"), states, mixed(LENGTHS, 3))
    for request, length in enumerate(LENGTHS):
        (x,) = requests.inputs[request]
        last = states[requests.tables[request, (length - 1) // requests.block_size]]
        kept = min(3, length)
        assert_same_bits(last[3 - kept :], x[-kept:])
        assert not last[: 3 - kept].any()


def test_a_request_may_start_from_a_full_block_of_another(cpu_pools):
    requests = requests_of("mamba", torch.float32, lengths=(40, 40))
    requests.inputs[1][0][:32] = requests.inputs[0][0][:32]
    requests.inputs[1][0][32:] += 1
    states = states_for(requests, "mamba", torch.float32)
    run = runner(cpu_pools[0], "mamba")
    alone = requests.computed(run, states.clone(), at_once((40, 40)))[1]
    requests.tables[1, 1] = requests.tables[0, 1]
    requests.computed(run, states, [[(0, 40)]])
    shared = requests.full_blocks(states)[1].clone()
    after = requests.computed(run, states, [[(1, 3)], [(1, 5)]], done=[40, 32])[1]
    assert_same_bits(after, alone[32:])
    assert_same_bits(requests.full_blocks(states)[1], shared)


def test_rows_of_padding_write_nothing(cpu_pools):
    conv, states = conv_of("mamba"), torch.full((2, 3, CHANNELS), torch.nan)
    rows = StateRows(
        torch.zeros(2, 1, dtype=torch.int32),
        torch.tensor([0, 1, 2], dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
        16,
    )
    for pool in cpu_pools:
        CpuRecurrences(pool, Buffers()).causal_conv(rows, states, conv, torch.ones(2, CHANNELS))
        assert bool(states.isnan().all())


def test_tables_of_another_dtype_are_refused(cpu_pools):
    """The kernel would read them as int32."""
    states = torch.zeros(2, 3, CHANNELS)
    rows = StateRows(torch.zeros(1, 1).long(), torch.tensor([0, 1]), torch.tensor([1]), 16)
    with pytest.raises(AssertionError, match="int64"):
        CpuRecurrences(cpu_pools[0], Buffers()).causal_conv(rows, states, conv_of("mamba"), torch.ones(1, CHANNELS))


@pytest.mark.parametrize("form", FORMS)
def test_the_torch_reference_agrees(form, cpu_pools):
    requests = requests_of(form, torch.float32)
    conv = conv_of(form)

    def reference(rows, states, wide):
        x, *factors = columns(form, wide)
        return TorchRecurrences().causal_conv(rows, states, conv, x, *factors)

    states, own_states = (states_for(requests, form, torch.float32) for _ in range(2))
    expected = requests.computed(runner(cpu_pools[0], form), states, mixed(LENGTHS, 4))
    found = requests.computed(reference, own_states, mixed(LENGTHS, 4))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert_same_bits(own_states, states)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_set_has_the_same_bits(form, dtype, kind, isa_pools):
    requests = requests_of(form, dtype, kind, lengths=(20, 3))
    results = []
    for pool in isa_pools:
        states = states_for(requests, form, dtype)
        results.append((*requests.computed(runner(pool, form), states, mixed((20, 3), 0)), states))
    for result in results[1:]:
        for one, expected in zip(result, results[0], strict=True):
            assert_same_bits(one, expected)
