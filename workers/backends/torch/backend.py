"""Plain torch as a backend: for devices without our kernels, as their oracle, and row by row for CPUs without them."""

import torch
from torch import Tensor

from ...checkpoint.blocks.block_weight import BlockWeight
from ...checkpoint.stacked_experts import of_expert
from ...checkpoint.weight_forms import (
    Fp8BlockWeight,
    Fp8Weight,
    GroupedWeight,
    Int8Weight,
    StoredWeight,
    Weight,
)
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.experts import Experts
from ...geometry.layer_options import Latent
from ...geometry.model_options import Activation
from ...layers.adapters.ops import AdapterOps
from ...layers.attention import (
    AttentionBackend,
    AttentionExperts,
    AttentionExpertWeights,
    KeySelector,
    LatentHeads,
    LatentLayer,
)
from ...layers.decode_step import DecodeStep, EagerDecodeStep
from ...layers.embedding import Table, TiedTable, TorchTable
from ...layers.feed_forward import ExpertWeights, RoutedFeedForward
from ...layers.linear import Linear, Product, RowParallelLinear, TorchLinear, linear
from ...layers.ops import HeadLayout, Ops
from ...layers.recurrent.recurrences import Recurrences, SelectiveScan
from ...layers.streams.stream_ops import StreamOps
from ...sampling.numpy_passes import NumpyPasses
from ...sampling.passes import Passes
from .adapters import TorchAdapterOps
from .attention import TorchOracle
from .experts import TorchAttentionExperts, TorchExperts
from .latent import TorchKeySelector, TorchLatentHeads
from .ops import TorchOps
from .quantized_linear import TorchFp8Linear, TorchGroupedLinear, TorchInt8Linear
from .recurrences import TorchRecurrences, TorchSelectiveScan
from .single_rows import aligned, linear_by_rows
from .single_tokens import SingleTokenAttention
from .streams import TorchStreamOps


class TorchBackend:
    """Plain torch on any device. The order in which a row's products are added may depend on the other rows."""

    def __init__(self, device: str = "cpu", product: Product = linear):
        self.device = device
        self.adds_as_one_rank = False
        self._product = product

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        match weight:
            case StoredWeight():
                return weight.tensor()
            case BlockWeight() | Fp8BlockWeight():
                return weight.dequantized().to(dtype)
            case _:
                return weight

    def lacks_for_fp8(self, dtype: torch.dtype) -> str:
        return ""

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        match weight:
            case Int8Weight():
                return TorchInt8Linear(weight, bias)
            case Fp8Weight():
                return TorchFp8Linear(weight, bias, self._product)
            case GroupedWeight():
                return TorchGroupedLinear(weight, bias, self._product)
            case _:
                assert isinstance(weight, Tensor), "not accepted"
                return TorchLinear(weight, bias, self._product)

    def row_parallel(
        self, share: Weight, bias: Tensor | None, group: TensorParallelGroup, *, is_wide: bool = False
    ) -> Linear:
        if group.size == 1:
            return self.linear(share, bias)
        return RowParallelLinear(self.linear(share), bias, group)

    def head(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        return self.linear(weight, bias)

    def table(self, weight: Weight, of: str = "tokens", multiplier: float = 1.0) -> Table:
        return self.tied_table(weight, multiplier)

    def tied_table(self, weight: Weight, multiplier: float = 1.0) -> TiedTable:
        assert isinstance(weight, Tensor), "not accepted"
        return TorchTable(weight, self._product, multiplier)

    def experts(
        self, experts: Experts, activation: Activation, weights: ExpertWeights, group: TensorParallelGroup
    ) -> RoutedFeedForward:
        held, width = experts.held_by(group.rank, group.size), activation.inputs(experts.intermediate_size)
        gates = self._products(weights.gate_up, weights.gate_up_bias, width, held)
        downs = self._products(weights.down, weights.down_bias, weights.gate_up.shape[1], held)
        shared = None
        if weights.shared_gate_up is not None and weights.shared_down is not None:
            shared = weights.shared_gate_up, self.row_parallel(weights.shared_down, None, group)
        pairs = list(zip(gates, downs, strict=True))
        return TorchExperts(
            experts, activation, weights.router, weights.correction, pairs, shared, group, weights.factors
        )

    def attention_experts(
        self, experts: Experts, weights: AttentionExpertWeights, group: TensorParallelGroup
    ) -> AttentionExperts:
        held = experts.held_by(group.rank, group.size)
        queries = self._products(weights.queries, None, experts.intermediate_size, held)
        outputs = self._products(weights.output, weights.bias, weights.queries.shape[1], held)
        pairs = list(zip(queries, outputs, strict=True))
        return TorchAttentionExperts(experts, weights.router, pairs, group)

    def _products(self, matrix: Weight, biases: Tensor | None, outputs: int, held: range) -> list[Linear]:
        """One for each expert of a stacked matrix."""
        each = range(len(held))
        return [self.linear(of_expert(matrix, i, outputs), None if biases is None else biases[i]) for i in each]

    def ops(self, heads: HeadLayout) -> Ops:
        return TorchOps(heads)

    def adapter_ops(self) -> AdapterOps:
        return TorchAdapterOps()

    def recurrences(self) -> Recurrences:
        return TorchRecurrences()

    def selective_scan(self) -> SelectiveScan:
        return TorchSelectiveScan()

    def stream_ops(self, num_streams: int) -> StreamOps:
        return TorchStreamOps(self.device)

    def attention(self, heads: HeadLayout) -> AttentionBackend:
        return TorchOracle()

    def latent_heads(self, layer: LatentLayer, attention: AttentionBackend) -> LatentHeads:
        return TorchLatentHeads(layer, attention, self._product)

    def key_selector(self, layer: int, sizes: Latent, attention: AttentionBackend) -> KeySelector:
        assert sizes.indexer is not None, "the layer has no indexer"
        return TorchKeySelector(layer, sizes, sizes.indexer, attention)

    def sampling(self, vocab_size: int) -> Passes:
        return NumpyPasses(vocab_size)

    def decode_step(self, weights_bytes: int) -> DecodeStep:
        return EagerDecodeStep()


class SingleRowsBackend(TorchBackend):
    """The backend for a CPU without our kernels: plain torch, one row and one token at a time, so that no row depends
    on another. It is slow, but deterministic on every processor."""

    def __init__(self) -> None:
        super().__init__("cpu", linear_by_rows)

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        kept = super().accepted(weight, dtype)
        return aligned(kept) if isinstance(kept, Tensor) else kept

    def attention(self, heads: HeadLayout) -> AttentionBackend:
        return SingleTokenAttention()
