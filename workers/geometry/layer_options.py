"""The options of layers, independent of model families and backends."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Which keys a token attends to; at most one of the three is set."""

    window: int = 0  # number of positions up to its own, which is included; 0: all
    attention_chunk: int = 0  # keys start at the last multiple of this; 0: at 0
    is_bidirectional: bool = False  # also later keys; the whole prompt is then one chunk

    def first_seen(self, position: int) -> int:
        """The first position that the token at `position` attends to."""
        if self.attention_chunk:
            return position // self.attention_chunk * self.attention_chunk
        return max(0, position - self.window + 1) if self.window else 0

    def first_seen_of(self, positions: Tensor) -> Tensor:
        """The same for a tensor of positions, in its shape."""
        if self.attention_chunk:
            return torch.div(positions, self.attention_chunk, rounding_mode="floor") * self.attention_chunk
        return (positions - self.window + 1).clamp(min=0) if self.window else torch.zeros_like(positions)


INDEX_MULTIPLE = 16  # elements: an index key begins at a multiple of this in its row of the cache, and zeros follow it


@dataclass(frozen=True, slots=True)
class Indexer:
    """Chooses the cached tokens that a token attends to (DeepSeek-V3.2, arXiv 2512.02556, 2.1).

    A token's score is the sum over heads of weight * max(query * key / sqrt(head_dim), 0); the query and the weight are
    the head's, and all heads share the key.
    """

    num_heads: int  # on every rank
    head_dim: int  # elements of a query and of a key, of which the first are rotated, as many as of latent attention's
    top_k: int  # tokens that are chosen; equal scores: the earlier ones
    interleaved: bool  # rotary pairs, as in Geometry
    sources: tuple[int, ...] = ()  # per layer: that whose choice it takes. Empty: each its own

    def source(self, layer: int) -> int:
        """The layer whose choice that layer takes."""
        return self.sources[layer] if layer < len(self.sources) else layer


@dataclass(frozen=True, slots=True)
class Latent:
    """The sizes of latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1), in elements.

    The cache has one vector for each token, which all heads share: the normalised latent, then the rotated key. Instead
    of projecting every cached token to a head's key and value, a head's query is multiplied by the projection of keys,
    and its mixed latent by that of values (absorbed projections).
    """

    query_rank: int  # queries are projected through so many elements; 0: directly
    kv_rank: int  # of the latent, from which a head's keys and values are projected
    nope_dim: int  # of a head's query that is not rotated
    rope_dim: int  # of a head's query that is rotated, and of the key that all heads share
    value_dim: int  # of a head
    indexer: Indexer | None = None  # None: tokens attend to all tokens before them
    norm_scale: float = 1.0  # of the normalised latent

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Elements of a token's vector in the cache, without padding."""
        return self.kv_rank + self.rope_dim

    @property
    def index_start(self) -> int:
        """The element of a token's row in the cache at which its index key begins."""
        return -(-self.cached_dim // INDEX_MULTIPLE) * INDEX_MULTIPLE

    @property
    def row_dim(self) -> int:
        """Elements of a token's row in the cache: the vector and, with an indexer, its key, each padded."""
        if self.indexer is None:
            return self.cached_dim
        return self.index_start + -(-self.indexer.head_dim // INDEX_MULTIPLE) * INDEX_MULTIPLE


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How one layer computes its scores: query * key * scale, then the cap, then what distances add, all in float32."""

    scale: float
    window: int = 0  # as in AttentionMask
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: no cap
    slopes: Tensor | None = None  # [heads] float32, ALiBi: adds slope * (key's position - query's) to a score
    is_bidirectional: bool = False
    attention_chunk: int = 0
    sinks: Tensor | None = None  # [heads] float32, each one more score, without a value; added to the total last
    bias: Tensor | None = None  # [heads, 2 * reach + 1] float32, relative positions: what a score gains, see `biases`
    pairs: Tensor | None = None  # [tokens, heads, keys] float32: what the score of each key of a token's request gains

    def __post_init__(self) -> None:
        kinds = bool(self.window), self.is_bidirectional, bool(self.attention_chunk)
        assert sum(kinds) <= 1, "a layer has at most one of window, attention chunk and bidirectional attention"
        assert self.bias is None or self.pairs is None, "a layer has relative positions or pairs"

    def of_token(self, token: int) -> "AttentionOptions":
        """The options of one token of a step."""
        return self if self.pairs is None else replace(self, pairs=self.pairs[token : token + 1])

    @property
    def mask(self) -> AttentionMask:
        return AttentionMask(self.window, self.attention_chunk, self.is_bidirectional)

    def biases(self, heads: Tensor, distances: Tensor) -> Tensor:
        """What scores of `heads` gain at `distances`, the key's position - the query's; both i64, broadcast together.

        Column d + reach of the table is for distance d; its first and last columns are also for all that lie beyond.
        """
        assert self.bias is not None, "the layer has no relative positions"
        reach = self.bias.shape[1] // 2
        return self.bias[heads, distances.clamp(-reach, reach) + reach]


def alibi_slopes(num_heads: int) -> Tensor:
    """ALiBi's slopes, [num_heads] float32, descending (Press et al., Train Short, Test Long).

    Head i of n (from 1) has the slope 2^(-8 i / n), where n is the largest power of two up to `num_heads`; the other
    heads have every other slope of 2 n heads. Powers are computed in double.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [math.pow(2.0, -8.0 * i / whole) for i in range(1, whole + 1)]
    slopes += [math.pow(2.0, -4.0 * i / whole) for i in range(1, 2 * (num_heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64).float()


def distance_buckets(num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance from -max_distance to max_distance, [2 * max_distance + 1] i64 (Raffel et al., T5).

    The upper half of the buckets is for keys after the query. In each half the first half are single distances, and the
    others grow by a constant factor up to max_distance. Bounds are compared as integers, so they are exact.
    """
    half = num_buckets // 2
    exact = half // 2
    growing = half - exact

    def bucket(distance: int) -> int:
        if distance < exact:
            return distance
        power = distance**growing
        steps: int = sum(max_distance**step * exact ** (growing - step) <= power for step in range(1, growing))
        return exact + steps

    return torch.tensor([bucket(abs(d)) + (d > 0) * half for d in range(-max_distance, max_distance + 1)])


@dataclass(frozen=True, slots=True)
class RelativePositions:
    """A score gains a learned number for its head and the bucket of its key's distance, see `distance_buckets`."""

    num_buckets: int
    max_distance: int


@dataclass(frozen=True, slots=True)
class Disentangled:
    """Disentangled attention (He et al., DeBERTa): a score gains that of the query and the key's distance, and that of
    the key and this distance. Short distances have a bucket each, and longer ones share buckets up to `max_distance`.
    """

    num_buckets: int  # in each direction
    max_distance: int

    def bucket(self, distance: int) -> int:
        """The bucket of the query's position - the key's, from 0 to 2 * num_buckets - 1."""
        exact, size = self.num_buckets // 2, abs(distance)
        if size > exact:
            growth = math.log(size / exact) / math.log((self.max_distance - 1) / exact)
            size = exact + math.ceil(growth * (exact - 1))
        signed = size if distance > 0 else -size
        return max(0, min(signed + self.num_buckets, 2 * self.num_buckets - 1))


class LayerSizes(NamedTuple):
    """The sizes that differ by layer in some models."""

    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_heads: int


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Vectors of each token that enter after the feed-forward of each layer: of its own embedding, and projected."""

    size: int  # of a layer's vector
    vocab_size: int  # tokens beyond have the vectors of token 0


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """Blocks of attention and a feed-forward that layers share (Zamba2, arXiv 2411.15242), in turn; each use changes
    the projections by adapters of its own. Layers without a recurrence are uses."""

    count: int
    adapter_rank: int
    adapts_attention: bool  # its queries, keys and values too, not only the feed-forward


@dataclass(frozen=True, slots=True)
class AltUp:
    """Alternating updates (arXiv 2301.13310): each token has several residual streams, of which a layer computes with
    the first and predicts the others. Beside attention there is a learned residual of low rank (arXiv 2411.07501)."""

    num_streams: int
    laurel_rank: int
