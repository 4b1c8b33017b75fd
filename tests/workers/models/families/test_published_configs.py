"""Models with the widths of published ones, but few layers: published_configs.json has the fields of their config.json.

Their sizes have a second source: the defaults of transformers' configuration classes, litgpt's table of models, or
copies of the published files in other projects. docs/log.md names the exceptions (2026-11-25).
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from paged_serve.workers.models.catalogue import FAMILIES

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, randomise, reference_logits, transformers_model
from .test_changed_references import CASES

CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_configs.json").read_text())
FAST = ("opt-125m", "gpt2", "smollm2-135m")
WITH_ALL_TOKENS = "smollm2-135m"
MARKED = [pytest.param(name, marks=() if name in FAST else pytest.mark.nightly) for name in CONFIGS]
VOCABULARY = 16_384  # rows of the other embeddings, at most: one is like the other
# Fields with a number of experts; more than 8 are alike.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
BOTH_KINDS: dict[str, dict[str, Any]] = {  # a recurrent layer and one with attention; or one with experts
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "afmoe": {"num_dense_layers": 1},
    "exaone_moe": {"mlp_layer_types": ["sparse"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    "gpt_neo": {"attention_layers": ["global", "local"], "attention_types": [[["global", "local"], 1]]},
    "cohere2_moe": {"layer_types": ["full_attention", "sliding_attention"]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "intermediate_size": [16384, 16384],
        "activation_sparsity_pattern": [0.95, 0.0],
    },
    "gemma4_text": {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"], "num_experts_per_tok": 8},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "kimi_linear": {
        "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "head_dim": 128, "num_heads": 32}
    },
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
}
# Their published files could not be read when they were added.
NOT_AT_HAND = {
    "Lfm3ForCausalLM",
    "HYV3ForCausalLM",
    "YoutuForCausalLM",
    "NanoChatForCausalLM",
    "MellumForCausalLM",
    "Jais2ForCausalLM",
    "ApertusForCausalLM",
    "Apertus1p5TextForCausalLM",
    "LaraMiniForCausalLM",
    "Gemma4UnifiedForCausalLM",
    "LagunaForCausalLM",
    "MiMoV2FlashForCausalLM",
    "Mistral4ForCausalLM",
    "LongcatFlashForCausalLM",
    "PersimmonForCausalLM",
    "DbrxForCausalLM",
    "BailingHybridForCausalLM",
    "BailingMoeV3ForCausalLM",
    "DiffLlamaForCausalLM",
    "Zamba2ForCausalLM",
    "JetMoeForCausalLM",
    "MiniMaxForCausalLM",
    "MiniMaxText01ForCausalLM",
    "MiniMaxM1ForCausalLM",
    "ModernBertDecoderForCausalLM",
    "AXK1ForCausalLM",
    "FlintForCausalLM",
    "Kolibri1ForCausalLM",
    "AriaTextForCausalLM",
    "BitNetForCausalLM",
    "CohereCompassForCausalLM",
    "MllamaForCausalLM",
    "Phi4MultimodalForCausalLM",
    "Phi4MMForCausalLM",
    "HyperCLOVAXForCausalLM",
    "VaultGemmaForCausalLM",
    "CwmForCausalLM",
    "MinistralForCausalLM",
    "GraniteSWAForCausalLM",
    "GraniteMoeSWAForCausalLM",
}
WIDE = 5120  # models of this width and more have one layer, others two
WIDE_EXPERTS = 100_000  # likewise, of all experts together: two of Mixtral's layers take 21 GB


def cut(name: str) -> dict[str, Any]:
    """The configuration with few layers and, but for one, few tokens."""
    config = CONFIGS[name]
    layers = next(field for field in ("n_layer", "n_layers", "num_layers", "num_hidden_layers") if field in config)
    experts = min(8, config.get("num_local_experts", 0))
    of_experts = experts * config["intermediate_size"] if experts else 0
    is_wide = config.get("hidden_size", 0) >= WIDE or of_experts >= WIDE_EXPERTS
    config = config | {layers: 1 if is_wide else 2}
    if "layer_types" in config:
        config |= {"layer_types": config["layer_types"][: config[layers]]}
    if config["model_type"].startswith("lfm2"):  # a layer of each kind; the second one may have experts
        config = {field: value for field, value in config.items() if field != "full_attn_idxs"}
        config |= {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    config |= BOTH_KINDS.get(config["model_type"], {})
    if "hybrid_override_pattern" in config:  # a layer of each kind
        kinds = "".join(dict.fromkeys(config["hybrid_override_pattern"]))
        config |= {"hybrid_override_pattern": kinds, layers: len(kinds)}
    if name != WITH_ALL_TOKENS:
        fields = ("vocab_size", "vocab_size_per_layer_input")
        config |= {field: min(VOCABULARY, config[field]) for field in fields if config.get(field)} | {
            "pad_token_id": None
        }
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][-config[layers] :]
    return config | {field: min(8, config[field]) for field in EXPERTS if config.get(field)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MARKED)
def test_a_published_configuration_loads_at_its_full_width(name, tmp_path, make_pool):
    import transformers
    from transformers.initialization import no_init_weights

    config = cut(name)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with warnings.catch_warnings(), no_init_weights():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model.tie_weights()
    randomise(model)
    model.float().save_pretrained(tmp_path)
    del model
    file.write_text(json.dumps(config))
    prompt = random_tokens(40, vocab_size=config["vocab_size"])
    expected = reference_logits(transformers_model(tmp_path), prompt)
    loop = PagedLoop(ours(tmp_path, "float32", pool=make_pool()))
    found = loop.prefill(loop.row(prompt))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    if not config.get("final_logit_softcapping"):  # random logits reach the cap, so several tokens have the largest one
        assert torch.equal(found.argmax(1), expected.argmax(1))


def test_every_decoder_that_transformers_has_is_among_the_published_configurations():
    without = {"ExaoneForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM", "MiniCPMForCausalLM"}
    # The same by other spellings: of published files, of transformers, and of the first published ones.
    without |= {"PhiMoEForCausalLM", "ExaoneMoeForCausalLM", "Ernie4_5_ForCausalLM"}
    without |= {"LLaMAForCausalLM", "MiMoV2ForCausalLM", "DeciLMForCausalLM"}
    without |= NOT_AT_HAND | {case.architecture for case in CASES}
    listed = {name for config in CONFIGS.values() for name in config["architectures"]} | {"MptForCausalLM"}
    decoders = {name for family in FAMILIES if not family.is_bidirectional for name in family.architectures}
    assert decoders - without == listed
