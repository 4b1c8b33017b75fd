"""The geometry of a model, independent of its family: the parameters that decoder, weights and KV cache need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from paged_serve.protocol.errors import ConfigError

from .experts import NUM_SHARES, Experts
from .layer_options import AltUp, Disentangled, Latent, LayerInputs, LayerSizes, RelativePositions, SharedBlocks
from .model_options import Activation, Biases, Caps, Embeddings, Multipliers, NormKind, QKNorm
from .recurrent.recurrent import Recurrent
from .rope_scaling import RopeScaling

# The scores that the checkpoint's head computes: of tokens; labels, per text or per token; rewards, per token; none.
# Or a projection of each token (late interaction).
Head = Literal["tokens", "labels", "token_labels", "rewards", "process_rewards", "projection", "none"]
Part = Literal["mixer", "feed_forward"]  # of a layer


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of the whole model; methods with `tp_size` give the share of one tensor-parallel rank."""

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm: NormKind
    norm_eps: float
    activation: Activation
    ropes: tuple[RopeScaling, ...]  # per layer
    max_position_embeddings: int
    sliding_windows: tuple[int, ...]  # per layer: positions that a token attends to, itself included; 0: all
    tie_word_embeddings: bool
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...] = ()
    interleaved: bool = False  # rotary pairs are adjacent elements of a head; otherwise i and i + rotary_dim / 2
    multipliers: Multipliers = field(default_factory=Multipliers)
    embeddings: Embeddings = field(default_factory=Embeddings)
    biases: Biases = field(default_factory=Biases)
    final_norm_eps: float | None = None  # None: norm_eps
    has_prediction_head: bool = False  # a projection with the activation, and a norm, before the output head
    caps: Caps = field(default_factory=Caps)
    qk_norm: QKNorm | None = None
    clip_qkv: float | None = None  # queries, keys and values are clipped to +- this value
    has_inner_norms: bool = False  # of the inputs of the last projections of attention and of feed-forwards
    is_parallel: bool = False  # attention and feed-forward read the same hidden states, and both outputs are added
    head: Head = "tokens"
    is_bidirectional: bool = False  # a token also attends to later tokens
    usual_max_len: int | None = None  # tokens; the default of max_model_len if less than max_position_embeddings
    reaches: tuple[int, ...] = ()  # per encoder layer: tokens attended to on each side; 0: all
    attention_chunks: tuple[int, ...] = ()  # per layer, see AttentionMask; 0: none. Empty: none in any layer
    slopes: tuple[float, ...] = ()  # ALiBi, of all heads: scores decrease with the distance of the key; empty: no ALiBi
    relative_positions: RelativePositions | None = None  # the same in all layers
    disentangled: Disentangled | None = None  # the same in all layers
    head_multiple: int = 1  # elements; heads in the KV cache are zero-padded to a multiple of this
    experts: tuple[Experts | None, ...] = ()  # per layer; None: its feed-forward is dense. Empty: all are
    attention_gate: Literal["sigmoid", "softplus"] | None = None  # of attention's outputs; None: they have no gate
    recurrent: tuple[Recurrent | None, ...] = ()  # per layer; None: its mixer is attention. Empty: all are
    is_beside_attention: bool = False  # recurrent layers have attention too, and the sum of both outputs
    lone_parts: tuple[Part, ...] = ()  # per layer: its only part. Empty: all layers have a mixer, then a feed-forward
    layers_in_names: tuple[int | str, ...] = ()  # per layer: what stands for it in names. Empty: as in the decoder
    latent: Latent | None = None  # latent attention: the cache has one KV head of head_dim = kv_rank + rope_dim
    layer_sizes: tuple[LayerSizes, ...] = ()  # see of_layer; empty: all layers have the same
    kv_sources: tuple[int, ...] = ()  # per layer: that whose keys and values it reads. Empty: each its own
    xielu: tuple[tuple[float, float], ...] = ()  # per layer, of its activation, as in files. Empty: tensors have them
    attention_experts: Experts | None = None  # they project queries and outputs; a token's have num_heads each
    is_differential: bool = False  # heads attend in pairs; queries are half as wide as values, then zeros
    has_value_norm: bool = False  # each value head is scaled to a mean square of 1
    value_dim: int | None = None  # of each head; the cache pads it to head_dim. None: head_dim
    value_scale: float = 1.0  # of attention's outputs; only with value_dim
    has_sinks_beyond_windows: bool = True  # layers with full attention have sinks too, where a file names any
    layers_with_one_kv_matrix: frozenset[int] = frozenset()  # values are the keys before norm and rotation
    layer_inputs: LayerInputs | None = None
    has_layer_scalars: bool = False  # the residual stream is multiplied by a number after each layer
    shared_blocks: SharedBlocks | None = None
    num_loops: int = 1  # of num_layers: passes through the layers of the checkpoint
    altup: AltUp | None = None  # tokens have several residual streams, which are float32
    # Per layer: gates of the feed-forward are kept as far as they exceed their mean by so many standard deviations.
    gate_cuts: tuple[float | None, ...] = ()  # None: as they are. Empty: in all layers

    def with_sizes_of_layers(self, **sizes: Sequence[int]) -> "Geometry":
        """The same with `sizes` of each layer; one that all layers share, or that is not given, is of the model."""
        common: dict[str, Any] = {name: values[0] for name, values in sizes.items() if len(set(values)) == 1}
        whole, of_layers = replace(self, **common), {name: sizes[name] for name in sizes if name not in common}
        if not of_layers:
            return whole
        shared = {name: getattr(whole, name) for name in LayerSizes._fields if name not in of_layers}
        each = (dict(zip(of_layers, values, strict=True)) for values in zip(*of_layers.values(), strict=True))
        return replace(whole, layer_sizes=tuple(LayerSizes(**shared, **found) for found in each))

    def of_layer(self, layer: int) -> "Geometry":
        """The same with the sizes of that layer."""
        return replace(self, **self.layer_sizes[layer]._asdict(), layer_sizes=()) if self.layer_sizes else self

    def kv_source(self, layer: int) -> int:
        return self.kv_sources[layer] if self.kv_sources else layer

    @property
    def has_one_head_size(self) -> bool:
        """Whether the keys of all layers have the same shape."""
        return len({sizes[:2] for sizes in self.layer_sizes}) < 2

    @property
    def numbers_of_heads(self) -> list[int]:
        """The different numbers of query heads that layers have."""
        return sorted({sizes.num_heads for sizes in self.layer_sizes} or {self.num_heads})

    def head_norm(self, layer: int) -> NormKind | None:
        """The norm of each query and key head of the layer; without weights only heads that are rotated have one."""
        if self.qk_norm is None or self.qk_norm.spans != "head":
            return None
        kind = self.qk_norm.kind or self.norm
        return None if kind == "plain_rms" and self.ropes[layer].kind == "none" else kind

    def experts_of(self, layer: int) -> Experts | None:
        return self.experts[layer] if self.experts else None

    def recurrent_of(self, layer: int) -> Recurrent | None:
        return self.recurrent[layer] if self.recurrent else None

    def lone_part(self, layer: int) -> Part | Literal[""]:
        """The only part of the layer; "": it has a mixer, then a feed-forward."""
        return self.lone_parts[layer] if self.lone_parts else ""

    def has_mixer(self, layer: int) -> bool:
        return self.lone_part(layer) != "feed_forward"

    def has_feed_forward(self, layer: int) -> bool:
        return self.lone_part(layer) != "mixer"

    def has_attention(self, layer: int) -> bool:
        return self.has_mixer(layer) and (self.recurrent_of(layer) is None or self.is_beside_attention)

    @property
    def has_heads(self) -> bool:
        """Whether any layer is attention."""
        return any(self.has_attention(layer) for layer in range(self.num_layers))

    def state_bytes(self, tp_size: int) -> list[int]:
        """Bytes of the state of each recurrent layer on one rank."""
        return [kind.state_bytes(tp_size, self.dtype) for kind in self.recurrent if kind is not None]

    def draft_bytes(self, tp_size: int) -> int:
        """Bytes that one rank keeps of a draft until it is known whether it is accepted, in all recurrent layers."""
        return sum(kind.draft_bytes(tp_size, self.dtype) for kind in self.recurrent if kind is not None)

    @property
    def has_experts(self) -> bool:
        return any(self.experts)

    @property
    def embedding_size(self) -> int:
        """The size of a token's own embedding."""
        return self.embeddings.projected_size or self.hidden_size

    @property
    def position_size(self) -> int:
        """The size of learned positions: encoders add them before embeddings are projected, decoders after."""
        return self.embedding_size if self.is_bidirectional else self.hidden_size

    @property
    def vector_size(self) -> int:
        """The size of the vectors that `forward` returns."""
        return self.hidden_size if self.is_bidirectional else self.embedding_size

    @property
    def scale(self) -> float:
        """The scale of attention scores."""
        return 1.0 / math.sqrt(self.head_dim) if self.multipliers.scores is None else self.multipliers.scores

    @property
    def areas_per_layer(self) -> int:
        """Areas of a block that an attention layer has: of keys and of values, which are one in latent attention."""
        return 1 if self.latent else 2

    def heads_of_rank(self, tp_size: int) -> int:
        return self.num_heads // tp_size

    def kv_heads_of_rank(self, tp_size: int) -> int:
        """KV heads on one rank. If there are more ranks than KV heads, several ranks hold the same head."""
        return max(1, self.num_kv_heads // tp_size)

    @property
    def cached_head_dim(self) -> int:
        """Elements of a key or a value in the KV cache."""
        return -(-self.head_dim // self.head_multiple) * self.head_multiple

    def kv_bytes_per_block(
        self, block_size: int, tp_size: int, dtype: torch.dtype, num_layers: int | None = None
    ) -> int:
        """Bytes of one block of `block_size` tokens on one rank: K and V of all layers or of `num_layers`, with the
        scales of an int8 cache. Values of latent attention are a part of its keys."""
        scales = self.kv_heads_of_rank(tp_size) * torch.float32.itemsize if dtype == torch.int8 else 0
        per_token = (self.area_bytes_per_token(tp_size, dtype) + scales) * self.areas_per_layer
        return (self.num_layers if num_layers is None else num_layers) * per_token * block_size

    def area_bytes_per_token(self, tp_size: int, dtype: torch.dtype) -> int:
        """Bytes of a token's keys, or values, in one layer on one rank, without scales."""
        return self.kv_heads_of_rank(tp_size) * self.cached_head_dim * dtype.itemsize

    def check_tensor_parallel(self, tp_size: int) -> None:
        """Raises ConfigError if the model cannot be divided evenly among `tp_size` ranks."""
        if problem := self._uneven(tp_size):
            sizes = [size for size in range(1, self.num_heads + 1) if not self._uneven(size)]
            fits = ", ".join(map(str, sizes))
            raise ConfigError(f"tensor_parallel_size={tp_size} {problem}; use one of {fits}")

    def _uneven(self, tp_size: int) -> str:
        """The name of a dimension that `tp_size` ranks cannot divide evenly; "" if there is none."""
        parts = [("attention heads", count) for count in self.numbers_of_heads]
        if not self.experts or None in self.experts:
            own_sizes = {sizes.intermediate_size for sizes in self.layer_sizes} or {self.intermediate_size}
            parts += [("intermediate size", size) for size in sorted(own_sizes)]
        for kind in filter(None, dict.fromkeys(self.recurrent)):
            if problem := kind.uneven(tp_size):
                return f"does not divide {problem}"
        for experts in filter(None, self.experts):
            if NUM_SHARES % tp_size or experts.count < tp_size:
                return f"cannot share the model's {experts.count} experts, which are divided in {NUM_SHARES}"
            parts.append(("intermediate size of the shared expert", experts.shared_size))
        for name, count in parts:
            if count % tp_size:
                return f"does not divide the model's {name}, {count}"
        if self.is_differential and self.num_kv_heads // 2 % tp_size:
            return f"does not divide the model's {self.num_kv_heads // 2} pairs of KV heads"
        for kv_heads in {sizes.num_kv_heads for sizes in self.layer_sizes} or {self.num_kv_heads}:
            if kv_heads % tp_size and tp_size % kv_heads:
                return f"neither divides the model's {kv_heads} KV heads nor is a multiple of them"
        return ""
