"""What the converter makes of a Hugging Face model besides other names: metadata, and other values of its tensors."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .gguf_dbrx import DBRX, dbrx_tensor
from .gguf_expert_families import OWN, family_keys, family_tensors
from .gguf_gated_delta import GATED_DELTA, gated_delta_tensors
from .gguf_gemma4 import gemma4_keys, gemma4_tensor
from .gguf_kimi_linear import KIMI_LINEAR, kimi_linear_keys, kimi_linear_tensor
from .gguf_newer_families import ARCHITECTURES as NEWER_ARCHITECTURES
from .gguf_newer_families import NEWER, newer_keys, newer_tensor
from .gguf_recurrent import recurrent_values

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "llama",
    "Ministral3ForCausalLM": "mistral3",
    "Mistral4ForCausalLM": "mistral4",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "OlmoeForCausalLM": "olmoe",
    "GptOssForCausalLM": "gpt-oss",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "Llama4ForCausalLM": "llama4",
    "Cohere2MoeForCausalLM": "cohere2moe",
    "Dots1ForCausalLM": "dots1",
    "AfmoeForCausalLM": "afmoe",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "PhimoeForCausalLM": "phimoe",
    "MiniCPM3ForCausalLM": "minicpm3",
    "NemotronHForCausalLM": "nemotron_h_moe",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3nForCausalLM": "gemma3n",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma3TextModel": "gemma-embedding",
    "ModernBertModel": "modern-bert",
    "EuroBertModel": "eurobert",
    "GlmForCausalLM": "chatglm",
    "PhiForCausalLM": "phi2",
    "Phi3ForCausalLM": "phi3",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4moe",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "SmolLM3ForCausalLM": "smollm3",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "Exaone4ForCausalLM": "exaone4",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "SeedOssForCausalLM": "seed_oss",
    "Starcoder2ForCausalLM": "starcoder2",
    "StableLmForCausalLM": "stablelm",
    "NemotronForCausalLM": "nemotron",
    "ApertusForCausalLM": "apertus",
    "ArceeForCausalLM": "arcee",
    "FalconForCausalLM": "falcon",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "starcoder",
    "GPTNeoXForCausalLM": "gptneox",
    "BloomForCausalLM": "bloom",
    "Lfm2ForCausalLM": "lfm2",
    "GraniteMoeHybridForCausalLM": "granitehybrid",
    "JambaForCausalLM": "jamba",
    "MambaForCausalLM": "mamba",
    "Mamba2ForCausalLM": "mamba2",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DbrxForCausalLM": DBRX,
    "DeepseekV3ForCausalLM": "deepseek2",
    "YoutuForCausalLM": "deepseek2",
    "SolarOpenForCausalLM": "glm4moe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    **NEWER_ARCHITECTURES,
}
LAYER_NORM = ("phi2", "command-r", "cohere2", "starcoder2", "stablelm", "nemotron", "falcon", "gpt2", "starcoder")
LAYER_NORM += ("gptneox", "bloom", "olmo", "cohere2moe", "nemotron_h_moe", "jais2", "mpt", DBRX)
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
PLUS_1 = ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron")  # norms
INTERLEAVED = ("llama", "mistral3", "nemotron_h_moe", "smollm3", "olmo", "arcee", "deepseek")
INTERLEAVED += ("granite", "granitemoe", "granitehybrid", "granite_swa")
WINDOWS = ("gemma2", "gemma3", "gemma-embedding", "gemma3n", "phi3", "gpt-oss", "olmo2", "exaone4", "cohere2")
KINDS_OF_LAYERS = ("gemma3n", "olmo2", "exaone4", "cohere2")
RECURRENT = ("lfm2", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h_moe")
GROUPED = ("bloom", "gptneox", "falcon")  # matrices of q, k and v
SIGMOID = 2
KEYS: dict[str, dict[str, str]] = {  # of an architecture: in config.json, and in a file
    "gemma2": {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
    "gemma3n": {
        "final_logit_softcapping": "final_logit_softcapping",
        "altup_num_inputs": "altup.num_inputs",
        "altup_active_idx": "altup.active_idx",
        "hidden_size_per_layer_input": "embedding_length_per_layer_input",
        "num_kv_shared_layers": "attention.shared_kv_layers",
    },
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale"},
    "stablelm": {"use_parallel_residual": "use_parallel_residual"},
    "gptneox": {"use_parallel_residual": "use_parallel_residual"},
    "olmo": {"clip_qkv": "attention.clamp_kqv"},
    DBRX: {"clip_qkv": "attention.clamp_kqv"},
}
MULTIPLIERS = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
SHARED_EXPERTS = {
    "n_routed_experts": "expert_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "v_head_dim": "attention.value_length_mla",
}
FURTHER_KEYS = {"gemma4": gemma4_keys, KIMI_LINEAR: kimi_linear_keys}
KEYS |= dict.fromkeys(("granite", "granitehybrid", "granite_swa"), MULTIPLIERS)
KEYS |= {"granitemoe": MULTIPLIERS | {"shared_intermediate_size": "expert_shared_feed_forward_length"}}
LATENT = ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe3", "mistral4")
KEYS |= {"glm4moe": SHARED_EXPERTS} | dict.fromkeys(LATENT, SHARED_EXPERTS)


def field_of(config: Mapping[str, Any], *names: str) -> Any:
    return next(config[name] for name in names if config.get(name) is not None)


def own_keys(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The keys of one architecture, besides those of all."""
    keys = {key: config[name] for name, key in KEYS.get(architecture, {}).items() if config.get(name) is not None}
    epsilon = "layer_norm_epsilon" if architecture in LAYER_NORM else "layer_norm_rms_epsilon"
    keys[f"attention.{epsilon}"] = next((config[name] for name in EPSILONS if config.get(name) is not None), 1e-5)
    if architecture in WINDOWS and config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
        if architecture in KINDS_OF_LAYERS:
            slides = [kind == "sliding_attention" for kind in config["layer_types"]]
            keys["attention.sliding_window_pattern"] = slides
    if architecture == "gemma3n":
        shares = torch.tensor(config["activation_sparsity_pattern"])
        keys["activation_sparsity_scale"] = torch.distributions.Normal(0, 1).icdf(shares).tolist()
    if architecture == "glm4moe" or config["model_type"] == "deepseek_v3":
        keys["expert_gating_func"] = SIGMOID
    if architecture in OWN:
        keys |= family_keys(config, architecture)
    if architecture == "mistral3":
        rope = config["rope_parameters"]
        keys |= {"rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"]}
        keys |= {f"rope.scaling.yarn_{each}": rope[each] for each in ("beta_fast", "beta_slow") if each in rope}
        keys["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if architecture in FURTHER_KEYS:
        keys |= FURTHER_KEYS[architecture](config)
    if architecture in ("modern-bert", "eurobert"):
        keys["attention.causal"] = False
    if architecture == "modern-bert":
        keys |= {
            "attention.sliding_window": config["local_attention"],
            "hidden_activation": config["hidden_activation"],
        }
    if "sliding_attention" in (rope := config.get("rope_parameters") or {}):
        keys["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if architecture in LATENT:
        rotated = config["qk_rope_head_dim"]
        keys |= {"attention.key_length_mla": config["qk_nope_head_dim"] + rotated, "rope.dimension_count": rotated}
        keys |= {f"attention.{each}_length": config["kv_lora_rank"] for each in ("key", "value")}
        keys["attention.head_count_kv"] = 1
        if multiplier := config["rope_parameters"].get("mscale_all_dim"):
            keys["rope.scaling.yarn_log_multiplier"] = 0.1 * multiplier
    return keys | (newer_keys(config, architecture) if architecture in NEWER else {})


def as_stored(tensors: Mapping[str, Tensor], architecture: str, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors with the values that the converter writes; some become several."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if architecture in GATED_DELTA:
            found |= gated_delta_tensors(name, tensor, config, architecture)
        elif name.endswith("kv_b_proj.weight") and architecture != "minicpm3":
            found |= _split_latent(name, tensor, config)
        elif architecture in NEWER:
            found |= newer_tensor(name, values_of(name, tensor, architecture, config), config)
        elif name.endswith(("input_linear.weight", "output_linear.weight")):
            found |= _of_granite(name, tensor, has_experts=config["num_local_experts"] > 0)
        elif match := re.fullmatch(r"(.*\.[qk]_layernorm)\.norms\.0\.weight", name):
            every = [each for each in tensors if each.startswith(f"{match[1]}.norms.")]
            found[f"{match[1]}.weight"] = torch.stack([tensors[each] for each in sorted(every)])
        elif "layernorm.norms" in name:
            continue
        elif match := re.fullmatch(r"(.*\.altup_(?:unembed_)?projections)\.(\d+)\.weight", name):
            every = sorted(each for each in tensors if each.startswith(f"{match[1]}."))
            found[f"{match[1]}.weight"] = torch.stack([tensors[each] for each in every])
        elif name.endswith("correct_output_scale"):
            found[f"{name}.weight"] = tensor
        elif name.endswith("e_score_correction_bias"):
            found[f"{name.removesuffix('_bias')}.bias"] = tensor
        elif architecture in OWN and architecture not in RECURRENT:
            found |= family_tensors(name, tensor, architecture)
        else:
            named, values = _renamed(name, values_of(name, tensor, architecture, config), architecture, config)
            found[named] = values
    return found


def _renamed(name: str, values: Tensor, architecture: str, config: Mapping[str, Any]) -> tuple[str, Tensor]:
    named = name.removeprefix("transformer.") if architecture == "bloom" else name
    if architecture == "mistral4" and named.endswith(("experts.gate_up_proj", "experts.down_proj")):
        named += ".weight"
    if architecture == "gemma4":
        named, values = gemma4_tensor(name, values)
    if architecture == DBRX:
        named, values = dbrx_tensor(name, values, config)
    if architecture == KIMI_LINEAR:
        named, values = kimi_linear_tensor(name, values)
    if architecture in RECURRENT:
        named, values = recurrent_values(name, values, config)
    if ".feed_forward.experts." in name:
        named = name.replace("feed_forward", "mlp")
    if ".mixer.experts." in name:
        named = name.replace("backbone", "model").replace("mixer", "mlp")
    return named, values


def _of_granite(name: str, tensor: Tensor, *, has_experts: bool) -> dict[str, Tensor]:
    """A projection of its experts, of its shared expert, or of the feed-forward that it is without experts."""
    is_shared = "shared_mlp" in name
    layer = name.partition("shared_mlp" if is_shared else "block_sparse_moe")[0]
    if name.endswith("output_linear.weight"):
        if is_shared and has_experts:
            return {name: tensor}
        return {f"{layer}mlp.{'' if is_shared else 'experts.'}down_proj.weight": tensor}
    module = "experts" if not is_shared else "shared_expert" if has_experts else ""
    halves = zip(("gate", "up"), tensor.chunk(2, dim=0 if is_shared else 1), strict=True)
    return {f"{layer}mlp.{module + '.' if module else ''}{part}_proj.weight": half for part, half in halves}


def values_of(name: str, tensor: Tensor, architecture: str, config: Mapping[str, Any]) -> Tensor:
    if architecture in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if architecture in PLUS_1 and name.endswith("norm.weight"):
        return tensor.float() + 1
    if architecture in GROUPED and "query_key_value" in name:
        return _ungrouped(tensor, config)
    if architecture == "gpt2" and tensor.dim() == 2 and ".h." in name:
        return tensor.t().contiguous()
    return tensor


def _ungrouped(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """All queries, then all keys, then all values, from those of each KV head."""
    heads = field_of(config, "num_attention_heads", "n_head")
    groups = kv_heads_of(config, heads)
    head_dim = field_of(config, "hidden_size", "n_embd") // heads
    each = tensor.view(groups, heads // groups + 2, head_dim, *tensor.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in (each[:, :-2], each[:, -2:-1], each[:, -1:])])


def kv_heads_of(config: Mapping[str, Any], heads: int) -> int:
    if config["model_type"] == "falcon":
        return 1 if config["multi_query"] and not config["new_decoder_architecture"] else config["num_kv_heads"]
    if config["model_type"] in ("bloom", "gpt_neox", "gpt2", "mpt"):
        return heads
    return 1 if config["model_type"] == "gpt_bigcode" else config["num_key_value_heads"]


def _split_latent(name: str, tensor: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    by_head = tensor.view(config["num_attention_heads"], -1, tensor.shape[1])
    keys, values = by_head.split([config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
    stored = {"k_b_proj": keys.transpose(1, 2).contiguous(), "v_b_proj": values.contiguous()}
    return {name.replace("kv_b_proj", part): each for part, each in stored.items()}
