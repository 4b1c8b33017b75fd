"""Families without a class in transformers. Each is Llama or Granite with other names, which is the reference."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, reference, reference_logits

PROMPT = random_tokens(100)
EXAONE = (
    ("model.embed_tokens", "transformer.wte"),
    ("model.norm", "transformer.ln_f"),
    ("model.layers.", "transformer.h."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.o_proj", "attn.attention.out_proj"),
    ("self_attn.", "attn.attention."),
    ("mlp.gate_proj", "mlp.c_fc_0"),
    ("mlp.up_proj", "mlp.c_fc_1"),
    ("mlp.down_proj", "mlp.c_proj"),
)
INTERNLM2 = (
    ("model.embed_tokens", "model.tok_embeddings"),
    ("lm_head", "output"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
)


def exaone(config, tensors):
    fields = {"num_layers": config.pop("num_hidden_layers"), "activation_function": config.pop("hidden_act")}
    fields["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    return config | fields, {renamed(name, EXAONE): tensor for name, tensor in tensors.items()}


def internlm2(config, tensors):
    """wqkv is [KV heads, queries per KV head + key + value, head_dim], as the published code reshapes its products."""
    found = {renamed(name, INTERNLM2): tensor for name, tensor in tensors.items()}
    kv_heads = config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"model.layers.{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            if names[0] in found:
                parts = [found.pop(name).unflatten(0, (kv_heads, -1)) for name in names]
                found[f"model.layers.{layer}.attention.wqkv.{kind}"] = torch.cat(parts, 1).flatten(0, 1)
    return config | {"bias": config.pop("attention_bias")}, found


def internlm3(config, tensors):
    return config | {"qkv_bias": config.pop("attention_bias"), "bias": config.pop("mlp_bias")}, tensors


def minicpm(config, tensors):
    """Granite divides logits by one number and multiplies the outputs of layers by another."""
    scales = {
        "scale_emb": config.pop("embedding_multiplier"),
        "scale_depth": config.pop("residual_multiplier") * math.sqrt(config["num_hidden_layers"]),
        "dim_model_base": config["hidden_size"] / config.pop("logits_scaling"),
    }
    assert config.pop("attention_multiplier") == 0.25, "not 1 / sqrt(16), the default for a head of 16 elements"
    return config | scales, tensors


def renamed(name, pairs):
    for theirs, new in pairs:
        name = name.replace(theirs, new)
    return name


@pytest.mark.parametrize(
    ("variant", "architecture", "change"),
    [
        ("llama-3.1", "ExaoneForCausalLM", exaone),
        ("llama", "InternLM2ForCausalLM", internlm2),
        ("llama-attention-biased", "InternLM2ForCausalLM", internlm2),
        ("llama", "InternLM3ForCausalLM", internlm3),
        ("llama-linear-biased", "InternLM3ForCausalLM", internlm3),
        ("granite-heads-of-16", "MiniCPMForCausalLM", minicpm),
    ],
)
def test_float32_logits_agree_with_those_of_the_same_model_with_other_names(
    variant, architecture, change, tmp_path, pools
):
    expected = reference_logits(reference(variant, tmp_path), PROMPT)
    settings, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config, tensors = change(json.loads(settings.read_text()), load_file(weights))
    settings.write_text(json.dumps(config | {"architectures": [architecture]}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, {"format": "pt"})
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        found = loop.prefill(loop.row(PROMPT), chunk=64)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
