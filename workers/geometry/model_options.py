"""The options of whole models, independent of their families."""

from dataclasses import dataclass
from typing import Literal

from .recurrent.multipliers import PartMultipliers

# …_less_1: the file has weight - 1. unbiased_layer: layer norm without a bias; plain_…: without a weight.
NormKind = Literal["rms", "rms_less_1", "plain_rms", "layer", "layer_less_1", "unbiased_layer", "plain_layer"]
RMS_NORMS: tuple[NormKind, ...] = "rms", "rms_less_1", "plain_rms"


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Norms of queries and keys, before they are rotated."""

    spans: Literal["head", "all_heads"] = "head"  # what is normalised together
    kind: NormKind | None = None  # None: as the model's other norms
    has_weights_per_head: bool = False  # otherwise all heads share them
    # Weights multiply elements after their rotation. The kind is plain_rms, which a rotation does not change.
    weighs_rotated_heads: bool = False


@dataclass(frozen=True, slots=True)
class Biases:
    """Which projections add a bias."""

    qkv: bool = False
    output: bool = False  # of attention
    mlp: bool = False
    head: bool = False
    down: bool | None = None  # of the feed-forward's last projection; None: as `mlp`


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds that a tanh enforces (soft caps); 0: no cap."""

    scores: float = 0.0  # of attention
    logits: float = 0.0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What is added to the embedding of a token, and the size of both."""

    has_positions: bool = False  # each position has a vector, instead of a rotation of heads
    num_token_types: int = 0
    num_task_types: int = 0  # each token also adds the embedding of the first
    num_unused: int = 0  # rows of the table behind those of the vocabulary; no token has them
    projected_size: int = 0  # of embeddings and, unless bidirectional, returned vectors; 0: as the layers


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation: activation(gate) * up if gated, else activation(x). "gelu_tanh" approximates erf by tanh.

    "clamped", always gated: gate * sigmoid(slope * gate) * (up + 1), with gate <= limit and -limit <= up <= limit.
    "xielu", never gated: alpha_p * x * x above 0 and alpha_n * (exp(x) - 1 - x) below, each plus x / 2.
    """

    kind: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped", "xielu"] = "silu"  # relu2: relu squared
    is_gated: bool = True
    slope: float = 1.0  # clamped
    limit: float = 0.0  # clamped
    alpha_p: float = 0.0  # xielu; each layer has its own
    alpha_n: float = 0.0  # xielu

    @property
    def constants(self) -> tuple[float, float]:
        """The numbers that the kernels read."""
        return (self.alpha_p, self.alpha_n) if self.kind == "xielu" else (self.slope, self.limit)

    def outputs(self, inputs: int) -> int:
        return inputs // 2 if self.is_gated else inputs

    def inputs(self, outputs: int) -> int:
        return outputs * 2 if self.is_gated else outputs


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constant factors of a family."""

    embedding: float = 1.0
    residual: float = 1.0  # of the outputs of attention and feed-forward
    logits: float = 1.0
    scores: float | None = None  # of attention scores; None: 1 / sqrt(head_dim)
    parts: PartMultipliers | None = None  # of layers with attention and a recurrence in parallel
    stream: float = 1.0  # of the residual stream, by which `residual` is divided; where norms replace the stream
