"""Builds an AltUpDecoder from this rank's share of a checkpoint."""

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import FloatReader
from ...geometry.layer_options import AltUp
from ...layers.adapters.sites import SitePart
from ...layers.embedding import VocabularyEmbedding
from ...layers.feed_forward import FeedForward, InputGate, LayerEnd
from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.ops import Ops
from ...layers.streams.sparse_feed_forward import SparseFeedForward, norm_of_cut
from ...layers.streams.stream_ops import NO_EPS, StreamOps
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..matrix_rows import Rows
from .decoder import SQRT_HALF, AltUpDecoder, AltUpEnds, AltUpLayer


class AltUpAssembly(Assembly):
    """Residual streams are float32, and with them the results of products that are added to them."""

    _streams: StreamOps

    def model(self, pooling: PoolingHead) -> AltUpDecoder:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        geometry = self._geometry
        altup = geometry.altup
        assert altup is not None, "the model has one residual stream"
        self._streams = self._backend.stream_ops(altup.num_streams)
        ends = self._ends(altup.num_streams)
        layers = [self._altup_layer(index, altup) for index in range(geometry.num_layers)]
        model = super().model(pooling)
        own = {each.name: getattr(model, each.name) for each in fields(model)}
        return AltUpDecoder(**own, num_streams=altup.num_streams, ends=ends, altup_layers=layers, streams=self._streams)

    def _ends(self, num_streams: int) -> AltUpEnds:
        names, hidden, ones = self._names.altup, self._geometry.hidden_size, torch.ones(self._geometry.hidden_size)
        ones = ones.to(self._device)
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
        names, hidden, count = self._names.altup, self._geometry.hidden_size, altup.num_streams
        router = Rows(names.router.format(index), count, (0, count))
        floats = FloatReader(self._checkpoint, self._geometry.dtype)
        (weight,) = self._weights(router.name, lambda: [self._rows(floats, router, hidden)])
        left = Rows(names.laurel_left.format(index), altup.laurel_rank, (0, altup.laurel_rank))
        return AltUpLayer(
            router=self._backend.head(weight),
            router_norm=self._rms_norm(names.router_norm.format(index), hidden, 1.0 / hidden),
            predict=self._weights_of_streams(names.predictions.format(index), count**2, count, predictions),
            correct=self._weights_of_streams(names.corrections.format(index), count, count, corrections),
            scale=self._vector(names.scale.format(index), hidden).float(),
            laurel_left=self._column_parallel([left], hidden, bias=False),
            laurel_right=self._wide(names.laurel_right.format(index), hidden, altup.laurel_rank),
            laurel_norm=self._norm(names.laurel_norm.format(index), hidden),
            input_gate=self._input_gate(index),
        )

    def _weights_of_streams(
        self, name: str, rows: int, count: int, combined: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Linear:
        """A product in float32, for any dtype of the model."""
        read = self._tensor(name, lambda: self._read_tensor(name, (rows, count), dtype=torch.float32))
        matrix, bias = combined(read.cpu())
        weight = self._backend.accepted(matrix.to(self._device), torch.float32)
        return self._backend.head(weight, bias.to(self._device))

    def _input_gate(self, index: int) -> InputGate:
        geometry, names = self._geometry, self._names.layer_inputs
        assert geometry.layer_inputs is not None, "the layers have no inputs"
        size, hidden = geometry.layer_inputs.size, geometry.hidden_size
        return InputGate(
            gate=self._whole(names.gate.format(index), size, hidden),
            activation=replace(geometry.activation, is_gated=True),
            projection=self._wide(names.output.format(index), hidden, size),
            norm=self._norm(names.output_norm.format(index), hidden),
        )

    def _layer_end(self, index: int) -> LayerEnd | None:
        """The input of a layer changes other streams than the layer's."""
        return None

    def _dense(self, index: int, ops: Ops) -> FeedForward:
        geometry, names = self._geometry, self._names
        if (cut := geometry.gate_cuts[index] if geometry.gate_cuts else None) is None:
            return super()._dense(index, ops)
        size, hidden = geometry.intermediate_size, geometry.hidden_size
        gate, up = (
            self._column_parallel([Rows(name.format(index), size, self._even_span(size))], hidden, bias=False)
            for name in (names.gate, names.up)
        )
        return SparseFeedForward(
            gate=gate,
            cut=norm_of_cut(size, cut, self._device),
            deviations=self._streams.deviations(size, geometry.dtype, is_centred=True),
            up=up,
            activation=geometry.activation,
            down=self._row_parallel(names.down.format(index), hidden, size, bias=False),
            ops=ops,
            streams=self._streams,
            group=self._group,
        )

    def _wide(self, name: str, outputs: int, inputs: int) -> Linear:
        """A product with float32 results, of which every rank computes all."""
        rows = Rows(name, outputs, (0, outputs))
        (weight,) = self._weights(name, lambda: [self._rows(self._source.projections, rows, inputs)])
        product = self._backend.head(weight)
        if self._adapters is None:
            return product
        return self._adapters.column_parallel(product, [SitePart(name, outputs, rows.chosen_rows(), outputs)], inputs)

    def _adapted_embedding(self, embedding: VocabularyEmbedding) -> VocabularyEmbedding:
        return super()._adapted_embedding(VocabularyEmbedding(self._streams.wide(embedding.table), self._group))


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
