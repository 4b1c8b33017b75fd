"""Scans of recurrent layers: against float64, whatever the steps, and on every instruction set."""

import pytest
import torch
from torch.nn.functional import softplus

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences, CpuSelectiveScan
from paged_serve.workers.backends.cuda.recurrences import CudaRecurrences, CudaSelectiveScan
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences, TorchSelectiveScan
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.weights import GatedDelta, Mamba1, Mamba2

from ..portable_numbers import KINDS, assert_same_bits, normals, numbers
from .schedules import Requests, at_once, mixed, one_by_one

LENGTHS = (53, 1, 16, 2)
BLOCK_SIZE = 48  # more than the tokens whose inputs the kernel converts at once


class Mamba1Layer:
    """The selective scan of Mamba 1 and its inputs."""

    def __init__(self, channels, state_size):
        a, d, bias = -normals((channels, state_size), 1).exp(), normals((channels,), 2), normals((channels,), 3) - 2
        self.weights = Mamba1(a, d, bias)

    def inputs(self, length, kind, dtype, seed):
        """x; steps of all channels, and b and c, as columns of wider matrices."""
        w = self.weights
        x, wide = numbers(kind, (length, w.channels), seed), numbers(kind, (length, 2 * w.state_size + 5), seed + 2)
        return [x.to(dtype), normals((length, w.channels + 3), seed + 1).to(dtype), wide.to(dtype)]

    def run(self, recurrences, rows, states, x, steps, wide):
        return selective(recurrences).scan(rows, states, self.weights, x, steps[:, 3:], wide[:, 5:])

    def exact(self, x, steps, wide):
        w, x = self.weights, x.double()
        dt = softplus(steps[:, 3:].double() + w.dt_bias.double()).unsqueeze(2)
        b, c = wide[:, 5:].double().unsqueeze(1).chunk(2, 2)
        state, outputs = torch.zeros(w.channels, w.state_size, dtype=torch.float64), []
        for t in range(len(x)):
            state = torch.exp(dt[t] * w.a.double()) * state + dt[t] * x[t].unsqueeze(1) * b[t]
            outputs.append((state * c[t]).sum(1) + w.d.double() * x[t])
        return torch.stack(outputs)


class Mamba2Layer:
    """The recurrence of Mamba 2 and its inputs."""

    def __init__(self, heads, head_dim, groups, state_size, limits=(0.0, torch.inf)):
        a, d, bias = -normals((heads,), 1).exp(), normals((heads,), 2), normals((heads,), 3) - 2
        self.weights = Mamba2(a, d, bias, head_dim, groups, state_size, limits)
        self.inner, self.of_groups = heads * head_dim, groups * state_size

    def inputs(self, length, kind, dtype, seed):
        """x, b and c; and dt as a column of a wider matrix."""
        wide = numbers(kind, (length, self.inner + 2 * self.of_groups), seed)
        return [wide.to(dtype), normals((length, self.weights.heads + 3), seed + 1).to(dtype)]

    def run(self, recurrences, rows, states, x, wide):
        return recurrences.mamba2(rows, states, self.weights, x, wide[:, 3:])

    def exact(self, x, wide):
        w, x = self.weights, x.double()
        dt = softplus(wide[:, 3:].double() + w.dt_bias.double()).clamp(*w.dt_limits)
        heads = x[:, : self.inner].view(len(x), w.heads, w.head_dim)
        b, c = x[:, self.inner :].view(len(x), 2, w.groups, w.state_size).unbind(1)
        b, c = (each.repeat_interleave(w.heads // w.groups, 1) for each in (b, c))
        state, outputs = torch.zeros(w.heads, w.head_dim, w.state_size, dtype=torch.float64), []
        for t in range(len(x)):
            decay = torch.exp(dt[t] * w.a.double()).view(-1, 1, 1)
            state = decay * state + torch.einsum("h,hp,hn->hpn", dt[t], heads[t], b[t])
            outputs.append(torch.einsum("hpn,hn->hp", state, c[t]) + w.d.double().unsqueeze(1) * heads[t])
        return torch.stack(outputs).flatten(1)


class GatedDeltaLayer:
    """The gated delta rule and its inputs; `decays` of a head."""

    def __init__(self, heads, key_heads, key_dim, value_dim, decays=1, max_beta=1.0, lower_bound=0.0):
        a, bias = -normals((heads,), 1).exp(), normals((heads * decays,), 3) - 2
        self.weights = GatedDelta(a, bias, key_heads, key_dim, value_dim, 1e-6, max_beta, lower_bound)
        self.of_keys = key_heads * key_dim

    def inputs(self, length, kind, dtype, seed):
        wide = numbers(kind, (length, 2 * self.of_keys + self.weights.heads * self.weights.value_dim), seed)
        gates = self.weights.heads + len(self.weights.dt_bias)
        return [wide.to(dtype), normals((length, gates), seed + 1).to(dtype)]

    def run(self, recurrences, rows, states, x, gates):
        heads = self.weights.heads
        return recurrences.gated_delta(rows, states, self.weights, x, gates[:, :heads], gates[:, heads:])

    def exact(self, x, gates):
        w, x = self.weights, x.double()
        both = x[:, : 2 * self.of_keys].view(len(x), 2, w.key_heads, w.key_dim)
        both = both / (both.square().sum(-1, keepdim=True) + w.eps).sqrt()
        query, key = both.repeat_interleave(w.heads // w.key_heads, 2).unbind(1)
        value = x[:, 2 * self.of_keys :].view(len(x), w.heads, w.value_dim)
        b, alpha = gates.double().split([w.heads, len(w.dt_bias)], 1)
        size, rates = (alpha + w.dt_bias.double()).view(len(x), w.heads, -1), w.a.double().unsqueeze(1)
        logarithms = w.lower_bound * torch.sigmoid(-rates * size) if w.lower_bound else softplus(size) * rates
        decay = torch.exp(logarithms).unsqueeze(3)
        state, outputs = torch.zeros(w.heads, w.key_dim, w.value_dim, dtype=torch.float64), []
        for t in range(len(x)):
            state = decay[t] * state
            beta = w.max_beta * b[t].sigmoid().unsqueeze(1)
            change = (value[t] - torch.einsum("hk,hkv->hv", key[t], state)) * beta
            state = state + torch.einsum("hk,hv->hkv", key[t], change)
            outputs.append(torch.einsum("hk,hkv->hv", query[t], state) * w.key_dim**-0.5)
        return torch.stack(outputs).flatten(1)


LAYERS = {
    "mamba 1": Mamba1Layer(160, 16),
    "mamba 1, no whole columns": Mamba1Layer(71, 24),
    "mamba 2": Mamba2Layer(4, 64, 2, 128),
    "mamba 2, one group": Mamba2Layer(3, 48, 1, 16, (0.01, 0.5)),
    "mamba 2, no whole columns": Mamba2Layer(2, 20, 2, 24),
    "gated delta": GatedDeltaLayer(4, 2, 128, 128),
    "gated delta, no whole columns": GatedDeltaLayer(3, 3, 20, 24, max_beta=2.0),
    "gated delta, decays of elements": GatedDeltaLayer(3, 3, 20, 24, decays=20),
    "gated delta, bounded decays": GatedDeltaLayer(3, 3, 20, 24, decays=20, lower_bound=-5.0),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCES = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 2**-16}


def requests_of(layer, dtype, kind="plain", lengths=LENGTHS):
    return Requests.of([layer.inputs(n, kind, dtype, 10 + n) for n in lengths], BLOCK_SIZE)


def selective(recurrences):
    """The SelectiveScan of the same backend."""
    if isinstance(recurrences, TorchRecurrences):
        return TorchSelectiveScan()
    if isinstance(recurrences, CudaRecurrences):
        return CudaSelectiveScan(recurrences._launcher)
    return CpuSelectiveScan(recurrences._pool, recurrences._buffers)


def states_for(layer, requests):
    """NaN where nothing was stored, and room of another layer's between blocks."""
    heads, *shape = layer.weights.state_shape
    return torch.full((requests.num_blocks, heads + 1, *shape), torch.nan)[:, 1:]


def computed(layer, recurrences, requests, states, steps, **options):
    def run(*arguments):
        return layer.run(recurrences, *arguments)

    return requests.computed(run, states, steps, **options)


@pytest.fixture(scope="module")
def cpu_recurrences(cpu_pools):
    return [CpuRecurrences(pool, Buffers()) for pool in cpu_pools]


@pytest.mark.long_in_software
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_scans_are_those_of_float64_for_any_rows_and_any_division_into_steps(name, dtype, cpu_recurrences):
    layer = LAYERS[name]
    requests = requests_of(layer, dtype)
    whole = states_for(layer, requests)
    expected = computed(layer, cpu_recurrences[0], requests, whole, at_once(LENGTHS))
    for own, inputs in zip(expected, requests.inputs, strict=True):
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(own.double(), layer.exact(*inputs), rtol=tolerance, atol=tolerance)
    for steps in (one_by_one(LENGTHS), mixed(LENGTHS, 1)):
        states = states_for(layer, requests)
        for found, own in zip(computed(layer, cpu_recurrences[1], requests, states, steps), expected, strict=True):
            assert_same_bits(found, own)
        for found, own in zip(requests.full_blocks(states), requests.full_blocks(whole), strict=True):
            assert_same_bits(found, own)


@pytest.mark.parametrize("name", ["mamba 1", "mamba 2", "gated delta"])
def test_a_request_may_start_from_a_full_block_of_another(name, cpu_recurrences):
    layer = LAYERS[name]
    requests = requests_of(layer, torch.float32, lengths=(100, 100))
    for own, other in zip(*requests.inputs, strict=True):
        other[:48] = own[:48]
        other[48:] += 1
    states = states_for(layer, requests)
    alone = computed(layer, cpu_recurrences[0], requests, states.clone(), at_once((100, 100)))[1]
    requests.tables[1, 0] = requests.tables[0, 0]
    computed(layer, cpu_recurrences[0], requests, states, [[(0, 100)]])
    shared = requests.full_blocks(states)[0].clone()
    after = computed(layer, cpu_recurrences[0], requests, states, [[(1, 3)], [(1, 49)]], done=[100, 48])[1]
    assert_same_bits(after, alone[48:])
    assert_same_bits(requests.full_blocks(states)[0], shared)


@pytest.mark.parametrize("name", LAYERS)
def test_the_torch_reference_agrees(name, cpu_recurrences):
    layer = LAYERS[name]
    requests = requests_of(layer, torch.float32)
    states, own_states = (states_for(layer, requests) for _ in range(2))
    expected = computed(layer, cpu_recurrences[0], requests, states, mixed(LENGTHS, 4))
    found = computed(layer, TorchRecurrences(), requests, own_states, mixed(LENGTHS, 4))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own_states, states, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    "layer",
    [*LAYERS.values(), Mamba1Layer(16, 16), Mamba2Layer(4, 16, 2, 24), GatedDeltaLayer(4, 2, 24, 16)],
    ids=[*LAYERS, *(f"{name}, one column" for name in ("mamba 1", "mamba 2", "gated delta"))],
)
def test_the_torch_reference_has_the_same_bits_for_any_division_into_steps(layer):
    lengths = (20, 3)
    requests = requests_of(layer, torch.float32, lengths=lengths)
    expected, *others = (
        computed(layer, TorchRecurrences(), requests, states_for(layer, requests), steps)
        for steps in (at_once(lengths), one_by_one(lengths), mixed(lengths, 1))
    )
    for found in others:
        for one, own in zip(found, expected, strict=True):
            assert_same_bits(one, own)


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_padding_write_nothing(name, cpu_recurrences):
    layer = LAYERS[name]
    requests = requests_of(layer, torch.bfloat16, lengths=(2,))
    states = states_for(layer, requests)
    starts, kv_lens = torch.tensor([0, 1, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    rows = StateRows(torch.zeros(2, 1, dtype=torch.int32), starts, kv_lens, BLOCK_SIZE)
    for recurrences in cpu_recurrences:
        layer.run(recurrences, rows, states, *requests.inputs[0])
        assert bool(states.isnan().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_every_instruction_set_has_the_same_bits(name, dtype, kind, isa_pools):
    layer = LAYERS[name]
    requests = requests_of(layer, dtype, kind, lengths=(20, 3))
    results = []
    for pool in isa_pools:
        states, recurrences = states_for(layer, requests), CpuRecurrences(pool, Buffers())
        results.append((*computed(layer, recurrences, requests, states, mixed((20, 3), 0)), states))
    for result in results[1:]:
        for one, expected in zip(result, results[0], strict=True):
            assert_same_bits(one, expected)
