"""The decoder of all families."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..geometry.geometry import Geometry
from ..kv.cache_view import CacheView
from ..kv.kv_cache import KVCache
from ..layers.adapters.sites import Adapters
from ..layers.attention import AttentionBackend
from ..layers.backend import Backend
from ..layers.embedding import OutputHead, Table, VocabularyEmbedding
from ..layers.feed_forward import FeedForward, LateExperts, LayerEnd, LayerInputs
from ..layers.norm import Norm
from ..layers.ops import Ops
from ..mixers.mixer import GroupStep, Mixer
from ..pooling.head import PoolingHead
from .taps import Taps


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer's weights, as this rank holds them."""

    attention_norm: Norm | None  # None: the mixer reads the residual stream without a norm
    mixer: Mixer
    attention_out_norm: Norm | None  # applied to the mixer's output before it is added
    mlp_norm: Norm | None  # None: likewise; in a parallel layer the feed-forward then reads attention's input
    feed_forward: FeedForward | None  # None: the layer ends with the mixer
    mlp_out_norm: Norm | None
    late_experts: LateExperts | None = None
    end: LayerEnd | None = None  # after the feed-forward's output and the last layer's late experts are added


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model. `forward` fills the cache and returns hidden states; `logits` scores the next token."""

    geometry: Geometry
    tp_size: int
    backend: Backend
    embedding: VocabularyEmbedding
    embedding_norm: Norm | None
    positions: Table | None  # learned; None: heads are rotated
    layers: list[DecoderLayer]
    final_norm: Norm
    output_head: OutputHead | None  # None: the model only returns vectors
    ops: Ops
    attention: AttentionBackend
    weights_bytes: int  # on this rank
    quantization: dict[str, str]  # human-readable facts; empty if nothing is quantized
    pooling: PoolingHead
    adapters: Adapters | None  # None: requests cannot use LoRA adapters
    layer_inputs: LayerInputs | None = field(default=None, kw_only=True)
    taps: Taps = field(default_factory=Taps, kw_only=True)
    libraries = ""  # whose versions its bits depend on: none

    @property
    def device(self) -> str:
        return self.backend.device

    @property
    def dtype(self) -> torch.dtype:
        return self.geometry.dtype

    @property
    def needs_all_tokens(self) -> bool:
        return len(self.layers) in self.taps.of_layer

    @property
    def adapters_bytes(self) -> int:
        return 0 if self.adapters is None else self.adapters.most_bytes()

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [returned tokens, hidden]. Writes all K and V to `cache`."""
        geometry, ops = self.geometry, self.ops
        residual = geometry.multipliers.residual
        norms = [*(layer.attention_norm for layer in self.layers), self.final_norm]
        hidden = self.embedding(batch.token_ids)
        if self.embedding_norm is not None:
            ops.norm(hidden, self.embedding_norm, out=hidden)
        inputs = None if self.layer_inputs is None else self.layer_inputs(batch.token_ids, hidden)
        if self.positions is None:
            normed = hidden if norms[0] is None else ops.norm(hidden, norms[0])
        else:
            normed = self._sum(hidden, self.positions.rows(batch.positions), norms[0])
        late: Tensor | None = None  # what the end of the next layer adds
        for index, (layer, step) in enumerate(zip(self.layers, self._steps_of_layers(batch, cache), strict=True)):
            if index in self.taps.of_layer:
                self.taps.copy(index, hidden, ops)
            mixed = layer.mixer(step, normed)
            hidden, normed = step.returned(hidden), step.returned(normed)
            if layer.feed_forward is None:
                normed = self._sum(hidden, mixed, norms[index + 1], residual)
                continue
            if geometry.is_parallel:
                into_mlp = normed if layer.mlp_norm is None else ops.norm(hidden, layer.mlp_norm)
            if layer.attention_out_norm is not None:
                mixed = ops.norm(mixed, layer.attention_out_norm)
            if geometry.is_parallel:
                ops.add(hidden, mixed, residual)
            else:
                into_mlp = self._sum(hidden, mixed, layer.mlp_norm, residual)
            awaited, late = late, None if layer.late_experts is None else layer.late_experts(into_mlp)
            changed = layer.feed_forward(into_mlp)
            if layer.mlp_out_norm is not None:
                changed = ops.norm(changed, layer.mlp_out_norm)
            if layer.end is None and awaited is None:
                normed = self._sum(hidden, changed, norms[index + 1], residual)
            else:
                normed = self._ended(index, hidden, (changed, awaited), inputs, step)
        if len(self.layers) in self.taps.of_layer:
            self.taps.copy(len(self.layers), normed, ops)
        return normed

    def _ended(
        self, index: int, hidden: Tensor, deltas: tuple[Tensor, Tensor | None], inputs: Tensor | None, step: GroupStep
    ) -> Tensor:
        """Add a layer's output and the late experts' to `hidden` in place, then apply the layer's end.

        Returns the input of the next product.
        """
        ops, end, is_last = self.ops, self.layers[index].end, index + 1 == len(self.layers)
        changed, late = deltas
        ops.add(hidden, changed, self.geometry.multipliers.residual)
        if late is not None:
            ops.add(hidden, step.returned(late))
        own = None
        if self.layer_inputs is not None and inputs is not None:
            own = self.layer_inputs.of_layer(inputs, index)
        if end is not None:
            end(hidden, own, ops, step.returned)
        norm = self.final_norm if is_last else self.layers[index + 1].attention_norm
        return hidden if norm is None else ops.norm(hidden, norm)

    def _steps_of_layers(self, batch: InputBatch, cache: KVCache) -> list[GroupStep]:
        """The last layer needs all tokens for their K and V, or states; the rest it computes for those it returns."""
        steps = self._steps(batch, cache)
        *earlier, last = (steps[group] for group in cache.groups.of_layer)
        return [*earlier, replace(last, returned_tokens=batch.returned_tokens)]

    def _steps(self, batch: InputBatch, cache: KVCache) -> list[GroupStep]:
        """The step of each KV group, then those of pairs (KVGroups.of_layer)."""
        groups = cache.groups
        views = [CacheView.of(batch, cache, group) for group in range(len(groups.windows))]
        attended = views[: len(views) - groups.num_state_groups]
        plans = self.attention.plan(attended, self.geometry.heads_of_rank(self.tp_size)) if attended else ()
        steps = list(map(GroupStep, attended, plans, self.ops.start_step(attended) if attended else ()))
        steps += [GroupStep(view) for view in views[len(attended) :]]
        return steps + [replace(steps[own], view=views[states]) for own, states in groups.pairs]

    def _sum(self, hidden: Tensor, delta: Tensor, norm: Norm | None, multiplier: float = 1.0) -> Tensor:
        """Add `multiplier` times `delta` to `hidden` in place.

        Returns the input of the next product: the sum, normalised by `norm` if there is one.
        """
        if norm is not None:
            return self.ops.add_norm(hidden, delta, norm, multiplier)
        self.ops.add(hidden, delta, multiplier)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[n, hidden] -> [n, vocab] float32, on every rank; in `out` if it is given, else valid until the next call."""
        assert self.output_head is not None, "the model only returns vectors"
        logits = self.output_head(hidden, out)
        return self.ops.cap(logits, cap) if (cap := self.geometry.caps.logits) else logits
