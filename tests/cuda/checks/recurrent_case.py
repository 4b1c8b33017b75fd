"""Recurrent layers of random weights, and requests that pass through them in steps on any launcher."""

from contextlib import contextmanager
from dataclasses import fields, replace

import torch

from paged_serve.workers.backends.cuda.recurrences import CudaRecurrences
from paged_serve.workers.kernels.cuda.recurrent import causal_conv as convolutions
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.weights import CausalConv

from ...workers.portable_numbers import normals
from ...workers.recurrent.schedules import Requests
from ...workers.recurrent.test_scans import GatedDeltaLayer, Mamba1Layer, Mamba2Layer
from ..executors import device_of

LAYERS = {
    "mamba 1": Mamba1Layer(160, 16),
    "mamba 1, no whole columns": Mamba1Layer(71, 24),
    "mamba 1, decays read for each token": Mamba1Layer(20, 136),
    "mamba 1, a large state": Mamba1Layer(40, 296),
    "mamba 2": Mamba2Layer(4, 64, 2, 128),
    "mamba 2, one group": Mamba2Layer(3, 48, 1, 16, (0.01, 0.5)),
    "mamba 2, no whole columns": Mamba2Layer(4, 20, 2, 24, (0.05, 0.3)),
    "mamba 2, a large state": Mamba2Layer(1, 40, 1, 296),
    "gated delta": GatedDeltaLayer(4, 2, 128, 128),
    "gated delta, no whole columns": GatedDeltaLayer(4, 2, 20, 24, max_beta=2.0),
    "gated delta, large keys": GatedDeltaLayer(1, 1, 260, 40),
}


IN_CHECK = (
    "mamba 1, no whole columns",
    "mamba 1, decays read for each token",
    "mamba 2, no whole columns",
    "gated delta, no whole columns",
)


class Convolution:
    """A convolution and its inputs: x, and factors of inputs and results if it has any, as columns of one matrix."""

    def __init__(self, channels, width, has_bias, activates, has_factors):
        bias = normals((channels,), 2) if has_bias else None
        self.weights = CausalConv(normals((width, channels), 1), bias, activates)
        self.parts = 3 if has_factors else 1
        self.state_shape = width - 1, channels

    def inputs(self, length, kind, dtype, seed):
        return [normals((length, self.parts * self.state_shape[1]), seed).to(dtype)]

    def run(self, recurrences, rows, states, wide):
        return recurrences.causal_conv(rows, states, self.weights, *wide.chunk(self.parts, 1))

    def exact(self, wide):
        x, *factors = wide.chunk(self.parts, 1)
        width, channels = self.weights.weight.shape
        inputs = (x * factors[0] if factors else x).double()
        padded = torch.cat([torch.zeros(width - 1, channels, dtype=torch.float64), inputs])
        total = sum(padded[j : j + len(x)] * self.weights.weight[j].double() for j in range(width))
        total = total if self.weights.bias is None else total + self.weights.bias.double()
        total = torch.nn.functional.silu(total) if self.weights.activates else total
        return total * factors[1].double() if factors else total


CONVOLUTIONS = {
    "mamba": Convolution(150, 4, True, True, False),
    "gated delta": Convolution(40, 4, False, True, False),
    "short convolution": Convolution(136, 3, False, False, True),
    "two": Convolution(33, 2, True, True, True),
    "eight": Convolution(33, 8, False, False, False),
}


class States:
    """A layer's states by block, with room of another layer's before each, and the CudaRecurrences that write them."""

    def __init__(self, launcher, layer, requests, dtype):
        self._requests, self.device = requests, device_of(launcher)
        is_scan = not isinstance(layer, Convolution)
        heads, *shape = layer.weights.state_shape if is_scan else layer.state_shape
        wide = requests.num_blocks + 1, heads + 1, *shape
        self._wide = torch.full(wide, torch.nan, dtype=torch.float32 if is_scan else dtype, device=self.device)
        self.blocks = self._wide[:, 1:]
        self._layer, self._recurrences = on_device(layer, self.device), CudaRecurrences(launcher)

    def run(self, rows, states, *inputs):
        rows = StateRows(
            *(each.to(self.device) for each in (rows.block_tables, rows.row_starts, rows.kv_lens)), rows.block_size
        )
        return self._layer.run(self._recurrences, rows, states, *(each.to(self.device) for each in inputs)).cpu()

    def computed(self, steps, **options):
        """The results by `steps`; asserts that no other memory than the rows' blocks was written."""
        found = self._requests.computed(self.run, self.blocks, steps, **options)
        assert bool(self._wide[:, 0].isnan().all()), "memory between states was written"
        used = torch.zeros(len(self.blocks), dtype=torch.bool)
        for table, length in zip(self._requests.tables, self._requests.lengths(), strict=True):
            used[table[: -(-length // self._requests.block_size)]] = True
        assert bool(self.blocks[~used.to(self.device)].isnan().all()), "a block of no row was written"
        return found

    def kept(self):
        """The states of full blocks, and of each request's last token."""
        requests = self._requests
        last = [
            table[(n - 1) // requests.block_size] for table, n in zip(requests.tables, requests.lengths(), strict=True)
        ]
        return [each.cpu() for each in (*requests.full_blocks(self.blocks), *(self.blocks[block] for block in last))]


def on_device(layer, device):
    """A copy of `layer` with its weights on the device."""
    moved = type(layer).__new__(type(layer))
    moved.__dict__ |= layer.__dict__
    tensors = {field.name: getattr(layer.weights, field.name) for field in fields(layer.weights) if field.init}
    on = {name: each.to(device) for name, each in tensors.items() if isinstance(each, torch.Tensor)}
    moved.weights = replace(layer.weights, **on)
    return moved


def requests_of(layer, dtype, lengths, block_size=16):
    return Requests.of([layer.inputs(n, "plain", dtype, 10 + n) for n in lengths], block_size)


@contextmanager
def in_spans(span):
    """Convolutions in blocks of `span` tokens."""
    usual = convolutions.FEW_TOKENS, convolutions.SPAN
    convolutions.FEW_TOKENS, convolutions.SPAN = 0, span
    try:
        yield
    finally:
        convolutions.FEW_TOKENS, convolutions.SPAN = usual
