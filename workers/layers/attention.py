"""The interface between models and attention backends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoint.weight_forms import Weight
from ..geometry.layer_options import AttentionOptions, Latent
from ..kv.cache_view import CacheView
from .linear import Linear
from .norm import RMSNorm


class AttentionBackend(Protocol):
    """Attention over the paged cache.

    The bits of a token's result are a function of its query and its request's keys and values: they are the same in a
    decode step, a chunk of any size and a recomputation, for any other requests, block ids and block sizes.
    """

    head_multiple: int  # elements; heads in the cache are zero-padded to a multiple of this
    coded_cache: torch.dtype | None  # the 8-bit cache dtype that it supports with 16-bit models

    def plan(self, views: Sequence[CacheView], num_heads: int) -> Sequence[Any]:
        """The data that all layers of a KV group share in one step: one plan per view, opaque to the caller.

        `views` are of the same requests and differ in block tables and slots. Called once per step, before any layer
        writes. It may prepare the blocks that this step starts to fill, which still hold data of their previous use.
        """
        ...

    def attend(self, plan: Any, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of `query` [tokens, heads, head_dim] over the cached tokens of its request, the token included.

        `plan` is that of the layer's group. Query head h reads KV head h // (heads / kv_heads). Blocks that are
        entirely before the window of their request's first token in the step are not read.
        """
        ...


class KeySelector(Protocol):
    """Chooses the cached tokens that each token of a step attends to, see Indexer in geometry/layer_options.py.

    A token's choice is a function of its query, its weights and its request's index keys in the cache: it is the same
    in a decode step, a chunk of any size and a recomputation. It is kept until the next `select`, for the latent
    attention of all layers that share it.
    """

    def write(self, step: Any, keys: Tensor) -> None:
        """Write the tokens' index keys [tokens, head_dim] to their rows of the cache, rotated, rounded once.

        `step` is that of Ops.start_step, of the layer's group.
        """
        ...

    def select(self, view: CacheView, step: Any, query: Tensor, weights: Tensor) -> None:
        """Choose by `query` [tokens, heads * head_dim], which is overwritten, and `weights` [tokens, heads] float32.

        `write` of the same step comes first. `view` is that of the layer's group.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LatentLayer:
    """What latent attention of one layer holds between its projections, for the heads of one rank.

    `keys` and `values` are stacked like experts (checkpoint/stacked_experts.py): the matrix of head h begins at row
    h * padded_outputs(outputs).
    """

    layer: int
    sizes: Latent
    num_heads: int  # of this rank
    norm: RMSNorm  # of the latent, [kv_rank]
    keys: Weight  # of each head [kv_rank, nope_dim]: from its query to its query in the space of the latent
    values: Weight  # of each head [value_dim, kv_rank]: from its mixed latent to its output
    options: AttentionOptions
    selector: KeySelector | None = None  # of this layer or an earlier one; None: tokens attend to all before them


class LatentHeads(Protocol):
    """Latent attention of one layer between its projections.

    A token's bits are a function of its query and of its request's vectors in the cache, as in AttentionBackend.
    """

    def write(self, step: Any, latent: Tensor) -> None:
        """Write the tokens' vectors to the cache: the latent, normalised, then the key, rotated; each is rounded once.

        `latent` [tokens, kv_rank + rope_dim], whose rows may be strided. `step` is that of Ops.start_step, of the
        layer's group.
        """
        ...

    def attend(self, plan: Any, step: Any, query: Tensor) -> Tensor:
        """[tokens, heads * (nope_dim + rope_dim)] -> [tokens, heads * value_dim], before the output projection.

        `plan` is that of AttentionBackend.plan. `write` of the same step comes first. Rows of `query` may be strided.
        Sums are float32. Rounded to the model's dtype are a head's query in the space of the latent, its rotated part,
        its mixed latent, and its output.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionExpertWeights:
    """The weights of one layer's experts, as one rank holds them; matrices of experts are stacked_experts()."""

    router: Linear  # [tokens, experts]
    queries: Weight  # of this rank's experts: from hidden states to the queries of all KV heads
    output: Weight  # of this rank's experts, back
    bias: Tensor  # [experts of this rank, hidden], of outputs; all the same


class AttentionExperts(Protocol):
    """The experts that a token chooses have a query for each KV head. A token's bits depend on nothing else.

    A rank has some of the experts, and some of the KV heads.
    """

    def projected(self, normed: Tensor, keys_values: Tensor) -> Sequence[Tensor]:
        """The queries of this rank's KV heads, [tokens, n], of each chosen expert; behind the first, `keys_values`."""
        ...

    def kept(self, choice: int, attended: Tensor) -> Tensor:
        """The results of attention of all choices, [tokens, top_k * n], after those of `choice` are written."""
        ...

    def output(self, normed: Tensor, attended: Tensor) -> Tensor:
        """The weighed sum of what experts make of `attended` [tokens, top_k * n], plus the bias; as any Linear's."""
        ...
