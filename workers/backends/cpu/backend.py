"""The backend of our CPU kernels: packed weights and fused operations."""

from dataclasses import replace

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...batch.input_batch import InputBatch
from ...checkpoint.packed_weight import PackedWeight
from ...checkpoint.weight_forms import Fp8BlockWeight, Fp8Weight, GroupedWeight, StoredWeight, Weight
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.experts import Experts
from ...geometry.layer_options import Latent
from ...geometry.model_options import Activation
from ...kernels.cpu.attention import MAX_HEAD_DIM
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.gemm import ROW_DTYPES
from ...kernels.cpu.library import Pool
from ...kernels.cpu.loading import packed
from ...kernels.cpu.packing import OCTET
from ...layers.adapters.ops import AdapterOps
from ...layers.attention import (
    AttentionBackend,
    AttentionExperts,
    AttentionExpertWeights,
    KeySelector,
    LatentHeads,
    LatentLayer,
)
from ...layers.decode_step import DecodeStep
from ...layers.embedding import Table, TiedTable
from ...layers.feed_forward import ExpertWeights, RoutedFeedForward
from ...layers.linear import Linear
from ...layers.ops import HeadLayout, Ops
from ...layers.recurrent.recurrences import Recurrences, SelectiveScan
from ...layers.rotary import Rotary
from ...layers.streams.stream_ops import StreamOps
from ...sampling.passes import Passes
from .adapters import CpuAdapterOps
from .attention import CpuPagedAttention
from .key_selector import CpuKeySelector
from .latent import CpuLatentHeads
from .ops import CpuOps
from .products.attention_experts import PackedAttentionExperts
from .products.fp8_product import is_fp8_product
from .products.packed_experts import PackedExperts
from .products.packed_linear import PackedHead, PackedLinear, PackedShare, PackedTable, TiedPackedTable
from .products.segments import has_whole_segments, in_segments, is_cut, segments_of_rank
from .recorded_forward import RecordedForward
from .recurrences import CpuRecurrences, CpuSelectiveScan
from .sampling import CpuPasses
from .streams import CpuStreamOps

QUEUED_WEIGHTS_BYTES = 64 << 20  # so many evict Python's objects from a core's caches, layer by layer


class CpuBackend:
    """The backend of one model on a pool's threads. The objects that it creates must be called from one thread."""

    device = "cpu"

    def __init__(self, pool: Pool):
        self._pool = pool
        self._buffers = Buffers()
        self._rotaries: dict[Rotary, None] = {}
        self.adds_as_one_rank = True  # as far as the weights packed until now show

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        """The form of `weight` that the kernels support: int4 needs 16-bit activations, MXFP4 and fp8 bfloat16."""
        match weight:
            case GroupedWeight() if not is_int4_product(weight, dtype):
                values = weight.dequantized().to(dtype)
                return StoredWeight((values,), dtype, is_cut=True) if has_part_of_word(weight, dtype) else values
            case Fp8Weight() | Fp8BlockWeight() if not is_fp8_product(weight, dtype):
                return weight.dequantized().to(dtype)
            case _:
                return weight

    def packed(self, weight: Weight, num_ranks: int | None = None) -> PackedWeight:
        if num_ranks is not None:
            self.adds_as_one_rank = self.adds_as_one_rank and has_whole_segments(weight, num_ranks)
            weight = in_segments(weight, segments_of_rank(weight, num_ranks))
        found = packed(self._pool, weight, must_be_finite=True)
        return replace(found, is_cut=True) if is_cut(weight) else found

    def lacks_for_fp8(self, dtype: torch.dtype) -> str:
        return "the CPU kernels do not quantize to fp8, though they multiply fp8 checkpoints; use quantization=int8"

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        return PackedLinear(self._pool, self._buffers, self.packed(weight), bias)

    def row_parallel(
        self, share: Weight, bias: Tensor | None, group: TensorParallelGroup, *, is_wide: bool = False
    ) -> Linear:
        segments = segments_of_rank(share, group.size)
        weight = self.packed(share, group.size)
        if group.size == 1:
            return PackedLinear(self._pool, self._buffers, weight, bias, segments, is_wide=is_wide)
        return PackedShare(self._pool, self._buffers, weight, bias, segments, group, is_wide=is_wide)

    def head(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        return PackedHead(self._pool, self._buffers, self.packed(weight), bias)

    def table(self, weight: Weight, of: str = "tokens", multiplier: float = 1.0) -> Table:
        table = self.packed(weight)
        return PackedTable(self._pool, self._buffers, table, table_dtype(table), multiplier, of)

    def tied_table(self, weight: Weight, multiplier: float = 1.0) -> TiedTable:
        table = self.packed(weight)
        return TiedPackedTable(self._pool, self._buffers, table, table_dtype(table), multiplier)

    def experts(
        self, experts: Experts, activation: Activation, weights: ExpertWeights, group: TensorParallelGroup
    ) -> RoutedFeedForward:
        share, segments = weights.shared_down, 1
        if share is not None:
            segments = segments_of_rank(share, group.size)
            share = self.packed(share, group.size)
        kept = replace(weights, gate_up=self.packed(weights.gate_up), down=self.packed(weights.down), shared_down=share)
        return PackedExperts(self._pool, self._buffers, experts, activation, kept, segments, group)

    def attention_experts(
        self, experts: Experts, weights: AttentionExpertWeights, group: TensorParallelGroup
    ) -> AttentionExperts:
        kept = replace(weights, queries=self.packed(weights.queries), output=self.packed(weights.output))
        return PackedAttentionExperts(self._pool, self._buffers, experts, kept, group)

    def ops(self, heads: HeadLayout) -> Ops:
        self._rotaries = dict.fromkeys(heads.rotaries)
        return CpuOps(self._pool, self._buffers, heads)

    def adapter_ops(self) -> AdapterOps:
        return CpuAdapterOps(self._pool, self._buffers)

    def recurrences(self) -> Recurrences:
        return CpuRecurrences(self._pool, self._buffers)

    def selective_scan(self) -> SelectiveScan:
        return CpuSelectiveScan(self._pool, self._buffers)

    def stream_ops(self, num_streams: int) -> StreamOps:
        return CpuStreamOps(self._pool, self._buffers, num_streams)

    def attention(self, heads: HeadLayout) -> AttentionBackend:
        if (largest := max(heads.head_dim, *(rotary.head_dim for rotary in heads.rotaries))) > MAX_HEAD_DIM:
            raise ConfigError(
                f"config.json: head_dim={largest} is more than the {MAX_HEAD_DIM} of the CPU kernels; "
                "use --cpu-isa torch, which is slow"
            )
        return CpuPagedAttention(self._pool, self._buffers)

    def latent_heads(self, layer: LatentLayer, attention: AttentionBackend) -> LatentHeads:
        packed = replace(layer, keys=self.packed(layer.keys), values=self.packed(layer.values))
        return CpuLatentHeads(self._pool, self._buffers, packed)

    def key_selector(self, layer: int, sizes: Latent, attention: AttentionBackend) -> KeySelector:
        assert sizes.indexer is not None, "the layer has no indexer"
        return CpuKeySelector(self._pool, self._buffers, layer, sizes, sizes.indexer)

    def sampling(self, vocab_size: int) -> Passes:
        return CpuPasses(self._pool)

    def decode_step(self, weights_bytes: int) -> DecodeStep:
        return RecordedForward(self._pool, self._places, queues=weights_bytes >= QUEUED_WEIGHTS_BYTES)

    def _places(self, batch: InputBatch) -> tuple[int, ...]:
        """The addresses that a step of `batch` reads and writes, except those of weights and cache, which are fixed."""
        assert self._rotaries, "a step came before the model was built"
        tokens = batch.token_ids, batch.positions, *batch.slots
        stored_lens = () if batch.stored_lens is None else (batch.stored_lens,)
        requests = batch.row_starts, batch.kv_lens, *batch.block_tables, *stored_lens
        adapters = [each.table for each in (batch.adapters, batch.logit_adapters) if each is not None]
        tables = [rotary.table(batch.longest) for rotary in self._rotaries]  # their scales grow with them
        return self._buffers.version, *(tensor.data_ptr() for tensor in (*tokens, *requests, *adapters, *tables))


def table_dtype(table: PackedWeight) -> torch.dtype:
    """The dtype of a table's rows: the model's."""
    return table.dtype or ROW_DTYPES[table.format][0]


def has_part_of_word(weight: GroupedWeight, dtype: torch.dtype) -> bool:
    """Whether the size of its groups alone prevents an int4 product; a rank's share of a longer group may have it."""
    return weight.bits == 4 and dtype.itemsize == 2 and weight.group_size % OCTET != 0


def is_int4_product(weight: GroupedWeight, dtype: torch.dtype) -> bool:
    has_rows = dtype == torch.bfloat16 if weight.is_e2m1 else dtype.itemsize == 2
    return weight.bits == 4 and weight.group_size % OCTET == 0 and has_rows
