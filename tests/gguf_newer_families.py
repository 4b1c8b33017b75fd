"""What the converter makes of architectures that the package does not know, see gguf_architectures.py."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

SLIDING, SIGMOID = "sliding_attention", 2
PARTS = ("gate", "up", "down")
ARCHITECTURES = {
    "HYV3ForCausalLM": "hy_v3",
    "LagunaForCausalLM": "laguna",
    "MellumForCausalLM": "mellum",
    "MiMoV2FlashForCausalLM": "mimo2",
    "GraniteSWAForCausalLM": "granite_swa",
    "GraniteMoeSWAForCausalLM": "granite_swa",
    "MiniMaxForCausalLM": "minimax-01",
    "BailingHybridForCausalLM": "bailingmoe3",
    "DeepseekV32ForCausalLM": "deepseek32",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "BailingMoeForCausalLM": "bailingmoe",
    "BailingMoeV2ForCausalLM": "bailingmoe2",
    "DeepseekForCausalLM": "deepseek",
    "DeciLMForCausalLM": "deci",
    "Jais2ForCausalLM": "jais2",
    "MptForCausalLM": "mpt",
}
NEWER = tuple(dict.fromkeys(ARCHITECTURES.values()))
MODULES = {  # in a layer of a checkpoint, and of a file
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"},
    **{f"attention.{each}_proj": f"attn_{each}" for each in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    **{f"mlp.{each}_proj": f"ffn_{each}" for each in PARTS},
    **{f"mlp.experts.{each}_proj": f"ffn_{each}_exps" for each in PARTS},
    **{f"mlp.{name}.{each}_proj": f"ffn_{each}_shexp" for each in PARTS for name in ("shared_mlp", "shared_expert")},
    **{f"mlp.shared_experts.{each}_proj": f"ffn_{each}_shexp" for each in PARTS},
    "mlp.gate": "ffn_gate_inp",
    "mlp.router.gate": "ffn_gate_inp",
    "mlp.expert_bias": "exp_probs_b",
    "mlp.experts.e_score_correction": "exp_probs_b",
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.gate.expert_bias": "exp_probs_b.bias",
    "self_attn.g_proj": "attn_gate",
    "self_attn.attention_sink_bias": "attn_sinks.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
    "shared_mlp.input_linear": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"block_sparse_moe.experts.w{at}": f"ffn_{each}_exps" for at, each in zip((1, 3, 2), PARTS, strict=True)},
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.output_gate": "attn_gate",
    "self_attn.norm": "attn_norm_2",
    "self_attn.out_proj": "attn_output",
    "attention.dense": "attn_output",
    "attention.query_key_value": "attn_qkv",
    "attention.query_layernorm": "attn_q_norm",
    "attention.key_layernorm": "attn_k_norm",
    "attention.f_proj": "ssm_f_a",
    "attention.b_proj": "ssm_beta",
    "attention.o_norm": "ssm_norm",
    "attention.A_log": "ssm_a",
    "attention.dt_bias": "ssm_dt.bias",
    **{f"attention.{each}_conv1d": f"ssm_conv1d_{each}" for each in "qkv"},
    **{
        f"{mixer}.{name}": f"attn_{stored}"
        for mixer in ("attention", "self_attn")
        for name, stored in (
            ("q_a_proj", "q_a"),
            ("q_a_layernorm", "q_a_norm"),
            ("q_b_proj", "q_b"),
            ("kv_a_proj_with_mqa", "kv_a_mqa"),
            ("kv_a_layernorm", "kv_a_norm"),
            ("k_b_proj", "k_b"),
            ("v_b_proj", "v_b"),
        )
    },
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    **{f"ffn.{each}_proj": f"ffn_{each}" for each in PARTS},
}
WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.word_embeddings": "token_embd",
    "transformer.wte": "token_embd",
    "model.norm": "output_norm",
    "transformer.norm_f": "output_norm",
    "lm_head": "output",
}


def newer_name(name: str) -> str:
    """The name in a file of a checkpoint's tensor. Raises KeyError if it has none."""
    module, dot, kind = name.rpartition(".")
    if name.startswith("blk."):
        return name
    if kind not in ("weight", "bias"):
        module, dot, kind = name, "", ""
    if match := re.fullmatch(r"(?:model\.layers|transformer\.blocks)\.(\d+)\.(.*)", module):
        return f"blk.{match[1]}.{MODULES[match[2]]}{dot}{kind}"
    return f"{WHOLE[module]}{dot}{kind}"


def newer_tensor(name: str, tensor: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensor with its values in a file; MiniMax's decays are not in it, and two modules of Ling 3 have one name."""
    if name.endswith(("slope_rate", "query_decay", "key_decay", "diagonal_decay")):
        return {}
    if name.endswith("e_score_correction_bias"):
        return {f"{name.removesuffix('_bias')}.bias": tensor}
    if name.endswith("query_key_value.weight") and "BailingMoeForCausalLM" in config["architectures"]:
        return _of_ling(name, tensor, config)
    if name.endswith(("q_proj.weight", "k_proj.weight")) and "DeciLMForCausalLM" in config["architectures"]:
        heads = tensor.unflatten(0, (-1, config["hidden_size"] // config["num_attention_heads"]))
        return {name: _with_adjacent_pairs(heads)}
    if name.endswith("attention.A_log"):
        return {name: tensor.float().exp().reshape(-1, 1)}
    if name.endswith("_conv1d.weight"):
        return {name: tensor.squeeze(1)[None, :, None]}
    if match := re.fullmatch(r"model\.layers\.(\d+)\.attention\.g_proj\.weight", name):
        is_linear = config["layer_types"][int(match[1])] == "linear_attention"
        return {f"blk.{match[1]}.{'ssm_g_a' if is_linear else 'attn_gate'}.weight": tensor}
    return {name: tensor}


def _of_ling(name: str, tensor: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Queries, keys and values apart; the two elements of each pair that is rotated are adjacent."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    parts = tensor.unflatten(0, (heads + 2 * kv_heads, -1)).split([heads, kv_heads, kv_heads])
    found = {name.replace("query_key_value", f"{each}_proj"): part for each, part in zip("qkv", parts, strict=True)}
    return {
        each: part.flatten(0, 1) if ".v_proj" in each else _with_adjacent_pairs(part) for each, part in found.items()
    }


def _with_adjacent_pairs(heads: Tensor) -> Tensor:
    """[heads, head_dim, inputs] as a matrix, in which the two rows of each pair that is rotated are adjacent."""
    return heads.unflatten(1, (2, -1)).transpose(1, 2).reshape(-1, heads.shape[2])


def _of_blocks(config: Mapping[str, Any]) -> dict[str, Any]:
    blocks, heads = config["block_configs"], config["num_attention_heads"]
    sharing = [each["attention"].get("n_heads_in_group") for each in blocks]
    lengths = [each["ffn"]["ffn_mult"] for each in blocks]
    sizes = [int(2 * (each or 0) * config["hidden_size"] / 3) for each in lengths]
    return {
        "attention.head_count": [heads if each else 0 for each in sharing],
        "attention.head_count_kv": [heads // each if each else 0 for each in sharing],
        "feed_forward_length": [-(-size // 256) * 256 for size in sizes],
    }


def newer_keys(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The keys of one of NEWER, besides those of all; None: the file has none."""
    keys = _experts(config)
    if "sliding_window" in config and architecture in ("laguna", "mellum", "mimo2", "granite_swa"):
        slides = [kind == SLIDING for kind in config["layer_types"]]
        keys["attention.sliding_window"] = config["sliding_window"] - (architecture == "mimo2")
        keys["attention.sliding_window_pattern"] = slides if architecture != "laguna" else None
    match architecture:
        case "laguna":
            keys["attention.head_count"] = config["num_attention_heads_per_layer"]
            keys["rope.dimension_count_swa"] = config["head_dim"]
        case "mimo2":
            full = config["num_key_value_heads"]
            heads = {True: config.get("swa_num_key_value_heads", 2 * full), False: full}
            keys["attention.head_count_kv"] = [heads[each] for each in slides]
            keys["attention.value_length"] = config["v_head_dim"]
            keys["attention.value_scale"] = config["attention_value_scale"]
        case "granite_swa":
            keys["attention.rope_pattern"] = [bool(theta) for theta in config["layer_rope_theta"]]
            keys["expert_shared_feed_forward_length"] = config.get("shared_intermediate_size")
        case "minimax-01":
            keys["residual_scale"] = config["full_attn_alpha_factor"]
        case "bailingmoe3":
            keys |= _ling(config)
        case "deepseek32" | "glm-dsa":
            sizes = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
            keys |= {f"attention.indexer.{ours}": config[theirs] for theirs, ours in sizes.items()}
            if "indexer_types" in config:
                keys["attention.indexer.types"] = [kind == "full" for kind in config["indexer_types"]]
        case "deci":
            keys |= _of_blocks(config)
        case "mpt":
            keys |= {"context_length": config["max_seq_len"], "attention.head_count": config["n_heads"]}
            keys |= {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": config["attn_config"]["clip_qkv"]}
    return keys


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "num_experts": "expert_count",
        "num_local_experts": "expert_count",
        "n_routed_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "n_shared_experts": "expert_shared_count",
        "num_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "norm_topk_prob": "expert_weights_norm",
    }
    keys = {key: config[name] for name, key in names.items() if config.get(name) is not None}
    for name in ("routed_scaling_factor", "router_scaling_factor", "moe_routed_scaling_factor"):
        if config.get(name) is not None:
            keys |= {"expert_weights_scale": float(config[name]), "expert_gating_func": SIGMOID}
    return keys


def _ling(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "num_expert_group": "expert_group_count",
        "num_experts_per_token": "expert_used_count",
        "num_shared_experts": "expert_shared_count",
        "moe_renormalize": "expert_weights_norm",
        "linear_head_dim": "kda.head_dim",
        "kda_safe_gate": "kda.safe_gate",
        "kda_lower_bound": "kda.gate_lower_bound",
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "model_max_length": "context_length",
    }
    return {key: config[name] for name, key in names.items()} | {
        "attention.head_count_kv": [int(kind == "full_attention") for kind in config["layer_types"]],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
    }
