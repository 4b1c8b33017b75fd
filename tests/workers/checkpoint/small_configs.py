"""Fields of config.json of small models, and the geometry that they mean."""

import json

from paged_serve.workers.models.registry import read_geometry

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
}
MPNET = {"architectures": ["MPNetModel"], "layer_norm_eps": 1e-5}
OPT = {"architectures": ["OPTForCausalLM"], "ffn_dim": 96, "word_embed_proj_dim": 64, "activation_function": "relu"}
LLAMA4 = {"architectures": ["Llama4ForCausalLM"], "moe_layers": [], "intermediate_size_mlp": 96}
MPT = {"architectures": ["MptForCausalLM"], "d_model": 64, "n_layers": 2, "n_heads": 8}
MODERNBERT = {"architectures": ["ModernBertModel"]}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128}
EMBEDDING_GEMMA = {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
GEMMA4 = {"architectures": ["Gemma4ForCausalLM"], "head_dim": 16, "global_head_dim": 32}
COHERE2_MOE = {"architectures": ["Cohere2MoeForCausalLM"], "head_dim": 16, "num_experts": 4}
GRANITE_SWA = {"architectures": ["GraniteSWAForCausalLM"]}
MINISTRAL = {"architectures": ["MinistralForCausalLM"]}
APERTUS = {"architectures": ["ApertusForCausalLM"]}
CWM = {"architectures": ["CwmForCausalLM"]}
VAULT_GEMMA = {"architectures": ["VaultGemmaForCausalLM"]}
HYPERCLOVAX = {"architectures": ["HyperCLOVAXForCausalLM"]}
MELLUM = {"architectures": ["MellumForCausalLM"], "head_dim": 16, "num_experts": 8}
YOUTU = {"architectures": ["YoutuForCausalLM"]}
HY_V3 = {"architectures": ["HYV3ForCausalLM"]}
LAGUNA = {"architectures": ["LagunaForCausalLM"], "head_dim": 16, "num_experts": 8}
MIMO_V2 = {"architectures": ["MiMoV2FlashForCausalLM"], "head_dim": 32, "v_head_dim": 8, "num_experts": 8}
MISTRAL4 = {"architectures": ["Mistral4ForCausalLM"]}
AXK1 = {"architectures": ["AXK1ForCausalLM"]}
FLINT = {"architectures": ["FlintForCausalLM"], "head_dim": 16, "num_experts": 8, "num_key_value_heads": 2}
KOLIBRI1 = {"architectures": ["Kolibri1ForCausalLM"], "head_dim": 16, "num_experts": 8, "num_key_value_heads": 2}
ARIA = {"architectures": ["AriaTextForCausalLM"], "num_key_value_heads": 2}
APERTUS_1P5 = {"architectures": ["Apertus1p5TextForCausalLM"], "output_vocab_size": 90}
MLLAMA = {"architectures": ["MllamaForCausalLM"], "num_hidden_layers": 2, "cross_attention_layers": [1]}
PHI4_MULTIMODAL = {"architectures": ["Phi4MMForCausalLM"]}
COHERE_COMPASS = {"architectures": ["CohereCompassForCausalLM"]}
LONGCAT = {"architectures": ["LongcatFlashForCausalLM"], "num_layers": 1, "n_routed_experts": 8}
DBRX = {"architectures": ["DbrxForCausalLM"]}
MODERNBERT_DECODER = {"architectures": ["ModernBertDecoderForCausalLM"]}
XGLM = {"architectures": ["XGLMForCausalLM"], "d_model": 64}
LFM3 = {"architectures": ["Lfm3ForCausalLM"], "head_dim": 16}
GPT_NEO = {"architectures": ["GPTNeoForCausalLM"], "num_layers": 2, "num_heads": 8}
GEMMA3N = {"architectures": ["Gemma3nForCausalLM"], "head_dim": 16, "num_kv_shared_layers": 0}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "query_pre_attn_scalar": 24, "sliding_window": 16}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
PHI3 = {"architectures": ["Phi3ForCausalLM"]}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"]}


def geometry(folder, max_model_len=None, **changes):
    (folder / "config.json").write_text(json.dumps({**PLAIN, **changes}))
    return read_geometry(folder, max_model_len=max_model_len)[1]
