"""Tiny models that also read images or audio: the fields of their configurations, by the name of their classes."""

from typing import Any

TEXT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
IMAGES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
PATCHES = {
    "depth": 1,
    "hidden_size": 16,
    "embed_dim": 16,
    "num_heads": 2,
    "intermediate_size": 24,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}
TILES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_global_layers": 1,
    "attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 32,
    "intermediate_layers_indices": [0],
}
SOUND = {
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "output_dim": 64,
}
CONFORMER = {
    "hidden_size": 16,
    "conf_num_hidden_layers": 1,
    "conf_num_attention_heads": 2,
    "vocab_offset": 203,
    "vocab_size": 4,
}
CLIP, SIGLIP = IMAGES | {"model_type": "clip_vision_model"}, IMAGES | {"model_type": "siglip_vision_model"}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}


def rotated(*sections: int, **fields: Any) -> dict[str, Any]:
    """The rope of models with three positions for each token of an image, which pairs of a head divide."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **fields},
        "head_dim": 16,
    }


HALF_ROTATED = rotated(1, 1, 2, partial_rotary_factor=0.5)
HYBRID = rotated(1, 1, 2, partial_rotary_factor=0.5) | {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SOUND_TOKENS = {  # of Apertus 1.5
    "model_type": "wavtokenizer_encoder",
    "codebook_size": 8,
    "codebook_dim": 16,
    "hidden_size": 16,
    "num_filters": 4,
    "num_lstm_layers": 1,
    "decoder_hidden_size": 32,
    "decoder_intermediate_size": 32,
    "decoder_num_layers": 1,
}
# by name: fields of text_config, and of vision_config or audio_config
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Gemma3": ({"head_dim": 16, "sliding_window": 32}, IMAGES),
    "Gemma3n": (
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 150,
            "activation_sparsity_pattern": [0.9, 0.0],
        },
        {"hidden_size": 16, "vocab_offset": 199, "vocab_size": 4},
    ),
    "Gemma4": (
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 199,
            "sliding_window": 40,
        },
        IMAGES | {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16, "pooling_kernel_size": 1},
    ),
    "Gemma4Unified": (
        {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"], "num_global_key_value_heads": 1},
        {"mm_embed_dim": 64, "mm_posemb_size": 8, "output_proj_dims": 64},
    ),
    "Apertus1p5": (
        {"vocab_size": 231, "output_vocab_size": 199},
        {"codebook_size": 16, "embed_dim": 8, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1},
    ),
    "Exaone4_5_": (
        {"model_type": "exaone4", "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]}
        | {"sliding_window": 40},
        PATCHES,
    ),
    "HyperCLOVAXVisionV2": ({"model_type": "hyperclovax", "use_post_norm": True}, PATCHES),
    "Mllama": ({"num_hidden_layers": 4, "cross_attention_layers": [1, 2]}, TILES),
    "Mistral3": ({"model_type": "mistral", "head_dim": 16}, IMAGES | {"model_type": "pixtral", "head_dim": 8}),
    "Llama4": ({"head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4}, IMAGES),
    "Qwen2VL": (rotated(2, 3, 3), PATCHES | {"hidden_size": 64}),
    "Qwen2_5_VL": (rotated(2, 3, 3), PATCHES),
    "Qwen3VL": (rotated(2, 3, 3), PATCHES),
    "Qwen3VLMoe": (rotated(2, 3, 3) | EXPERTS | {"num_experts": 8}, PATCHES),
    "Qwen3_5": (HYBRID, PATCHES),
    "Qwen3_5Moe": (HYBRID | EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 24}, PATCHES),
    "Llava": ({"model_type": "llama"}, CLIP),
    "LlavaNext": ({"model_type": "mistral"}, CLIP),
    "LlavaOnevision": ({"model_type": "qwen2"}, SIGLIP),
    "InternVL": ({"model_type": "qwen3", "head_dim": 16}, IMAGES),
    "Aria": ({"moe_num_experts": 8, "intermediate_size": 24}, IMAGES | {"model_type": "idefics3_vision"}),
    "AyaVision": ({"model_type": "cohere2", "logit_scale": 1.0}, SIGLIP),
    "Cohere2Vision": ({"model_type": "cohere2", "logit_scale": 1.0}, SIGLIP),
    "CohereCompass": (
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [2, 3, 3]},
                "full_attention": None,
            },
            "sliding_window": 40,
            "logit_scale": 0.5,
        },
        PATCHES | {"patch_size": 14},
    ),
    "Idefics3": ({"model_type": "llama"}, IMAGES),
    "SmolVLM": ({"model_type": "llama"}, IMAGES),
    "Lfm2Vl": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        IMAGES | {"model_type": "siglip2_vision_model"},
    ),
    "Lfm3Vl": (
        {"model_type": "lfm3", "head_dim": 16, "layer_types": ["conv", "full_attention"]},
        IMAGES | {"model_type": "siglip2_vision_model"},
    ),
    **dict.fromkeys(("MiniCPMV4_6", "MiniCPMV4_7"), (HYBRID, IMAGES)),
    **dict.fromkeys(("Ovis2", "VideoLlama3"), ({"model_type": "qwen2"}, IMAGES)),
    "Idefics2": ({"model_type": "mistral"}, IMAGES),
    "Janus": ({"model_type": "llama"}, IMAGES),
    **dict.fromkeys(("LlavaNextVideo", "VideoLlava", "VipLlava"), ({"model_type": "llama"}, CLIP)),
    "DeepseekVL": ({"model_type": "llama"}, SIGLIP),
    "Glm4v": (HALF_ROTATED, PATCHES),
    "Glm46V": (HALF_ROTATED | {"model_type": "glm4v_text"}, PATCHES | {"model_type": "glm4v_vision"}),
    "Glm4vMoe": (HALF_ROTATED | EXPERTS | {"n_routed_experts": 8}, PATCHES),
    "Kimi_K25": (LATENT | EXPERTS | {"model_type": "deepseek_v3"}, IMAGES),
    "Voxtral": ({"model_type": "llama"}, IMAGES),
    "Qwen2Audio": ({"model_type": "qwen2"}, SOUND),
    "Qwen2_5OmniThinker": (rotated(2, 3, 3), SOUND),
    "Qwen3OmniMoeThinker": (rotated(2, 3, 3) | EXPERTS | {"num_experts": 8}, SOUND),
}
