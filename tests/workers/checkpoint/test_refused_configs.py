"""Configurations that are refused, with the field, the file or the architecture by name."""

import json

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.registry import read_geometry

from .small_configs import (
    APERTUS,
    APERTUS_1P5,
    ARIA,
    AXK1,
    COHERE2_MOE,
    COHERE_COMPASS,
    CWM,
    DBRX,
    EMBEDDING_GEMMA,
    FLINT,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GPT2,
    GPT_NEO,
    GRANITE_SWA,
    HY_V3,
    HYPERCLOVAX,
    KOLIBRI1,
    LAGUNA,
    LFM3,
    LLAMA4,
    LONGCAT,
    LONGROPE,
    MELLUM,
    MIMO_V2,
    MINISTRAL,
    MISTRAL4,
    MLLAMA,
    MODERNBERT,
    MODERNBERT_DECODER,
    MPNET,
    MPT,
    OPT,
    PHI3,
    PHI4_MULTIMODAL,
    PLAIN,
    SMOLLM3,
    VAULT_GEMMA,
    XGLM,
    YOUTU,
    geometry,
)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["RwkvForCausalLM"]}, r"RwkvForCausalLM is not supported; supported: LlamaForCausalLM"),
        ({"architectures": []}, r"config\.json names no architecture, .* set it, as in .*LlamaForCausalLM"),
        ({"architectures": None}, r"config\.json names no architecture, .* set it, as in .*LlamaForCausalLM"),
        ({"rms_norm_eps": -1e-6}, r"rms_norm_eps=-1e-06 must be at least 0 and less than 1"),
        ({"rms_norm_eps": 1e308}, r"rms_norm_eps=1e\+308 must be"),
        ({"rms_norm_eps": float("nan")}, r"config\.json cannot be used"),
        ({"sliding_window": -5}, r"sliding_window"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported; supported: silu, .*gelu_new"),
        (OPT | {"word_embed_proj_dim": 32}, "word_embed_proj_dim=32 is not supported for OPT with .*=true; only 64"),
        (OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 0}, "word_embed_proj_dim"),
        (MPNET | {"relative_attention_num_buckets": 64}, "buckets=64 is not supported for MPNet; only 32"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        (GPT2 | {"n_embd": "big"}, "hidden_size"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported for Gemma 3"),
        (GEMMA3 | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0 must be a number above 0"),
        (SMOLLM3 | {"no_rope_layers": [1, 1, 0]}, "no_rope_layers has 3 entries for 2 layers"),
        (GPT2 | {"architectures": ["GPTBigCodeForCausalLM"], "multi_query": False}, "multi_query=False is not supp"),
        ({"rope_theta": 0}, "the rope parameters cannot be used.*theta"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 0.0}}, "the rope parameters cannot be used.*theta"),
        ({"rope_scaling": {"rope_type": "axial"}}, "rope type 'axial' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor has 0 numbers, but a head has 4 rot"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 3}}, "long_factor has 3 numbers, but a head has 4 rot"),
        ({"rope_scaling": LONGROPE | {"short_factor": [0.0] * 4}}, "the rope parameters cannot be used"),
        ({"rope_scaling": LONGROPE | {"original_max_position_embeddings": 1}}, "of at least 2"),
        (PHI3 | {"partial_rotary_factor": 0.4}, r"partial_rotary_factor=0.4 must give an even .* from 2 to head_dim=8"),
        (PHI3 | {"partial_rotary_factor": 1.5}, r"partial_rotary_factor=1.5 must give an even"),
        (PHI3 | {"rope_parameters": {"partial_rotary_factor": "all"}}, r"partial_rotary_factor=all must give an even"),
        (GPT2 | {"architectures": ["GPTJForCausalLM"], "rotary_dim": 10}, "rotary_dim=10 must give an even number"),
        (GPT2 | {"architectures": ["GPTJForCausalLM"], "rotary_dim": 4, "tie_word_embeddings": True}, "GPT-J; only Fa"),
        ({"architectures": ["CohereForCausalLM"], "logit_scale": -1}, "logit_scale=-1 must be a number above 0"),
        ({"architectures": ["OlmoForCausalLM"], "clip_qkv": -1.0}, "clip_qkv"),
        (LLAMA4 | {"moe_layers": [1], "num_experts_per_tok": 17}, "num_experts_per_tok=17 must be from 1 to .* 16"),
        (LLAMA4 | {"no_rope_layers": [1]}, "no_rope_layers has 1 entries, but the model 2 layers"),
        (LLAMA4 | {"attention_chunk_size": 0}, "attention_chunk_size"),
        (LLAMA4 | {"attention_chunk_size": None}, "attention_chunk_size=null, but layers have chunked_attention"),
        (LLAMA4 | {"floor_scale": 0}, "floor_scale"),
        (LLAMA4 | {"layer_types": ["chunked_attention"]}, "layer_types names 1 layers, but the model has 2"),
        (LLAMA4 | {"layer_types": ["sliding_attention"] * 2}, "has 'sliding_attention'; the layers of llama4 are full"),
        (GEMMA3 | {"layer_types": ["chunked_attention"] * 2}, "layer_types has 'chunked_attention'; the layers of gem"),
        (GEMMA3 | {"sliding_window": 0}, "sliding_window=0 must be at least 1, or null for full attention"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window=0 must be at least 1"),
        ({"architectures": ["Cohere2ForCausalLM"], "sliding_window": 0}, "sliding_window=0 must be at least 1"),
        ({"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True}, "is not supported for Gemma"),
        (MODERNBERT | {"local_attention": 0}, "local_attention=0 must be at least 2"),
        (EMBEDDING_GEMMA | {"sliding_window": 1}, "sliding_window=1 must be at least 2"),
        (EMBEDDING_GEMMA | {"sliding_window": None}, "sliding_window=None must be at least 2"),
        (EMBEDDING_GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
        (
            GEMMA4 | {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention=all is not supported for Gemma 4",
        ),
        (GEMMA4 | {"attention_bias": True}, "attention_bias=True is not supported for Gemma 4"),
        (GEMMA4 | {"num_kv_shared_layers": 1}, "num_kv_shared_layers=1 leaves no layer with full_attention"),
        (GEMMA4 | {"num_kv_shared_layers": 3}, "num_kv_shared_layers=3 leaves no layer with"),
        (
            GEMMA4 | {"vocab_size_per_layer_input": 299},
            "vocab_size_per_layer_input=299 must be at least vocab_size=300",
        ),
        (COHERE2_MOE | {"use_qk_norm": True}, "use_qk_norm=True is not supported for Command A.; only False"),
        (COHERE2_MOE | {"use_parallel_block": False}, "use_parallel_block=False is not supported"),
        (COHERE2_MOE | {"expert_selection_fn": "tanh"}, "expert_selection_fn"),
        (COHERE2_MOE | {"shared_expert_combination_strategy": "max"}, "shared_expert_combination_strategy"),
        (COHERE2_MOE | {"num_experts_per_tok": 5}, "num_experts_per_tok=5 must be from 1 to the number of experts, 4"),
        (COHERE2_MOE | {"sliding_window_pattern": 0}, "sliding_window_pattern=0 must be at least 1"),
        (COHERE2_MOE | {"first_k_dense_replace": 3}, "first_k_dense_replace=3 from 0 to num_hidden_layers=2"),
        (COHERE2_MOE | {"mlp_layer_types": ["wide"]}, "mlp_layer_types=.* must be a list of dense and sparse"),
        (COHERE2_MOE | {"logit_scale": 0}, "logit_scale=0 must be a number above 0"),
        (
            GPT_NEO | {"attention_layers": ["global", "both"]},
            r"attention_layers=\['global', 'both'\] must be a list of glo",
        ),
        (
            GPT_NEO | {"attention_types": [["global", "local"]]},
            "attention_types=.* must be pairs of kinds and a number",
        ),
        (GPT_NEO | {"attention_types": [[["global"], 1 << 40]]}, "layer_types names 4096 layers, but the model has 2"),
        (GPT_NEO | {"attention_types": [[["global"], 2]], "window_size": -1}, "sliding_window"),
        (
            GPT2 | {"architectures": ["CodeGenForCausalLM"], "n_head": 6, "rotary_dim": 4},
            "n_head=6 must be a multiple of 4",
        ),
        (GRANITE_SWA | {"attention_sinks": False}, "attention_sinks=False is not supported for Granite with windows"),
        (GRANITE_SWA | {"layer_rope_theta": [1e4]}, "layer_rope_theta has 1 numbers for 2 layers; give one for each"),
        (GRANITE_SWA | {"layer_rope_theta": [0, 0.5]}, "the rope parameters cannot be used"),
        (MINISTRAL | {"sliding_window": 0}, "sliding_window=0 must be at least 1"),
        (APERTUS | {"post_norm": True}, "post_norm=True is not supported for Apertus; only False is"),
        (APERTUS | {"xielu_alpha_p": [0.5], "xielu_alpha_n": [0.5]}, "xielu_alpha_p has 1 numbers for 2 layers"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu', which has parameters, is not supported for llama"),
        (CWM | {"attention_bias": True}, "attention_bias=True is not supported for Code World Model; only False is"),
        (
            VAULT_GEMMA | {"use_bidirectional_attention": True},
            "use_bidirectional_attention=True is not supported for Vaul",
        ),
        (HYPERCLOVAX | {"layer_rope_theta": [1e4] * 2}, "layer_rope_theta=.* is not supported for HyperCLOVA X"),
        (LAGUNA | {"gating": False}, "gating=False is not supported for Laguna; use one of .True, 'per-head'"),
        (LAGUNA | {"num_attention_heads_per_layer": [8]}, "num_attention_heads_per_layer has 1 numbers for 2 layers"),
        (LAGUNA | {"num_attention_heads_per_layer": [8, 7]}, "7 attention heads cannot share 2 KV heads evenly"),
        (LAGUNA | {"rope_parameters": {"sliding_attention": {}}}, "rope_parameters has nothing for full_attention"),
        (LAGUNA | {"moe_router_logit_softcapping": 5.0}, "moe_router_logit_softcapping=5.0 is not supported"),
        (AXK1 | {"scoring_func": "softmax"}, "scoring_func=softmax is not supported for A.X K1; only sigmoid is"),
        (FLINT | {"sliding_window": 0}, "sliding_window=0 must be a number above 0"),
        (KOLIBRI1 | {"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\] is not supported for Kolibri 1; only \[\] is"),
        (ARIA | {"mlp_bias": True}, "mlp_bias=True is not supported for Aria; only False is"),
        (
            APERTUS_1P5 | {"output_vocab_size": 1 << 24},
            "output_vocab_size=16777216 must be a whole number from 1 to vocab_size=",
        ),
        (APERTUS_1P5 | {"output_vocab_size": "90"}, "output_vocab_size='90' must be a whole number"),
        (APERTUS_1P5 | {"tie_word_embeddings": True}, "tie_word_embeddings=True is not supported for Apertus 1.5"),
        (MLLAMA | {"tie_word_embeddings": True}, "tie_word_embeddings=True is not supported for Llama 3.2 Vision"),
        (
            MLLAMA | {"cross_attention_layers": [1, 2]},
            r"cross_attention_layers=\[1, 2\] must name layers below num_hidd",
        ),
        (
            MLLAMA | {"cross_attention_layers": [1, 1]},
            r"cross_attention_layers=\[1, 1\] must name layers below num_hidd",
        ),
        (MLLAMA | {"cross_attention_layers": [0, 1]}, "num_hidden_layers=0 must be at least 1"),
        (
            PHI4_MULTIMODAL | {"lm_head_bias": True},
            "lm_head_bias=True is not supported for Phi-4-multimodal",
        ),
        (COHERE_COMPASS | {"rope_theta": 1e4}, "rope_parameters has nothing for full_attention; leave it out or"),
        (MISTRAL4 | {"n_group": 4}, "n_group=4 is not supported for Mistral 4; only 1 is"),
        (
            MISTRAL4 | {"rope_parameters": {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor=0.25 must be 0.5, which is qk_rope_head_dim=64 of 128 elements; leave it out",
        ),
        (LONGCAT | {"zero_expert_type": "copy"}, "zero_expert_type=copy is not supported for LongCat-Flash; only iden"),
        (LONGCAT | {"mla_scale_q_lora": False}, "mla_scale_q_lora=False is not supported for LongCat-Flash"),
        (LONGCAT | {"q_lora_rank": None}, "q_lora_rank=None must be a number above 0"),
        (LONGCAT | {"qk_head_dim": 64}, "qk_head_dim=64 is not supported for LongCat-Flash's heads; only 192 is"),
        (LONGCAT | {"zero_expert_num": -1}, "zero_expert_num"),
        (LONGCAT | {"moe_topk": 17, "zero_expert_num": 8}, "num_experts_per_tok=17 must be from 1 to .* experts, 16"),
        (DBRX | {"ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights=2 is not supported"),
        (DBRX | {"attn_config": [8]}, r"attn_config=\[8\] must be an object"),
        (
            DBRX | {"attn_config": {"rope_theta": 5e5}, "rope_parameters": {"rope_theta": 1e4}},
            "attn_config has rope_theta=500000.0, but rope_parameters has 10000.0; keep the one",
        ),
        (MODERNBERT_DECODER | {"local_attention": None}, "local_attention=None must be a number above 0"),
        (MODERNBERT_DECODER | {"classifier_bias": True}, "classifier_bias=True is not supported for ModernBERT's deco"),
        (XGLM | {"pad_token_id": 2}, "pad_token_id=2 must be less than 2 for XGLM"),
        (XGLM | {"add_cross_attention": True}, "add_cross_attention=True is not supported for XGLM"),
        (MIMO_V2 | {"v_head_dim": 33}, "v_head_dim=33 must be from 1 to head_dim=32"),
        (MIMO_V2 | {"swa_num_key_value_heads": 3}, "8 attention heads cannot share 3 KV heads of windows evenly"),
        (MIMO_V2 | {"hybrid_layer_pattern": [0, 2]}, r"hybrid_layer_pattern=\[0, 2\] must be a list of 0 and 1"),
        (MIMO_V2 | {"swa_head_dim": 8}, "swa_head_dim=8 is not supported for MiMo-V2-Flash; only 32 is"),
        (MIMO_V2 | {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias=True is not supported"),
        (MIMO_V2 | {"attention_value_scale": 0.0}, "attention_value_scale"),
        (MELLUM | {"rope_parameters": {"sliding_attention": {}}}, "rope_parameters has nothing for full_attention"),
        (
            MELLUM | {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "partial_rotary_factor=0.5 is not",
        ),
        (YOUTU | {"attention_bias": True}, "attention_bias=True is not supported for Youtu-LLM; only False is"),
        (HY_V3 | {"mlp_bias": True}, "mlp_bias=True is not supported for Hunyuan 3; only False is"),
        (LFM3 | {"layer_types": ["conv"] * 2, "conv_L_cache": 9}, "conv_width"),
        (
            LFM3 | {"layer_types": ["conv", "full_attention"], "rope_parameters": {}},
            "rope_parameters has nothing for full_att",
        ),
        (GEMMA3N | {"attention_bias": True}, "attention_bias=True is not supported for Gemma 3n"),
        (GEMMA3N | {"altup_active_idx": 1}, "altup_active_idx=1 is not supported for Gemma 3n; only 0"),
        (GEMMA3N | {"altup_correct_scale": False}, "altup_correct_scale=False is not supported for Gemma 3n"),
        (GEMMA3N | {"altup_num_inputs": 1}, "altup_num_inputs"),
        (GEMMA3N | {"laurel_rank": 0}, "laurel_rank"),
        (GEMMA3N | {"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input=0 must be above 0 for Gemma 3n"),
        (GEMMA3N | {"vocab_size_per_layer_input": 0}, "vocab_size_per_layer_input=0 must be at least 1"),
        (GEMMA3N | {"num_kv_shared_layers": 2}, "num_kv_shared_layers=2 leaves no layer with"),
        (GEMMA3N | {"intermediate_size": [96, 128]}, "must be the same for all layers"),
        (GEMMA3N | {"intermediate_size": []}, "intermediate_size"),
        (GEMMA3N | {"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern names 1 layers, but .* 2"),
        (GEMMA3N | {"activation_sparsity_pattern": [0.5, 1.0]}, "activation_sparsity_pattern"),
        (GEMMA4 | {"global_head_dim": 33}, "a head of 33 elements cannot be rotated in pairs"),
        (GEMMA4 | {"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "8 attention heads cannot share 3 KV heads"),
        (GEMMA4 | {"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config has sliding_window"),
        (GEMMA4 | {"rope_parameters": {"full_attention": {}}}, "rope_parameters has nothing for sliding_attention"),
        (GEMMA4 | {"enable_moe_block": True, "top_k_experts": 2}, "must be from 1 to the number of experts, 0"),
        (MODERNBERT | {"local_attention": 1}, "local_attention=1 must be at least 2"),
        (MODERNBERT | {"layer_types": ["full_attention"]}, "layer_types names 1 layers, but the model has 2"),
        (MODERNBERT | {"rope_parameters": {"full_attention": 5}}, "are 5, not an object"),
        (MODERNBERT | {"num_hidden_layers": "many"}, "num_hidden_layers"),
        (MPT | {"attn_config": {"alibi": False}}, "alibi=False is not supported for MPT"),
        (MPT | {"attn_config": {"qk_ln": True}}, "qk_ln=True is not supported for MPT"),
        (MPT | {"attn_config": ["alibi"]}, r"attn_config=\['alibi'\] must be an object"),
        (MPT | {"no_bias": False}, "no_bias=False is not supported for MPT"),
        (
            {"architectures": ["MiniCPMForCausalLM"], "scale_depth": "deep"},
            "scale_depth=.deep. must be",
        ),
        ({"architectures": ["MiniCPMForCausalLM"], "num_experts": 8}, "num_experts=8 is not supported for MiniCPM"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs a factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"num_key_value_heads": 3}, "8 attention heads cannot share 3 KV heads"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be at least 1"),
        ({"dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "much"}}, "rope"),
    ],
)
def test_an_unsupported_configuration_is_refused_by_name(tmp_path, changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        geometry(tmp_path, **changes)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("CodeGen2ForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}),
        ("CTRLLMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 8}),
        ("RwkvForCausalLM", {"attention_hidden_size": 64, "hidden_size": 64}),
        ("T5GemmaForCausalLM", PLAIN | {"hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}),
    ],
)
def test_an_unknown_architecture_is_refused_as_such_whatever_its_fields(tmp_path, architecture, fields):
    (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": [architecture]}))
    with pytest.raises(ConfigError, match=f"^architecture {architecture} is not supported; supported: LlamaFor"):
        read_geometry(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_deeply_nested_file_is_named(tmp_path, name):
    geometry(tmp_path)
    (tmp_path / name).write_text('{"x":' + 100_000 * "[" + 100_000 * "]" + "}")
    with pytest.raises(ConfigError, match=rf"/{name} is nested too deeply$"):
        read_geometry(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null"])
def test_a_folder_that_is_not_a_model_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read_geometry(tmp_path)


@pytest.mark.parametrize(("size", "complaint"), [(3, "attention heads, 8"), (16, "attention heads, 8")])
def test_ranks_that_do_not_divide_the_model_are_refused_with_numbers(tmp_path, size, complaint):
    with pytest.raises(ConfigError, match=complaint):
        geometry(tmp_path).check_tensor_parallel(size)
    with pytest.raises(ConfigError, match="intermediate size, 97"):
        geometry(tmp_path, intermediate_size=97).check_tensor_parallel(2)
    with pytest.raises(ConfigError, match=r"neither divides the model's 6 KV heads nor .*; use one of 1, 2, 3, 6, 12$"):
        geometry(tmp_path, num_attention_heads=12, num_key_value_heads=6, head_dim=8).check_tensor_parallel(4)
    geometry(tmp_path).check_tensor_parallel(4)
