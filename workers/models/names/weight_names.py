"""Names of tensors in a checkpoint, with the defaults that most families share."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...checkpoint.text_part import names_in
from .recurrent_names import (
    GATED_DELTA_NAMES,
    LIGHTNING_NAMES,
    MAMBA1_NAMES,
    MAMBA2_NAMES,
    GatedDeltaNames,
    LightningNames,
    Mamba1Names,
    Mamba2Names,
)

_NUMBER = re.compile(r"\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of the projections of layers with experts; a second `{}` stands for the expert.

    A checkpoint may instead have all experts in the tensors `stacked_gate_up` and `stacked_down`, experts first.
    """

    router: str = "model.layers.{}.mlp.gate"
    correction: str = "model.layers.{}.mlp.gate.e_score_correction_bias"
    may_lack_correction: bool = False  # then it is 0
    gate: str = "model.layers.{}.mlp.experts.{}.gate_proj"
    up: str = "model.layers.{}.mlp.experts.{}.up_proj"
    down: str = "model.layers.{}.mlp.experts.{}.down_proj"
    stacked_gate_up: str = "model.layers.{}.mlp.experts.gate_up_proj"
    stacked_down: str = "model.layers.{}.mlp.experts.down_proj"
    stacked_up: str = ""  # where `stacked_gate_up` has gates alone; each has the rows of all experts, down is [in, out]
    are_transposed: bool | None = False  # matrices in stacked tensors are [in, out]; None: if their shape says so
    are_interleaved: bool = False  # gate and up alternate in stacked tensors
    shared_gate: str = "model.layers.{}.mlp.shared_expert.gate_proj"
    shared_up: str = "model.layers.{}.mlp.shared_expert.up_proj"
    shared_down: str = "model.layers.{}.mlp.shared_expert.down_proj"
    shared_expert_gate: str = "model.layers.{}.mlp.shared_expert_gate"
    factors: str = ""  # of the weights of each expert, a vector
    bias: str = ""  # of all experts' outputs
    router_norm: str = ""  # beside a dense feed-forward: of the router, without its factor 1 / sqrt(hidden_size)
    norm: str = ""  # likewise, of the experts
    out_norm: str = ""
    dense_norm: str = ""  # of the dense feed-forward
    dense_out_norm: str = ""


@dataclass(frozen=True, slots=True)
class ShortConvolutionNames:
    """Names of layers with a short convolution, like the projections below."""

    into: str = "model.layers.{}.conv.in_proj"  # B, C and x
    convolution: str = "model.layers.{}.conv.conv"  # its weight is [channels, 1, width]
    output: str = "model.layers.{}.conv.out_proj"


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Names of the projections and norms of latent attention; directly projected queries are WeightNames.query."""

    query_down: str = "model.layers.{}.self_attn.q_a_proj"
    query_norm: str = "model.layers.{}.self_attn.q_a_layernorm.weight"
    query_up: str = "model.layers.{}.self_attn.q_b_proj"
    down: str = "model.layers.{}.self_attn.kv_a_proj_with_mqa"  # the latent, then the key that all heads share
    norm: str = "model.layers.{}.self_attn.kv_a_layernorm.weight"
    up: str = "model.layers.{}.self_attn.kv_b_proj"  # of each head: its keys, then its values
    index_queries: str = "model.layers.{}.self_attn.indexer.wq_b"  # sparse attention
    index_keys: str = "model.layers.{}.self_attn.indexer.wk"
    index_norm: str = "model.layers.{}.self_attn.indexer.k_norm"
    index_weights: str = "model.layers.{}.self_attn.indexer.weights_proj"


@dataclass(frozen=True, slots=True)
class NormNames:
    """The norms around a layer's mixer and its feed-forward, as in WeightNames."""

    attention_norm: str
    mlp_norm: str
    attention_out_norm: str = ""
    mlp_out_norm: str = ""


@dataclass(frozen=True, slots=True)
class LayerInputNames:
    """Names of the inputs of single layers, and of the scalars of layers."""

    table: str = "model.embed_tokens_per_layer.weight"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm.weight"
    gate: str = "model.layers.{}.per_layer_input_gate"
    output: str = "model.layers.{}.per_layer_projection"
    output_norm: str = "model.layers.{}.post_per_layer_input_norm.weight"
    scalar: str = "model.layers.{}.layer_scalar"


@dataclass(frozen=True, slots=True)
class AltUpNames:
    """Names of alternating updates; in `entering` and `leaving` `{}` is the number of the stream, less 1."""

    entering: str = "model.altup_projections.{}"
    leaving: str = "model.altup_unembed_projections.{}"
    router: str = "model.layers.{}.altup.modality_router"
    router_norm: str = "model.layers.{}.altup.router_norm.weight"
    predictions: str = "model.layers.{}.altup.prediction_coefs.weight"
    corrections: str = "model.layers.{}.altup.correction_coefs.weight"
    scale: str = "model.layers.{}.altup.correct_output_scale"
    laurel_left: str = "model.layers.{}.laurel.linear_left"
    laurel_right: str = "model.layers.{}.laurel.linear_right"
    laurel_norm: str = "model.layers.{}.laurel.post_laurel_norm.weight"


@dataclass(frozen=True, slots=True)
class SharedBlockNames:
    """Names of the adapters of shared blocks, where a second `{}` stands for the use, and of what follows a use."""

    query_down: str = "model.layers.{}.shared_transformer.self_attn.linear_q_adapter_list.{}.0"
    query_up: str = "model.layers.{}.shared_transformer.self_attn.linear_q_adapter_list.{}.1"
    key_down: str = "model.layers.{}.shared_transformer.self_attn.linear_k_adapter_list.{}.0"
    key_up: str = "model.layers.{}.shared_transformer.self_attn.linear_k_adapter_list.{}.1"
    value_down: str = "model.layers.{}.shared_transformer.self_attn.linear_v_adapter_list.{}.0"
    value_up: str = "model.layers.{}.shared_transformer.self_attn.linear_v_adapter_list.{}.1"
    gate_up_down: str = "model.layers.{}.shared_transformer.feed_forward.gate_up_proj_adapter_list.{}.0"
    gate_up_up: str = "model.layers.{}.shared_transformer.feed_forward.gate_up_proj_adapter_list.{}.1"
    leaving: str = "model.layers.{}.linear"


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names in a checkpoint; `{}` stands for the layer. The defaults are the names that most families use.

    If `query`, `key` and `value` are the same name, that matrix has all queries, then all keys, then all values;
    likewise `gate` and `up`. A norm's bias has its weight's name with ".bias". An empty name means no norm.
    """

    embedding: str = "model.embed_tokens.weight"
    embedding_norm: str = ""  # applied to the embedded tokens; "": no norm
    final_norm: str = "model.norm.weight"
    output_head: str = "lm_head.weight"
    attention_norm: str = "model.layers.{}.input_layernorm.weight"
    has_first_attention_norm: bool = True  # False: the first layer's attention reads the embeddings without a norm
    mlp_norm: str = "model.layers.{}.post_attention_layernorm.weight"
    attention_out_norm: str = ""  # applied to attention's output before it is added
    mlp_out_norm: str = ""
    recurrent_norms: NormNames | None = None  # of recurrent layers, if they have others
    expert_norms: NormNames | None = None  # likewise, of layers with experts
    query: str = "model.layers.{}.self_attn.q_proj"  # projections: ".weight" and ".bias" follow
    key: str = "model.layers.{}.self_attn.k_proj"
    value: str = "model.layers.{}.self_attn.v_proj"
    output: str = "model.layers.{}.self_attn.o_proj"
    output_norm: str = ""  # of the inputs of that projection, over all heads
    attention_gate: str = ""  # with gated attention; "": the query projection has a gate after each head's query
    has_gates_of_heads: bool = False  # that projection has one gate for all elements of a head
    query_norm: str = "model.layers.{}.self_attn.q_norm.weight"  # a second `{}` stands for the head
    key_norm: str = "model.layers.{}.self_attn.k_norm.weight"
    gate: str = "model.layers.{}.mlp.gate_proj"
    up: str = "model.layers.{}.mlp.up_proj"
    down: str = "model.layers.{}.mlp.down_proj"
    down_norm: str = ""  # of its inputs
    activation: str = ""  # of the feed-forward, where it has parameters: ".alpha_p" and ".alpha_n" follow
    positions: str = ""  # the table of learned positions
    first_position: int = 0  # the row of that table for position 0
    has_sinusoids: bool = False  # that table is computed instead
    token_types: str = ""  # encoders: the table of token types
    task_types: str = ""  # encoders: a table whose first row every token adds
    project_in: str = ""  # from a token's embedding to the layers; "": none
    project_out: str = ""  # from the layers to the output head
    head_dense: str = ""  # of a prediction head
    head_norm: str = ""
    are_transposed: bool = False  # projections are stored in the order [in, out]
    are_grouped: bool = False  # the matrix of q, k and v holds for each KV head its queries, its key and its value
    num_parts: int = 1  # of that matrix; each of several holds the queries of its heads, then values, then keys
    is_up_first: bool = False  # the matrix of gate and up has up first
    experts: ExpertNames = ExpertNames()
    attention_experts: ExpertNames = ExpertNames()
    short_convolution: ShortConvolutionNames = ShortConvolutionNames()
    latent: LatentNames = LatentNames()
    mamba1: Mamba1Names = MAMBA1_NAMES
    mamba2: Mamba2Names = MAMBA2_NAMES
    gated_delta: GatedDeltaNames = GATED_DELTA_NAMES
    lightning: LightningNames = LIGHTNING_NAMES
    layer_inputs: LayerInputNames = LayerInputNames()
    altup: AltUpNames = AltUpNames()
    shared_blocks: SharedBlockNames = SharedBlockNames()
    differential: str = ""  # differential attention: q1, k1, q2 and k2 follow, vectors of the factor
    sinks: str = ""  # a vector with one sink per head; "": no sinks
    relative_bias: str = ""  # relative positions: the table [buckets, heads] that all layers share
    distances: str = ""  # disentangled attention: the table of distances, [2 * buckets, hidden]
    distances_norm: str = ""
    unused: tuple[str, ...] = ("rotary_emb.inv_freq",)  # endings of the names of tensors that no model needs
    unused_prefixes: tuple[str, ...] = ()  # beginnings of others
    others: tuple["WeightNames", ...] = ()  # the names in checkpoints of another format

    def found_in(self, tensors: Collection[str]) -> "WeightNames":
        """The names in this checkpoint: those of the format of which it has the most."""
        formats = [each._with_prefix_of(tensors) for each in (self, *self.others)]
        if not self.others:
            return formats[0]
        stored = {_NUMBER.sub(".{}", name.removesuffix(".weight")) for name in tensors}
        return max(formats, key=lambda each: each._count_in(stored))

    def _count_in(self, stored: Collection[str]) -> int:
        return sum(name.removesuffix(".weight") in stored for name in _names_in(asdict(self)))

    def _with_prefix_of(self, tensors: Collection[str]) -> "WeightNames":
        """In a checkpoint saved without a head, names lack the common prefix.

        In a model that also reads images or audio they have one of its text part.
        """
        found = self
        for usual, own in names_in(tensors):
            found = found.begun(usual, own)
        if found != self:
            return found
        prefix = self.embedding.partition(".")[0] + "."
        if self.embedding in tensors or self.embedding.removeprefix(prefix) not in tensors:
            return self
        return self.begun(prefix, "")

    def norms(self, *, is_recurrent: bool, has_experts: bool, lone_part: str = "") -> NormNames:
        """Of a layer; `lone_part`: its only part, which has one norm."""
        if is_recurrent and self.recurrent_norms is not None:
            return self.recurrent_norms
        if lone_part:
            is_mixer = lone_part == "mixer" or not self.mlp_norm
            return NormNames(self.attention_norm if is_mixer else self.mlp_norm, "")
        if has_experts and self.expert_norms is not None:
            return self.expert_norms
        return NormNames(self.attention_norm, self.mlp_norm, self.attention_out_norm, self.mlp_out_norm)

    def changed(self, own: Mapping[str, Any]) -> "WeightNames":
        """With fields that a file format has otherwise; `experts.router` is that of a part."""
        parts: dict[str, dict[str, Any]] = {}
        for part, _, name in (key.rpartition(".") for key in own):
            parts.setdefault(part, {})[name] = own[f"{part}.{name}" if part else name]
        whole = parts.pop("", {})
        return replace(self, **whole, **{part: replace(getattr(self, part), **more) for part, more in parts.items()})

    def begun(self, old: str, new: str) -> "WeightNames":
        """These names, of which those that begin with `old` begin with `new` instead."""
        recurrent = ("mamba1", "mamba2", "gated_delta", "lightning", "recurrent_norms")
        experts = ("experts", "expert_norms", "attention_experts")
        names = (*experts, "short_convolution", "latent", *recurrent, "layer_inputs", "altup", "shared_blocks")
        parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        parts = {name: replace(part, **_begun(old, new, asdict(part))) for name, part in parts.items() if part}
        unused = tuple(new + each.removeprefix(old) if each.startswith(old) else each for each in self.unused_prefixes)
        return replace(self, **parts, **_begun(old, new, asdict(self)), unused_prefixes=unused)


def _names_in(fields: Mapping[str, Any]) -> Iterator[str]:
    """The names of all parts."""
    for value in fields.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _names_in(value)


def _begun(old: str, new: str, names: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in names.items() if isinstance(value, str) and value.startswith(old)}
    return {name: new + value.removeprefix(old) for name, value in found.items()}


USUAL_NAMES = WeightNames()
