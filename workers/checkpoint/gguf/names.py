"""The tensors of each GGUF architecture: their names in a Hugging Face checkpoint, and how they are stored."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paged_serve.protocol.errors import ConfigError

_LAYER = "model.layers.{}."
_WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_LLAMA = _ATTENTION | {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA2 = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_PHI2 = _ATTENTION | {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_OF_EXPERTS = _ATTENTION | {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_SINKS = "self_attn.sinks"  # a vector without an ending
_GPT_OSS = _ATTENTION | {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": _SINKS,
    "ffn_gate_inp": "mlp.router",
}
_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+)")
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # are in config.json


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How an architecture's tensors are named and stored."""

    in_layers: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=lambda: _WHOLE)
    experts: Mapping[str, str] = field(default_factory=dict)  # of tensors with a part for each expert, `{}` in the name
    are_rows_interleaved: bool = False  # of q and k: the rows i and i + head_dim / 2 of each head are adjacent
    norms_plus_1: bool = False  # a norm's weight is stored plus 1

    def name(self, tensor: str) -> str | None:
        """The name of a GGUF tensor in a Hugging Face checkpoint; None: it has no such tensor."""
        module, _, kind = tensor.rpartition(".")
        if kind not in ("weight", "bias"):
            return None
        if match := _IN_LAYER.fullmatch(module):
            layer, part = match.groups()
            found = self.in_layers.get(part)
            if found is None:
                return None
            return f"{_LAYER.format(int(layer))}{found}" + ("" if found == _SINKS else f".{kind}")
        return None if (found := self.whole.get(module)) is None else f"{found}.{kind}"

    def name_of_experts(self, tensor: str) -> str | None:
        """The name of a GGUF tensor's matrices or biases, with `{}` for the expert; None: it has none of experts."""
        module, _, kind = tensor.rpartition(".")
        match = _IN_LAYER.fullmatch(module)
        if kind not in ("weight", "bias") or match is None or match[2] not in self.experts:
            return None
        return f"{_LAYER.format(int(match[1]))}{self.experts[match[2]]}.{kind}"


TENSOR_LAYOUTS = {
    "llama": TensorLayout(
        _LLAMA | {"ffn_gate_inp": "block_sparse_moe.gate"}, experts=_MIXTRAL_EXPERTS, are_rows_interleaved=True
    ),
    "qwen2": TensorLayout(_LLAMA),
    "qwen3": TensorLayout(_LLAMA | _HEAD_NORMS),
    "qwen2moe": TensorLayout(_OF_EXPERTS | _SHARED_EXPERT, experts=_EXPERTS),
    "qwen3moe": TensorLayout(_OF_EXPERTS | _HEAD_NORMS, experts=_EXPERTS),
    "olmoe": TensorLayout(_OF_EXPERTS | _HEAD_NORMS, experts=_EXPERTS),
    "gpt-oss": TensorLayout(_GPT_OSS, experts=_EXPERTS),
    "gemma": TensorLayout(_LLAMA, norms_plus_1=True),
    "gemma2": TensorLayout(_GEMMA2, norms_plus_1=True),
    "gemma3": TensorLayout(_GEMMA2 | _HEAD_NORMS, norms_plus_1=True),
    "phi2": TensorLayout(_PHI2, whole=_WHOLE | {"output_norm": "model.final_layernorm"}),
    "phi3": TensorLayout(_PHI3),
}


def tensor_layout(architecture: str, source: str) -> TensorLayout:
    """Raises ConfigError for an unknown architecture."""
    if (layout := TENSOR_LAYOUTS.get(architecture)) is None:
        raise ConfigError(
            f"{source}: the GGUF architecture {architecture!r} is not supported; supported: {', '.join(TENSOR_LAYOUTS)}"
        )
    return layout
