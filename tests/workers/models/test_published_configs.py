"""Models of the width that released ones have, with two layers, from config.json as it was released."""

import json
import warnings
from typing import Any

import pytest
import torch

from ..checkpoints import ours, random_tokens, randomise, reference_logits, transformers_model
from ..paged_loop import PagedLoop

OPT_125M: dict[str, Any] = {
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "vocab_size": 50257,
}
PHI_3_MINI_4K: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32064,
}
CONFIGS = {"opt-125m": OPT_125M, "gpt2": GPT2, "phi-3-mini-4k": PHI_3_MINI_4K}


@pytest.mark.parametrize("name", ["opt-125m", "gpt2", pytest.param("phi-3-mini-4k", marks=pytest.mark.nightly)])
def test_a_released_configuration_loads_at_its_full_width(name, tmp_path, make_pool):
    import transformers

    config = CONFIGS[name] | {("n_layer" if "n_layer" in CONFIGS[name] else "num_hidden_layers"): 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    randomise(model)
    model.float().save_pretrained(tmp_path)
    file.write_text(json.dumps(config))
    prompt = random_tokens(40, vocab_size=config["vocab_size"])
    expected = reference_logits(transformers_model(tmp_path), prompt)
    loop = PagedLoop(ours(tmp_path, "float32", pool=make_pool()))
    found = loop.prefill(loop.row(prompt))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(found.argmax(1), expected.argmax(1))
