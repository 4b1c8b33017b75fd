"""Builds an AltUpDecoder from this rank's share of a checkpoint."""

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import FloatReader
from ...geometry.layer_options import AltUp
from ...layers.adapters.sites import SitePart
from ...layers.feed_forward import InputGate
from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.streams.stream_ops import NO_EPS
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..matrix_rows import Rows
from ..readers.layer_reader import LayerReader
from .decoder import SQRT_HALF, AltUpDecoder, AltUpEnds, AltUpLayer
from .readers import NoLayerEnds, SparseFeedForwardReader, WideVocabularyReader


class AltUpAssembly(Assembly):
    """Residual streams are float32, and with them the results of products that are added to them."""

    def __init__(self, reader: LayerReader):
        super().__init__(reader)
        assert reader.geometry.altup is not None, "the model has one residual stream"
        self._altup = reader.geometry.altup
        self._streams = reader.backend.stream_ops(self._altup.num_streams)
        self._vocabulary = WideVocabularyReader(reader, self._streams)
        self._feed_forward = SparseFeedForwardReader(reader, self._ops, self._streams)
        self._layer_input = NoLayerEnds(reader)

    def model(self, pooling: PoolingHead) -> AltUpDecoder:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        altup = self._altup
        ends = self._ends(altup.num_streams)
        layers = [self._altup_layer(index, altup) for index in range(self._reader.geometry.num_layers)]
        model = super().model(pooling)
        own = {each.name: getattr(model, each.name) for each in fields(model)}
        return AltUpDecoder(**own, num_streams=altup.num_streams, ends=ends, altup_layers=layers, streams=self._streams)

    def _ends(self, num_streams: int) -> AltUpEnds:
        reader = self._reader
        names, hidden = reader.names.altup, reader.geometry.hidden_size
        ones = torch.ones(hidden).to(reader.device)
        others = range(num_streams - 1)
        return AltUpEnds(
            entering=[self._wide(names.entering.format(number), hidden, hidden) for number in others],
            leaving=[self._wide(names.leaving.format(number), hidden, hidden) for number in others],
            unit_norm=RMSNorm(ones, NO_EPS),
            magnitudes=self._streams.deviations(hidden, torch.float32, is_centred=False),
            ones=ones,
            shares=ones / num_streams,
        )

    def _altup_layer(self, index: int, altup: AltUp) -> AltUpLayer:
        reader = self._reader
        names, hidden, count = reader.names.altup, reader.geometry.hidden_size, altup.num_streams
        router = Rows(names.router.format(index), count, (0, count))
        floats = FloatReader(reader.checkpoint, reader.geometry.dtype)
        (weight,) = reader.weights(router.name, lambda: [reader.rows(floats, router, hidden)])
        left = Rows(names.laurel_left.format(index), altup.laurel_rank, (0, altup.laurel_rank))
        return AltUpLayer(
            router=reader.backend.head(weight),
            router_norm=reader.rms_norm(names.router_norm.format(index), hidden, 1.0 / hidden),
            predict=self._weights_of_streams(names.predictions.format(index), count**2, count, predictions),
            correct=self._weights_of_streams(names.corrections.format(index), count, count, corrections),
            scale=reader.vector(names.scale.format(index), hidden).float(),
            laurel_left=reader.column_parallel([left], hidden, bias=False),
            laurel_right=self._wide(names.laurel_right.format(index), hidden, altup.laurel_rank),
            laurel_norm=reader.norm(names.laurel_norm.format(index), hidden),
            input_gate=self._input_gate(index),
        )

    def _weights_of_streams(
        self, name: str, rows: int, count: int, combined: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Linear:
        """A product in float32, for any dtype of the model."""
        reader = self._reader
        read = reader.tensor(name, lambda: reader.read_tensor(name, (rows, count), dtype=torch.float32))
        matrix, bias = combined(read.cpu())
        weight = reader.backend.accepted(matrix.to(reader.device), torch.float32)
        return reader.backend.head(weight, bias.to(reader.device))

    def _input_gate(self, index: int) -> InputGate:
        reader = self._reader
        geometry, names = reader.geometry, reader.names.layer_inputs
        assert geometry.layer_inputs is not None, "the layers have no inputs"
        size, hidden = geometry.layer_inputs.size, geometry.hidden_size
        return InputGate(
            gate=self._layer_input.whole(names.gate.format(index), size, hidden),
            activation=replace(geometry.activation, is_gated=True),
            projection=self._wide(names.output.format(index), hidden, size),
            norm=reader.norm(names.output_norm.format(index), hidden),
        )

    def _wide(self, name: str, outputs: int, inputs: int) -> Linear:
        """A product with float32 results, of which every rank computes all."""
        reader = self._reader
        rows = Rows(name, outputs, (0, outputs))
        (weight,) = reader.weights(name, lambda: [reader.rows(reader.source.projections, rows, inputs)])
        product = reader.backend.head(weight)
        if reader.adapters is None:
            return product
        return reader.adapters.column_parallel(product, [SitePart(name, outputs, rows.chosen_rows(), outputs)], inputs)


def predictions(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of `count` streams in their predictions, then in the first of these once more, times sqrt(1 / 2).

    `coefficients` [count * count, count] are those of the changes that predictions make. A matrix and a bias.
    """
    count = coefficients.shape[1]
    bias = torch.eye(count).flatten()
    return (
        torch.cat([coefficients, coefficients[:count] * SQRT_HALF]),
        torch.cat([bias, bias[:count] * SQRT_HALF]),
    )


def corrections(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of `count` predictions and of the computed first stream in the streams. A matrix and a bias.

    A stream is its prediction, and (1 + coefficient) times what the first stream's prediction lacks.
    """
    count = coefficients.shape[1]
    matrix = torch.zeros(count, count + 1, count)
    matrix[:, 0], matrix[:, count] = -coefficients, coefficients
    bias = torch.eye(count, count + 1)
    bias[:, 0] -= 1.0
    bias[:, count] += 1.0
    return matrix.view(-1, count), bias.flatten()
