"""Decoders whose norms replace the residual stream (MiniMax-Text-01): outputs are added to normalised vectors."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..kv.kv_cache import KVCache
from ..layers.norm import Norm, RMSNorm
from ..pooling.head import PoolingHead
from .assembly import Assembly
from .decoder import Model


@dataclass(frozen=True, slots=True, eq=False)
class ResidualNormDecoder(Model):
    """A Model with the norms of pre-norm layers, whose results are also what the next output is added to."""

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer: [returned tokens, hidden]. Writes keys, values and states to `cache`."""
        ops, factor = self.ops, self.geometry.multipliers.residual
        norms = [*(layer.attention_norm for layer in self.layers), self.final_norm]
        hidden = self._normalised(self.embedding(batch.token_ids), norms[0])
        for layer, step, norm in zip(self.layers, self._steps_of_layers(batch, cache), norms[1:], strict=True):
            mixed, hidden = layer.mixer(step, hidden), step.returned(hidden)
            ops.add(hidden, mixed, factor)
            hidden = self._normalised(hidden, layer.mlp_norm)
            assert layer.feed_forward is not None
            ops.add(hidden, layer.feed_forward(hidden), factor)
            hidden = self._normalised(hidden, norm)
        return hidden

    def _normalised(self, hidden: Tensor, norm: Norm | None) -> Tensor:
        assert norm is not None, "a layer has no norm"
        return self.ops.norm(hidden, norm, out=hidden)


class ResidualNormAssembly(Assembly):
    """Builds a ResidualNormDecoder.

    Norms after the first are of factor * stream + output. The norm of stream + output / factor is the same, if its
    epsilon is divided by the factor's square.
    """

    def model(self, pooling: PoolingHead) -> ResidualNormDecoder:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        model = super().model(pooling)
        own = {each.name: getattr(model, each.name) for each in fields(model)}
        own["layers"] = [
            replace(
                layer,
                attention_norm=self._of_sum(layer.attention_norm) if index else layer.attention_norm,
                mlp_norm=self._of_sum(layer.mlp_norm),
            )
            for index, layer in enumerate(model.layers)
        ]
        return ResidualNormDecoder(**own | {"final_norm": self._of_sum(model.final_norm)})

    def _of_sum(self, norm: Norm | None) -> RMSNorm:
        assert isinstance(norm, RMSNorm), norm
        return RMSNorm(norm.weight, norm.eps / self._reader.geometry.multipliers.stream**2)
