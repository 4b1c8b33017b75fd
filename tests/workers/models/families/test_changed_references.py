"""Families whose references are models of transformers with other names, or with parts changed by hooks."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.workers.models.registry import read_geometry

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint
from ..contract import check_ranks_and_isas, check_steps

PROMPT = random_tokens(100)
Fields, Tensors = dict[str, Any], dict[str, torch.Tensor]
LING = (
    ("model.embed_tokens", "model.word_embeddings"),
    ("self_attn.o_proj", "attention.dense"),
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
    ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
    ("shared_expert.", "shared_experts."),
)


@dataclass(frozen=True)
class Case:
    architecture: str
    variant: str  # of transformers
    write: Callable[[Fields, Tensors], tuple[Fields, Tensors]]  # what is published instead of the variant's files
    fields: Fields  # of the variant
    change: Callable[[Any, Tensors], None] = lambda model, tensors: None  # of the reference


def renamed(tensors: Tensors, names: tuple[tuple[str, str], ...]) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        for theirs, published in names:
            name = name.replace(theirs, published)
        found[name] = tensor
    return found


def moved(config: Fields, names: dict[str, str]) -> Fields:
    return {names.get(name, name): value for name, value in config.items()}


def with_one_matrix(tensors: Tensors, whole: str) -> None:
    """Of queries, keys and values, and of their biases."""
    for name in [name for name in tensors if "self_attn.q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("self_attn.q_proj", whole)] = torch.cat(parts)


def ling(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    with_one_matrix(tensors, "attention.query_key_value")
    names = {
        "n_routed_experts": "num_experts",
        "attention_bias": "use_qkv_bias",
        "n_shared_experts": "num_shared_experts",
    }
    config = {"use_rmsnorm": True, "use_bias": False} | moved(config, names)
    return config, renamed(without_shared_gates(tensors), LING)


def ling_2(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    config, tensors = ling(config, tensors)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    more = {"moe_shared_expert_intermediate_size": config["moe_intermediate_size"], "partial_rotary_factor": 0.5}
    return config | more | {"score_function": "sigmoid", "moe_router_enable_expert_bias": True}, tensors


def ling_1(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """The shared experts of 80 are two of 40, as large as others."""
    config, tensors = ling(config, tensors)
    del config["shared_expert_intermediate_size"]
    return config | {"num_shared_experts": 2, "use_qkv_bias": True, "head_dim": 0, "first_k_dense_replace": 1}, tensors


def deepseek_moe(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    config = moved(config, {"num_experts": "n_routed_experts"}) | {"n_shared_experts": 2, "moe_layer_freq": 1}
    tensors = renamed(without_shared_gates(tensors), (("shared_expert.", "shared_experts."),))
    return config | {"first_k_dense_replace": 1}, tensors


def without_shared_gates(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "shared_expert_gate" not in name}


def open_shared_gates(model: Any, _: Tensors) -> None:
    """The sigmoid of 100 is 1."""
    for name, module in model.named_modules():
        if name.endswith("shared_expert_gate"):
            module.register_forward_hook(lambda _, __, output: torch.full_like(output, 100.0))


def mimo(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    return config | {"num_nextn_predict_layers": 1}, tensors | {
        "model.mtp_layers.0.input_proj.weight": torch.ones(64, 128)
    }


def orion(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    return moved(config, {"layer_norm_eps": "rms_norm_eps"}), tensors


def sarvam(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    return moved(config, names) | {
        "rope_scaling": scaling | {"type": "deepseek_yarn", "rope_type": "deepseek_yarn"}
    }, tensors


def pangu_ultra(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """Experts are not corrected, and each layer has two norms more."""
    tensors = {name: tensor for name, tensor in tensors.items() if "correction" not in name}
    tensors = renamed(tensors, (("post_attention_layernorm", "pre_mlp_layernorm"),))
    generator = torch.Generator().manual_seed(5)
    for layer in range(config["num_hidden_layers"]):
        for name in ("post_attention_layernorm", "post_mlp_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = 1 + 0.3 * torch.randn(
                config["hidden_size"], generator=generator
            )
    return config | {"sandwich_norm": True, "router_enable_expert_bias": False}, tensors


def add_post_norms(model: Any, tensors: Tensors) -> None:
    for number, layer in enumerate(model.model.layers):
        for module, name in ((layer.self_attn, "post_attention_layernorm"), (layer.mlp, "post_mlp_layernorm")):
            module.register_forward_hook(normalise(tensors[f"model.layers.{number}.{name}.weight"]))
    for name, buffer in model.named_buffers():
        if "correction" in name:
            buffer.zero_()


def normalise(weight: torch.Tensor) -> Callable[[Any, Any, Any], Any]:
    def hook(_: Any, __: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        found = torch.nn.functional.rms_norm(hidden, weight.shape, weight, 1e-6)
        return (found, *output[1:]) if isinstance(output, tuple) else found

    return hook


def pangu(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    return moved(config, {"attention_bias": "bias"}), tensors


def internlm(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    rotary = {"type": "dynamic", "base": config.pop("rope_parameters")["rope_theta"]}
    return moved(config, {"attention_bias": "bias"}) | {"rotary": rotary}, tensors


def stablelm_epoch(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    rope = config.pop("rope_parameters")
    own = {"rope_theta": rope["rope_theta"], "rope_pct": rope["partial_rotary_factor"]}
    return moved(config, {"layer_norm_eps": "norm_eps"}) | own, tensors


def ouro(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    """The second three of six layers are the first three again."""
    repeated = tuple(f"model.layers.{layer}." for layer in (3, 4, 5))
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(repeated)}
    generator = torch.Generator().manual_seed(5)
    for layer in range(3):
        for name in ("input_layernorm_2", "post_attention_layernorm_2"):
            tensors[f"model.layers.{layer}.{name}.weight"] = 1 + 0.3 * torch.randn(64, generator=generator)
    tensors |= {"model.early_exit_gate.weight": torch.ones(1, 64), "model.early_exit_gate.bias": torch.ones(1)}
    more = {"num_hidden_layers": 3, "total_ut_steps": 2, "early_exit_threshold": 1.0}
    return config | more, tensors


def repeat_layers(model: Any, tensors: Tensors) -> None:
    for number, layer in enumerate(model.model.layers):
        stored = number % 3
        layer.load_state_dict(model.model.layers[stored].state_dict())
        for module, name in ((layer.self_attn, "input_layernorm_2"), (layer.mlp, "post_attention_layernorm_2")):
            module.register_forward_hook(normalise(tensors[f"model.layers.{stored}.{name}.weight"]))
    model.model.layers[2].register_forward_hook(normalise(tensors["model.norm.weight"]))


QWEN = (
    ("model.embed_tokens", "transformer.wte"),
    ("model.norm", "transformer.ln_f"),
    ("model.layers", "transformer.h"),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.o_proj", "attn.c_proj"),
    ("mlp.gate_proj", "mlp.w2"),
    ("mlp.up_proj", "mlp.w1"),
    ("mlp.down_proj", "mlp.c_proj"),
)
CHATGLM = (
    ("model.embed_tokens", "transformer.embedding.word_embeddings"),
    ("model.norm", "transformer.encoder.final_layernorm"),
    ("model.layers", "transformer.encoder.layers"),
    ("lm_head", "transformer.output_layer"),
    ("self_attn.o_proj", "self_attention.dense"),
    ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
    ("mlp.down_proj", "mlp.dense_4h_to_h"),
)


def qwen(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    with_one_matrix(tensors, "attn.c_attn")
    names = {"rms_norm_eps": "layer_norm_epsilon"}
    more = {"rotary_emb_base": config.pop("rope_parameters")["rope_theta"], "kv_channels": 16, "seq_length": 256}
    return moved(config, names) | more | {"intermediate_size": 2 * config["intermediate_size"]}, renamed(tensors, QWEN)


def chatglm(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    with_one_matrix(tensors, "self_attention.query_key_value")
    names = {
        "num_hidden_layers": "num_layers",
        "intermediate_size": "ffn_hidden_size",
        "head_dim": "kv_channels",
        "rms_norm_eps": "layernorm_epsilon",
        "attention_bias": "add_qkv_bias",
        "max_position_embeddings": "seq_length",
        "num_key_value_heads": "multi_query_group_num",
        "vocab_size": "padded_vocab_size",
    }
    ratio = config.pop("rope_parameters")["rope_theta"] / 10_000
    more = {"multi_query_attention": True, "rope_ratio": ratio, "vocab_size": 65_024}
    return moved(config, names) | more, renamed(tensors, CHATGLM)


def unchanged(config: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
    return config, tensors


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0, "mscale": 1.0, "mscale_all_dim": 1.0}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
HALF_DENSE = {"decoder_sparse_step": 1, "mlp_only_layers": (0,)}
CASES = (
    Case("BailingMoeForCausalLM", "qwen2-moe", ling_1, {**HALF_DENSE, "norm_topk_prob": True}, open_shared_gates),
    Case("BailingMoeV2ForCausalLM", "glm4-moe", ling_2, {}),
    Case("Param2MoEForCausalLM", "glm4-moe", ling_2, {}),
    Case("SarvamMoEForCausalLM", "glm4-moe", ling_2, {"routed_scaling_factor": 2.5}),
    Case("SarvamMLAForCausalLM", "deepseek-v3", sarvam, {**ONE_GROUP, "rope_parameters": YARN}),
    Case("DeepseekForCausalLM", "qwen2-moe", deepseek_moe, {**HALF_DENSE, "qkv_bias": False}, open_shared_gates),
    Case("MiMoForCausalLM", "qwen2", mimo, {}),
    Case("OrionForCausalLM", "stablelm", orion, {"use_qkv_bias": False, "partial_rotary_factor": 1.0}),
    Case("IQuestCoderForCausalLM", "llama", unchanged, {}),
    Case("TeleChat3ForCausalLM", "llama", unchanged, {}),
    Case("AquilaForCausalLM", "llama", unchanged, {}),
    Case("XverseForCausalLM", "llama", unchanged, {}),
    Case("InternLMForCausalLM", "llama-attention-biased", internlm, {}),
    Case("StableLMEpochForCausalLM", "stablelm", stablelm_epoch, {}),
    Case("PanguEmbeddedForCausalLM", "llama-attention-biased", pangu, {}),
    Case("QWenLMHeadModel", "qwen2", qwen, {"num_key_value_heads": 4}),
    Case("ChatGLMModel", "glm", chatglm, {}),
    Case("ChatGLMForConditionalGeneration", "glm", chatglm, {"num_key_value_heads": 1}),
    Case("OuroForCausalLM", "llama-even", ouro, {"num_hidden_layers": 6}, repeat_layers),
    Case("PanguUltraMoEForCausalLM", "deepseek-v3", pangu_ultra, ONE_GROUP, add_post_norms),
)


def written(case: Case, folder: Path) -> Any:
    """Write what is published to `folder`; returns the changed reference."""
    write_checkpoint(case.variant, folder, fields=case.fields)
    model = transformers_model(folder)
    settings, weights = folder / "config.json", folder / "model.safetensors"
    config, tensors = case.write(json.loads(settings.read_text()), load_file(weights))
    settings.write_text(json.dumps(config | {"architectures": [case.architecture]}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, {"format": "pt"})
    case.change(model, tensors)
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.architecture)
def test_float32_logits_agree_with_those_of_the_changed_reference(case, tmp_path, pools):
    expected = reference_logits(written(case, tmp_path), PROMPT)
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        found = loop.prefill(loop.row(PROMPT), chunk=64)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_layers_that_run_several_times_have_the_same_bits_in_any_step_and_on_any_ranks(options, tmp_path):
    written(next(case for case in CASES if case.architecture == "OuroForCausalLM"), tmp_path)
    check_steps(tmp_path, "dot", options)
    check_ranks_and_isas(tmp_path, tmp_path, options)


@pytest.mark.parametrize(
    ("fields", "positions"), [({}, 256), ({"use_dynamic_ntk": False, "use_logn_attn": False}, 512)]
)
def test_the_context_of_qwen_1_ends_where_scores_would_be_scaled(fields, positions, tmp_path):
    written(next(case for case in CASES if case.architecture == "QWenLMHeadModel"), tmp_path)
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | fields))
    assert read_geometry(tmp_path)[1].max_position_embeddings == positions
