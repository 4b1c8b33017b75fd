"""The interface of backends: factories for objects that hold weights, use the KV cache or process logits."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..checkpoint.packed_weight import PackedWeight
from ..checkpoint.weight_forms import Weight
from ..distributed.tensor_parallel import TensorParallelGroup
from ..geometry.experts import Experts
from ..geometry.layer_options import Latent
from ..geometry.model_options import Activation
from ..sampling.passes import Passes
from .adapters.ops import AdapterOps
from .attention import AttentionBackend, AttentionExperts, AttentionExpertWeights, KeySelector, LatentHeads, LatentLayer
from .decode_step import DecodeStep
from .embedding import Table, TiedTable
from .feed_forward import ExpertWeights, RoutedFeedForward
from .linear import Linear
from .ops import HeadLayout, Ops
from .recurrent.recurrences import Recurrences, SelectiveScan
from .streams.stream_ops import StreamOps


class Backend(Protocol):
    """A platform's operations. Factory methods may keep their argument, or pack it into another form and release it."""

    device: str
    adds_as_one_rank: bool  # whether the model's ranks add in the order of a single rank

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        """`weight` itself, or, if no product of this backend supports its form, its values in the model's `dtype`.

        Only a backend that packs weights on its own threads returns a StoredWeight unchanged.
        """
        ...

    def lacks_for_fp8(self, dtype: torch.dtype) -> str:
        """Why a model of `dtype` cannot be quantized to fp8 here, and the remedy; "" if it can."""
        ...

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear: ...

    def row_parallel(
        self, share: Weight, bias: Tensor | None, group: TensorParallelGroup, *, is_wide: bool = False
    ) -> Linear:
        """A product whose inputs are divided among ranks; `share` is this rank's. Every rank has the whole `bias`.

        `is_wide`: results may be float32 for any dtype of the model.
        """
        ...

    def head(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """A Linear whose results may be float32 for any dtype of the model."""
        ...

    def table(self, weight: Weight, of: str = "tokens", multiplier: float = 1.0) -> Table:
        """A float matrix times `multiplier` as a table. Rows are valid until the next lookup of the same `of`."""
        ...

    def tied_table(self, weight: Weight, multiplier: float = 1.0) -> TiedTable:
        """A table and a head that share one copy of the weights; the head ignores `multiplier`."""
        ...

    def experts(
        self, experts: Experts, activation: Activation, weights: ExpertWeights, group: TensorParallelGroup
    ) -> RoutedFeedForward:
        """Raises ConfigError if this backend has no kernels for it."""
        ...

    def attention_experts(
        self, experts: Experts, weights: AttentionExpertWeights, group: TensorParallelGroup
    ) -> AttentionExperts:
        """`intermediate_size` of `experts`: the queries of all KV heads."""
        ...

    def recurrences(self) -> Recurrences:
        """The operations of recurrent layers. Raises ConfigError if this backend has none."""
        ...

    def selective_scan(self) -> SelectiveScan:
        """The operations that Mamba 1 needs besides `recurrences`. Raises ConfigError if this backend has none."""
        ...

    def ops(self, heads: HeadLayout) -> Ops: ...

    def stream_ops(self, num_streams: int) -> StreamOps:
        """The operations on `num_streams` residual streams of each token."""
        ...

    def adapter_ops(self) -> AdapterOps: ...

    def attention(self, heads: HeadLayout) -> AttentionBackend: ...

    def latent_heads(self, layer: LatentLayer, attention: AttentionBackend) -> LatentHeads:
        """`attention` is this backend's, for the plans of the steps. Raises ConfigError if it has no kernels for it."""
        ...

    def key_selector(self, layer: int, sizes: Latent, attention: AttentionBackend) -> KeySelector:
        """For the indexer of a layer, as in `latent_heads`."""
        ...


@runtime_checkable
class PackingBackend(Backend, Protocol):
    """A backend that computes with packed weights and loads stored ones."""

    def packed(self, weight: Weight, num_ranks: int | None = None) -> PackedWeight:
        """`weight` packed as for `row_parallel` with `num_ranks` ranks; None: as for all other methods."""
        ...


@runtime_checkable
class HostBackend(Backend, Protocol):
    """A backend whose logits are sampled on the host."""

    def sampling(self, vocab_size: int) -> Passes: ...

    def decode_step(self, weights_bytes: int) -> DecodeStep:
        """A new DecodeStep for one runner of a model with so many bytes of weights on this rank.

        It may replay an earlier step with the same number of rows.
        """
        ...
