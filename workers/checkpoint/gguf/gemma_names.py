"""The tensors of the GGUF architectures of Gemma."""

from .tensor_layout import WHOLE, TensorLayout
from .usual_names import HEAD_NORMS, LLAMA

_GEMMA2 = LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA3 = _GEMMA2 | HEAD_NORMS
_LAYER_INPUTS = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N = (
    _GEMMA3
    | _LAYER_INPUTS
    | {
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale.weight": "altup.correct_output_scale",
        "laurel_l": "laurel.linear_left",
        "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm",
    }
)
_WHOLE_WITH_INPUTS = WHOLE | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_ALTUP = {
    "altup_proj": "model.altup_projections.{}",
    "altup_unembd_proj": "model.altup_unembed_projections.{}",
}
_GEMMA4 = (
    _GEMMA3
    | _LAYER_INPUTS
    | {
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
    }
)
_GEMMA4_EXPERTS: dict[str, str | tuple[str, ...]] = {
    "ffn_gate_up_exps": ("experts.{}.gate_proj", "experts.{}.up_proj"),
    "ffn_gate_exps": "experts.{}.gate_proj",
    "ffn_up_exps": "experts.{}.up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
}
GEMMA_LAYOUTS = {
    "gemma": TensorLayout(LLAMA, norms_plus_1=True),
    "gemma2": TensorLayout(_GEMMA2, norms_plus_1=True),
    "gemma3": TensorLayout(_GEMMA3, norms_plus_1=True),
    "gemma-embedding": TensorLayout(_GEMMA3, norms_plus_1=True),
    "gemma3n": TensorLayout(_GEMMA3N, whole=_WHOLE_WITH_INPUTS, stacked=_ALTUP),
    "gemma4": TensorLayout(_GEMMA4, whole=_WHOLE_WITH_INPUTS, experts=_GEMMA4_EXPERTS),
}
