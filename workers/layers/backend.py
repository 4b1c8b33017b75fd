"""What a process computes with: the makers of everything that holds weights, touches the KV cache or visits logits."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..checkpoint.packed_weight import PackedWeight
from ..checkpoint.weight_forms import Weight
from ..distributed.tensor_parallel import TensorParallelGroup
from ..sampling.passes import Passes
from .attention import AttentionBackend
from .decode_step import DecodeStep
from .embedding import Table, TiedTable
from .linear import Linear
from .ops import HeadLayout, Ops


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

    def head(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """A Linear whose results may be float32 whatever the model's dtype."""
        ...

    def table(self, weight: Weight, of: str = "tokens", multiplier: float = 1.0) -> Table:
        """Of a float matrix. Rows, times `multiplier`, are valid until others `of` the same are asked for."""
        ...

    def tied_table(self, weight: Weight, multiplier: float = 1.0) -> TiedTable:
        """`table` and `head` of the same weights, held once; the head's are not multiplied."""
        ...

    def ops(self, heads: HeadLayout) -> Ops: ...

    def attention(self, heads: HeadLayout) -> AttentionBackend: ...


@runtime_checkable
class PackingBackend(Backend, Protocol):
    """A backend that computes with packed weights and loads stored ones."""

    def packed(self, weight: Weight, num_ranks: int | None = None) -> PackedWeight:
        """As `row_parallel` packs a share among `num_ranks`, or, for None, as every other maker packs `weight`."""
        ...


@runtime_checkable
class HostBackend(Backend, Protocol):
    """One whose logits the host samples."""

    def sampling(self, vocab_size: int) -> Passes: ...

    def decode_step(self) -> DecodeStep:
        """For one runner; it may have what was done for so many rows done again, without Python."""
        ...
