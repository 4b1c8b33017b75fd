"""Drafts in recurrent layers: no state is stored after one until it is accepted, and then it has the same bits."""

import random

import numpy as np
import pytest
import torch

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences
from paged_serve.workers.backends.torch.recurrences import TorchRecurrences
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kv.draft_inputs import DraftInputs
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.keeping import KeepingRecurrences, KeepingSelectiveScan
from paged_serve.workers.speculation.accepted_states import accepted_spans

from ..portable_numbers import assert_same_bits
from . import test_causal_conv as convolutions
from .schedules import Requests, one_by_one
from .test_scans import LAYERS, Mamba1Layer, requests_of, selective, states_for

LENGTHS = (70, 120, 3, 16)
MOST = 40  # drafts: more than the tokens whose inputs a kernel converts at once


def scan_case(name):
    """Requests, new states, and a function that runs the layer on a backend."""
    layer = LAYERS[name]
    requests = requests_of(layer, torch.bfloat16, lengths=LENGTHS)

    def run(recurrences, *arguments):
        if isinstance(layer, Mamba1Layer):
            w, (rows, states, x, steps, wide) = layer.weights, arguments
            scan = KeepingSelectiveScan(selective(recurrences._inner), recurrences)
            return scan.scan(rows, states, w, x, steps[:, 3:], wide[:, 5:])
        return layer.run(recurrences, *arguments)

    return requests, lambda: states_for(layer, requests), run


def convolution_case(form):
    requests = convolutions.requests_of(form, torch.bfloat16, lengths=LENGTHS)

    def run(recurrences, rows, states, wide):
        x, *factors = convolutions.columns(form, wide)
        return recurrences.causal_conv(rows, states, convolutions.conv_of(form), x, *factors)

    return requests, lambda: convolutions.states_for(requests, form, torch.bfloat16), run


CASES = {
    **{name: lambda name=name: scan_case(name) for name in LAYERS},
    **{form: lambda form=form: convolution_case(form) for form in convolutions.FORMS},
}


def speculated(requests: Requests, recurrences, states, run, seed: int) -> list[torch.Tensor]:
    """The results of all tokens, computed in steps of one token and random drafts; rejected ones are other inputs."""
    rng, kept, done = random.Random(seed), DraftInputs(), [0] * len(requests.inputs)
    found: list[list[torch.Tensor]] = [[] for _ in done]
    while going := [row for row, length in enumerate(requests.lengths()) if done[row] < length]:
        rows = rng.sample(going, rng.randint(1, len(going)))
        left = [requests.lengths()[row] - done[row] - 1 for row in rows]
        accepted = [min(rest, rng.choice((0, 0, 1, 3, MOST))) for rest in left]
        drafted = [count + rng.choice((0, 2, 20)) for count in accepted]
        inputs = []
        for place in range(len(requests.inputs[0])):
            parts = []
            for row, count, most in zip(rows, accepted, drafted, strict=True):
                own = requests.inputs[row][place][done[row] : done[row] + count + 1]
                parts += [own, own[:1].expand(most - count, -1) * 3]
            inputs.append(torch.cat(parts))
        starts = np.cumsum([0, *(1 + count for count in drafted)]).astype(np.int32)
        stored_lens = np.array([done[row] + 1 for row in rows], np.int32)
        tables = requests.tables[rows].contiguous()
        of_rows = [torch.from_numpy(each) for each in (starts, stored_lens + np.array(drafted, np.int32), stored_lens)]
        kept.tokens = slice(0, int(starts[-1]))
        out = run(recurrences, StateRows(tables, *of_rows[:2], requests.block_size, of_rows[2], kept), states, *inputs)
        for row, start, count in zip(rows, starts[:-1].tolist(), accepted, strict=True):
            found[row].append(out[start : start + count + 1].clone())
            done[row] += count + 1
        if any(accepted):
            spans = accepted_spans(starts[:-1] + 1, stored_lens, np.array(accepted))
            of_spans = map(torch.from_numpy, spans)
            again = StateRows(tables.repeat_interleave(2, 0), *of_spans, requests.block_size)
            kept.again({0: again}.__getitem__)
    return [torch.cat(own) for own in found]


def with_room(requests: Requests) -> Requests:
    """With blocks for drafts behind the last token: nothing is ever written there."""
    longer = Requests.of([[*own] for own in requests.inputs], requests.block_size)
    more = -(-2 * MOST // requests.block_size)
    room = torch.arange(len(longer.tables) * more, dtype=torch.int32).view(-1, more) + longer.num_blocks
    longer.tables = torch.cat([longer.tables, room], 1)
    return longer


@pytest.mark.parametrize("name", CASES)
def test_states_advance_by_accepted_drafts_alone(name, isa_pools):
    requests, new_states, run = CASES[name]()
    backends = [CpuRecurrences(pool, Buffers()) for pool in isa_pools]
    plain = new_states()
    whole = requests.computed(
        lambda *step: run(KeepingRecurrences(backends[0]), *step), plain, one_by_one(requests.lengths())
    )
    roomy = with_room(requests)
    for seed, backend in enumerate(backends):
        states = torch.full((roomy.num_blocks, *plain.shape[1:]), torch.nan, dtype=plain.dtype)
        found = speculated(roomy, KeepingRecurrences(backend), states, run, seed)
        for own, expected in zip(found, whole, strict=True):
            assert_same_bits(own, expected)
        assert_same_bits(states[: len(plain)].contiguous(), plain.contiguous())
        assert bool(states[len(plain) :].isnan().all())


@pytest.mark.parametrize("name", ["mamba 1", "mamba 2", "gated delta", "short convolution"])
def test_the_torch_reference_agrees(name):
    requests, new_states, run = CASES[name]()
    plain, states = new_states(), new_states()
    whole = requests.computed(
        lambda *step: run(KeepingRecurrences(TorchRecurrences()), *step), plain, one_by_one(requests.lengths())
    )
    roomy = with_room(requests)
    states = torch.full((roomy.num_blocks, *plain.shape[1:]), torch.nan, dtype=plain.dtype)
    found = speculated(roomy, KeepingRecurrences(TorchRecurrences()), states, run, 1)
    for own, expected in zip(found, whole, strict=True):
        assert_same_bits(own, expected)
    assert_same_bits(states[: len(plain)].contiguous(), plain.contiguous())
