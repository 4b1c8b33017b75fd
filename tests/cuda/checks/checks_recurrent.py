"""Checks of the kernels of recurrent layers, each for one case on any launcher.

Results are compared with float64, states with those of plain torch, and the bits of tokens in one chunk with their bits
in other steps, beside other requests and from kept states.
"""

import torch
from torch.nn.functional import silu, softplus

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences
from paged_serve.workers.backends.cuda.recurrences import CudaRecurrences, CudaSelectiveScan
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cuda.recurrent.gates import GATE_FUNCTIONS, sigmoid_gate
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.weights import GatedNorm, PartNorms

from ...workers.portable_numbers import assert_same_bits, normals
from ...workers.recurrent.schedules import at_once, mixed, one_by_one
from .checks_elementwise import inner_of, untouched
from .recurrent_case import CONVOLUTIONS, IN_CHECK, LAYERS, States, in_spans, requests_of

BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCES = {BF16: 2**-8, FP16: 2**-10}
LENGTHS = (37, 1, 16, 2)


def check_layer(launcher, layer, dtype, lengths=LENGTHS, seeds=(1,)):
    """Results and states are right, and each token's bits do not depend on the division into steps."""
    requests = requests_of(layer, dtype, lengths)
    whole = States(launcher, layer, requests, dtype)
    expected = whole.computed(at_once(lengths))
    for own, inputs in zip(expected, requests.inputs, strict=True):
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(own.double(), layer.exact(*inputs), rtol=tolerance, atol=2 * tolerance)
    _check_states(layer, requests, whole)
    for steps in (one_by_one(lengths), *(mixed(lengths, seed) for seed in seeds)):
        states = States(launcher, layer, requests, dtype)
        _assert_all_same(states.computed(steps), expected)
        _assert_all_same(states.kept(), whole.kept())


def _check_states(layer, requests, found):
    """The kept states are those of plain torch."""
    states = torch.full_like(found.blocks, torch.nan, device="cpu")

    def run(*arguments):
        return layer.run(TorchRecurrences(), *arguments)

    requests.computed(run, states, at_once(requests.lengths()))
    torch.testing.assert_close(found.blocks.cpu(), states, rtol=1e-4, atol=1e-5, equal_nan=True)


def check_states_have_the_bits_of_the_cpu(launcher, layer, dtype, lengths=(37, 3)):
    """Only sums over a state have another order than in csrc/cpu. Does nothing if its kernels are not built."""
    if (library := cpu.best_library()) is None:
        return
    pool, requests = cpu.Pool(library, [-1]), requests_of(layer, dtype, lengths)
    requests.inputs[1][1].mul_(64)  # steps so long that decays are the least powers
    states, recurrences = States(launcher, layer, requests, dtype), CpuRecurrences(pool, Buffers())
    states.computed(at_once(lengths))
    expected = torch.full_like(states.blocks, torch.nan, device="cpu")
    requests.computed(lambda *arguments: layer.run(recurrences, *arguments), expected, at_once(lengths))
    pool.close()
    assert_same_bits(states.blocks.cpu(), expected)


def _assert_all_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


def check_spans_of_convolutions(launcher, layer, dtype, spans=(1, 2, 5)):
    """No number of tokens of a thread block changes a bit, of results or of states."""
    lengths, results = (19, 1, 2, 1, 35), []
    requests = requests_of(layer, dtype, lengths)
    for span in spans:
        states = States(launcher, layer, requests, dtype)
        with in_spans(span):
            results.append(
                [*states.computed([[(0, 3), (1, 1), (2, 2), (4, 13)], [(4, 22), (0, 16), (3, 1)]]), *states.kept()]
            )
    for each in results[1:]:
        _assert_all_same(each, results[0])


def check_a_start_from_a_kept_state(launcher, layer, dtype):
    """Another request's full block gives the bits of the whole prompt, and is not written."""
    requests = requests_of(layer, dtype, (40, 40))
    for own, other in zip(*requests.inputs, strict=True):
        other[:32] = own[:32]
        other[32:] += 1
    alone = States(launcher, layer, requests, dtype).computed(at_once((40, 40)))[1]
    states = States(launcher, layer, requests, dtype)
    requests.tables[1, :2] = requests.tables[0, :2]
    states.computed([[(0, 40)]])
    shared = requests.full_blocks(states.blocks)[1].clone()
    after = states.computed([[(1, 3)], [(1, 5)]], done=[40, 32])[1]
    assert_same_bits(after, alone[32:])
    assert_same_bits(requests.full_blocks(states.blocks)[1].cpu(), shared.cpu())


def check_padding(launcher, layer, dtype):
    """Rows that pad a graph's batch have no state, and change nothing of the row before them."""
    requests = requests_of(layer, dtype, (1,))
    (inputs,) = requests.inputs
    expected = States(launcher, layer, requests, dtype)
    (alone,) = expected.computed([[(0, 1)]])
    states = States(launcher, layer, requests, dtype)
    tables = torch.tensor([[0], [2**30], [2**30]], dtype=torch.int32)
    starts, kv_lens = torch.tensor([0, 1, 2, 3], dtype=torch.int32), torch.tensor([1, 0, 0], dtype=torch.int32)
    rows = StateRows(tables, starts, kv_lens, 16)
    wide = [torch.cat([each, torch.full_like(each, torch.nan).expand(2, -1)]) for each in inputs]
    found = states.run(rows, states.blocks, *wide)
    assert_same_bits(found[:1], alone)
    assert_same_bits(states.blocks.cpu(), expected.blocks.cpu())


def check_gated_norm(launcher, dtype, rows, size, group_size, gates_last, device="cpu"):
    norm = GatedNorm(normals((size,), 1).to(device), group_size, 1e-5, gates_last)
    wide = normals((rows, 3 * size), size).to(dtype)
    wide[0] /= 1024  # so small that eps counts
    x, gate = wide[:, :size], wide[:, size : 2 * size]
    gates = silu(gate.double())
    grouped = (x.double() if gates_last else x.double() * gates).view(rows, -1, group_size)
    normed = (grouped / (grouped.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * norm.weight.cpu().double()
    found = CudaRecurrences(launcher).gated_norm(norm, x.to(device), wide.to(device)[:, size : 2 * size]).cpu()
    exact, tolerance = normed * gates if gates_last else normed, TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=1e-6)
    alone = CudaRecurrences(launcher).gated_norm(norm, x[-1:].to(device), gate[-1:].to(device)).cpu()
    assert_same_bits(alone, found[-1:])


def check_sigmoid_gate(launcher, dtype, rows, size, by, device="cpu"):
    wide = normals((rows, 3 * size), size).to(dtype).to(device)
    x, gate = wide[:, :size], wide[:, size : 2 * size]
    guarded = untouched(dtype, device, rows, size)
    sigmoid_gate(launcher, x, gate, guarded[1:-1], by=by)
    function = {"sigmoid": torch.sigmoid, "silu": silu, "softplus": softplus}[by]
    exact = x.cpu().double() * function(gate.cpu().double())
    torch.testing.assert_close(inner_of(guarded).double(), exact, rtol=TOLERANCES[dtype], atol=1e-6)


def check_norm_parts(launcher, dtype, rows, steps, state_size, device="cpu"):
    """Each part of a row is normalised alone, with its own weights; rows of the input are strided."""
    sizes = (steps, state_size, state_size)
    norms = PartNorms(steps, state_size, normals((sum(sizes),), 1).to(device), 1e-5)
    wide = normals((rows, sum(sizes) + 3), steps).to(dtype)
    wide[0] /= 1024  # so small that eps counts
    parts = zip(wide[:, 3:].double().split(sizes, 1), norms.weight.cpu().double().split(sizes), strict=True)
    exact = torch.cat([x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight for x, weight in parts], 1)
    selective = CudaSelectiveScan(launcher)
    found = selective.normed_parts(norms, wide.to(device)[:, 3:]).cpu()
    torch.testing.assert_close(found.double(), exact, rtol=TOLERANCES[dtype], atol=1e-6)
    assert_same_bits(selective.normed_parts(norms, wide[-1:].to(device)[:, 3:]).cpu(), found[-1:])


def check_recurrent(launcher, device="cpu"):
    """All checks in small cases, which must detect a bug planted anywhere."""
    for name in ("mamba", "short convolution"):
        check_layer(launcher, CONVOLUTIONS[name], BF16, (37, 1, 3))
        check_spans_of_convolutions(launcher, CONVOLUTIONS[name], BF16)
        check_padding(launcher, CONVOLUTIONS[name], BF16)
        check_a_start_from_a_kept_state(launcher, CONVOLUTIONS[name], BF16)
    for name in IN_CHECK:
        check_layer(launcher, LAYERS[name], BF16, (37, 1, 3))
        check_a_start_from_a_kept_state(launcher, LAYERS[name], BF16)
        check_padding(launcher, LAYERS[name], BF16)
        if "gated" not in name:
            check_states_have_the_bits_of_the_cpu(launcher, LAYERS[name], BF16)
    check_gated_norm(launcher, BF16, 3, 600, 300, False, device)
    check_gated_norm(launcher, BF16, 3, 70, 70, True, device)
    check_norm_parts(launcher, BF16, 3, 150, 24, device)
    for by in GATE_FUNCTIONS:
        check_sigmoid_gate(launcher, BF16, 3, 277, by, device)
