"""What a process computes with: the makers of everything that holds weights, touches the KV cache or visits logits."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .attention.backend import AttentionBackend
from .attention.single_tokens import SingleTokenAttention
from .attention.torch_oracle import TorchOracle
from .input_batch import InputBatch
from .kernels.packing import PackedWeight
from .layers.embedding import Table, TiedTable, TorchTable
from .layers.linear import Linear, Product, RowParallelLinear, TorchLinear, linear
from .layers.ops import Heads, Ops
from .layers.single_rows import aligned, linear_by_rows
from .layers.torch_ops import TorchOps
from .quantization.forms import Fp8Weight, GroupedWeight, Int8Weight, StoredWeight, Weight
from .quantization.torch_linear import TorchFp8Linear, TorchGroupedLinear, TorchInt8Linear
from .sampling.numpy_passes import NumpyPasses
from .sampling.passes import Passes
from .tensor_parallel import TensorParallelGroup

Forward = Callable[[InputBatch], Tensor]  # a model's `forward` over one cache


class Backend(Protocol):
    """Each maker may keep its argument, or pack it into a form of its own and let it go."""

    device: str

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        """`weight` itself, or, if no product of this backend takes its form, its values in the model's `dtype`.

        Only a backend that packs what it is given on its own threads keeps a StoredWeight.
        """
        ...

    def lacks_for_fp8(self, dtype: torch.dtype) -> str:
        """Why a model of `dtype` cannot be quantized to fp8 here, and what could be; "" if it can."""
        ...

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear: ...

    def row_parallel(self, share: Weight, bias: Tensor | None, group: TensorParallelGroup) -> Linear:
        """The product of all ranks' inputs, of which this one has `share`; `bias` is whole on every rank."""
        ...

    def head(self, weight: Weight) -> Linear:
        """A Linear whose results may be float32 whatever the model's dtype."""
        ...

    def table(self, weight: Weight) -> Table:
        """Of a float matrix."""
        ...

    def tied_table(self, weight: Weight) -> TiedTable:
        """`table` and `head` of the same weights, held once."""
        ...

    def ops(self, heads: Heads) -> Ops: ...

    def attention(self, heads: Heads) -> AttentionBackend: ...


@runtime_checkable
class PackingBackend(Backend, Protocol):
    """One that computes with packed weights, and takes those that it packed before."""

    def packed(self, weight: Weight, num_ranks: int | None = None) -> PackedWeight:
        """As `row_parallel` packs a share among `num_ranks`, or, for None, as every other maker packs `weight`."""
        ...


@runtime_checkable
class HostBackend(Backend, Protocol):
    """One whose steps the host waits for (ModelRunner), and samples."""

    def sampling(self, vocab_size: int) -> Passes: ...

    def recorded(self, forward: Forward) -> Forward:
        """`forward` for steps of DecodeInputs; it may have what it did for so many rows done again, without Python."""
        ...


class TorchBackend:
    """Plain torch, on any device. Its library may add a row's products in another order beside other rows."""

    def __init__(self, device: str = "cpu", product: Product = linear):
        self.device = device
        self._product = product

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        return weight.tensor() if isinstance(weight, StoredWeight) else weight

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

    def row_parallel(self, share: Weight, bias: Tensor | None, group: TensorParallelGroup) -> Linear:
        if group.size == 1:
            return self.linear(share, bias)
        return RowParallelLinear(self.linear(share), bias, group)

    def head(self, weight: Weight) -> Linear:
        return self.linear(weight)

    def table(self, weight: Weight) -> Table:
        return self.tied_table(weight)

    def tied_table(self, weight: Weight) -> TiedTable:
        assert isinstance(weight, Tensor), "not accepted"
        return TorchTable(weight, self._product)

    def ops(self, heads: Heads) -> Ops:
        return TorchOps(heads)

    def attention(self, heads: Heads) -> AttentionBackend:
        return TorchOracle()

    def sampling(self, vocab_size: int) -> Passes:
        return NumpyPasses(vocab_size)

    def recorded(self, forward: Forward) -> Forward:
        return forward


class SingleRowsBackend(TorchBackend):
    """What serves on a CPU without our kernels: plain torch, each row and each token by itself, so that none sees
    another. Slow, but the promise is kept on every processor."""

    def __init__(self) -> None:
        super().__init__("cpu", linear_by_rows)

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        kept = super().accepted(weight, dtype)
        return aligned(kept) if isinstance(kept, Tensor) else kept

    def attention(self, heads: Heads) -> AttentionBackend:
        return SingleTokenAttention()
