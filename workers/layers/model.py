"""The interface of models that a runner uses."""

from typing import Protocol

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..geometry.geometry import Geometry
from ..kv.kv_cache import KVCache
from ..pooling.head import PoolingHead
from .adapters.sites import Adapters
from .attention import AttentionBackend
from .backend import Backend


class Model(Protocol):
    """One rank's share of a model."""

    @property
    def geometry(self) -> Geometry: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def tp_size(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def pooling(self) -> PoolingHead: ...
    @property
    def adapters(self) -> Adapters | None: ...
    @property
    def adapters_bytes(self) -> int:
        """The most memory that LoRA adapters take, which is reserved for them."""
        ...

    @property
    def attention(self) -> AttentionBackend: ...
    @property
    def needs_all_tokens(self) -> bool:
        """Whether a step has to return the hidden states of all tokens, because a draft head reads them."""
        ...

    @property
    def weights_bytes(self) -> int: ...
    @property
    def quantization(self) -> dict[str, str]: ...
    @property
    def libraries(self) -> str: ...

    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [returned tokens, hidden]. Writes all K and V to `cache`."""
        ...

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[n, hidden] -> [n, vocab] float32, on every rank; in `out` if given, else valid until the next call."""
        ...
