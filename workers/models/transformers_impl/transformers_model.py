"""A model of the transformers library that runs on our kernels and cache."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...batch.input_batch import InputBatch
from ...geometry.geometry import Geometry
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend
from ...layers.backend import Backend
from ...pooling.head import PoolingHead
from ..decoder import Model
from .library import scores
from .paged_attention import PagedAttention


@dataclass(frozen=True, slots=True, eq=False)
class TransformersModel:
    """A Model. The module tree is the library's; products, norms, attention and the cache are ours."""

    geometry: Geometry
    tp_size: int
    backend: Backend
    base: nn.Module  # without the output head
    scorer: Any  # from hidden states to logits
    paged: PagedAttention
    attention: AttentionBackend
    weights_bytes: int  # on this rank
    quantization: dict[str, str]  # human-readable facts; empty when nothing is quantized
    pooling: PoolingHead
    libraries: str  # the libraries and versions on which the model's bits depend
    adapters: None = None  # LoRA adapters are not supported
    adapters_bytes: int = 0
    needs_all_tokens: bool = False  # nothing drafts from its hidden states
    plain: Model | None = None  # computes the same as `base`, in fewer calls from Python

    @property
    def device(self) -> str:
        return self.backend.device

    @property
    def dtype(self) -> torch.dtype:
        return self.geometry.dtype

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [returned tokens, hidden]. Writes all K and V to `cache`."""
        if self.plain is not None:
            return self.plain.forward(batch, cache)
        self.paged.start(batch, cache)
        hidden = self.hidden(batch)
        return hidden if batch.returned_tokens is None else hidden[batch.returned_tokens]

    def hidden(self, batch: InputBatch) -> Tensor:
        """Hidden states of all tokens of a step that has been started."""
        token_ids, positions = batch.token_ids.unsqueeze(0), batch.positions.unsqueeze(0)
        found: Tensor = self.base(input_ids=token_ids, position_ids=positions, use_cache=False).last_hidden_state
        return found[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[n, hidden] -> [n, vocab] float32, on every rank; in `out` if it is given, else valid until the next call."""
        found = scores(self.scorer, hidden)
        return found.float() if out is None else out.copy_(found)
