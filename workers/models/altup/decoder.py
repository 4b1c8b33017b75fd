"""Decoders with several residual streams for each token (AltUp) and a learned residual of low rank (LAuReL)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.kv_cache import KVCache
from ...layers.feed_forward import InputGate
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...layers.streams.stream_ops import Deviations, StreamOps
from ...mixers.mixer import GroupStep
from ..decoder import DecoderLayer, Model

SQRT_HALF = math.sqrt(0.5)


@dataclass(frozen=True, slots=True, eq=False)
class AltUpLayer:
    """What a layer has beside attention and a feed-forward. Every rank holds all of it."""

    router: Linear
    router_norm: Norm
    predict: Linear  # weights of the streams in their predictions, and once more in the first, times sqrt(1 / 2)
    correct: Linear  # weights of the predictions, and of what the layer computed, in the streams
    scale: Tensor  # [hidden] float32, of the first stream, for the gate of the layer's input
    laurel_left: Linear
    laurel_right: Linear
    laurel_norm: Norm
    input_gate: InputGate


@dataclass(frozen=True, slots=True, eq=False)
class AltUpEnds:
    """What makes the streams of an embedding, and a hidden state of the streams. Every rank holds all of it."""

    entering: list[Linear]  # of each stream but the first
    leaving: list[Linear]
    unit_norm: Norm  # without weights
    magnitudes: Deviations
    ones: Tensor  # [hidden] float32
    shares: Tensor  # [hidden] float32: one divided by the number of streams


@dataclass(frozen=True, slots=True, eq=False)
class AltUpDecoder(Model):
    """A Model whose layers compute with the first of a token's streams, and predict and correct all of them."""

    num_streams: int
    ends: AltUpEnds
    altup_layers: list[AltUpLayer]
    streams: StreamOps

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [returned tokens, hidden]. Writes all K and V to `cache`."""
        assert self.layer_inputs is not None, "the layers have inputs"
        embedded = self.embedding(batch.token_ids)
        hidden = self.streams.rounded(embedded, self.dtype)
        inputs = self.layer_inputs(batch.token_ids, hidden)
        residual = self._entered(embedded, hidden)
        steps = self._steps(batch, cache)
        for index, group in enumerate(cache.groups.of_layer):
            own = self.layer_inputs.of_layer(inputs, index)
            self._layer(self.layers[index], self.altup_layers[index], steps[group], residual, own)
        if batch.returned_tokens is not None:
            residual = residual[batch.returned_tokens]
        return self._left(residual)

    def _of_token(self, residual: Tensor, number: int) -> Tensor:
        """One stream of `residual` [tokens, streams * hidden]: [tokens, hidden]."""
        hidden = self.geometry.hidden_size
        return residual[:, number * hidden : (number + 1) * hidden]

    def _entered(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The streams of the tokens: their embeddings, and projections of these with the same magnitude."""
        ops, streams, ends, count = self.ops, self.streams, self.ends, self.num_streams
        residual = streams.memory("streams", len(hidden), count * self.geometry.hidden_size)
        ops.scale(embedded, ends.ones, out=self._of_token(residual, 0))
        magnitudes = ends.magnitudes(embedded)
        for number, project in enumerate(ends.entering, 1):
            normed = ops.norm(project(hidden), ends.unit_norm)
            streams.scale_rows(normed.float(), magnitudes, out=self._of_token(residual, number))
        return residual

    def _layer(
        self, layer: DecoderLayer, altup: AltUpLayer, step: GroupStep, residual: Tensor, own_inputs: Tensor
    ) -> None:
        """Changes `residual` [tokens, streams * hidden] in place."""
        ops, streams, hidden = self.ops, self.streams, self.geometry.hidden_size
        first, tokens = self._of_token(residual, 0), len(residual)
        predictions = streams.memory("predictions", tokens, (self.num_streams + 1) * hidden)
        each, predicted = residual.view(-1, hidden), predictions.view(-1, hidden)
        streams.mix(each, self._weights(altup, altup.predict, first), out=predicted)
        active, total = self._of_token(predictions, 0), self._of_token(predictions, self.num_streams)
        self._compute(layer, altup, step, active, total)
        streams.mix(predicted, self._weights(altup, altup.correct, total), out=each)
        gate = altup.input_gate
        scaled = ops.scale(first, altup.scale, out=streams.memory("scaled stream", tokens, hidden))
        gated = ops.activate(gate.gate(streams.rounded(scaled, self.dtype)), gate.activation, own_inputs)
        change = ops.norm(gate.projection(gated), gate.norm)
        for number in range(1, self.num_streams):
            ops.add(self._of_token(residual, number), change)

    def _weights(self, altup: AltUpLayer, of: Linear, hidden: Tensor) -> Tensor:
        """The weights of a token's streams, as `of` computes them from `hidden` float32."""
        normed = self.streams.rounded(self.ops.norm(hidden, altup.router_norm), self.dtype)
        return of(self.ops.cap(altup.router(normed).float(), 1.0))

    def _compute(self, layer: DecoderLayer, altup: AltUpLayer, step: GroupStep, active: Tensor, total: Tensor) -> None:
        """Add to `total`, which is `active` times sqrt(1 / 2), what attention and feed-forward compute of `active`."""
        ops, streams = self.ops, self.streams
        assert layer.attention_norm is not None
        assert layer.attention_out_norm is not None
        assert layer.mlp_norm is not None
        assert layer.mlp_out_norm is not None
        assert layer.feed_forward is not None
        normed = ops.norm(active, layer.attention_norm)
        into = streams.rounded(normed, self.dtype)
        ops.add(total, normed, SQRT_HALF)
        ops.add(total, ops.norm(altup.laurel_right(altup.laurel_left(into)), altup.laurel_norm), SQRT_HALF)
        ops.add(total, ops.norm(layer.mixer(step, into), layer.attention_out_norm), SQRT_HALF)
        into = streams.rounded(ops.norm(total, layer.mlp_norm), self.dtype)
        ops.add(total, ops.norm(layer.feed_forward(into), layer.mlp_out_norm))

    def _left(self, residual: Tensor) -> Tensor:
        """The mean of the first stream and of projections of the others with its magnitude, normalised."""
        ops, streams, ends, count = self.ops, self.streams, self.ends, self.num_streams
        first = self._of_token(residual, 0)
        magnitudes = ends.magnitudes(first)
        total = ops.scale(first, ends.shares, out=streams.memory("mean of streams", *first.shape))
        for number, project in enumerate(ends.leaving, 1):
            normed = ops.norm(project(streams.rounded(self._of_token(residual, number), self.dtype)), ends.unit_norm)
            ops.add(total, streams.scale_rows(normed, magnitudes), 1.0 / count)
        return streams.rounded(ops.norm(total, self.final_norm), self.dtype)
