"""Spellings of config.json, and the number of KV blocks that fit."""

import json

import pytest
import torch

from paged_serve.protocol.errors import ConfigError, MemoryShortage
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.geometry.rope_scaling import RopeScaling, Temperature
from paged_serve.workers.kv.budget import blocks_that_fit, host_budget, max_model_len
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.registry import read_geometry

from .small_configs import COHERE2_MOE, GEMMA3, GPT2, LLAMA4, PHI3, PLAIN, SMOLLM3, geometry


def test_both_spellings_of_rope_mean_the_same(tmp_path):
    scaling = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
    expected = RopeScaling("llama3", 5e5, 8.0, 64, 1.0, 4.0)
    new = geometry(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    old = geometry(tmp_path, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling})
    older = geometry(tmp_path, rope_theta=5e5, rope_scaling={"type": "llama3", **scaling})
    assert new.ropes == old.ropes == older.ropes == (expected,) * 2


@pytest.mark.parametrize(
    "changes", [{"factor": 8.0}, {"rope_type": "linear"}, {"original_max_position_embeddings": 16}]
)
def test_two_spellings_of_rope_in_one_file_must_agree(tmp_path, changes):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    whole = {**scaling, "rope_theta": 5e5}
    by_layer = {"full_attention": whole, "sliding_attention": {"rope_theta": 1e4}}
    for fields in ({"rope_parameters": whole}, GEMMA3 | {"rope_parameters": by_layer}):
        assert geometry(tmp_path, **fields, rope_scaling=scaling) == geometry(tmp_path, **fields)
        with pytest.raises(ConfigError, match=r"rope_scaling beside rope_parameters, .* differ; keep one of them"):
            geometry(tmp_path, **fields, rope_scaling=scaling | changes)


def test_both_spellings_of_dtype_mean_the_same(tmp_path):
    assert geometry(tmp_path, dtype="bfloat16").dtype == geometry(tmp_path, torch_dtype="bfloat16").dtype
    assert geometry(tmp_path, torch_dtype="float16").dtype == torch.float16


def test_head_size_and_kv_heads_are_derived_when_absent(tmp_path):
    assert geometry(tmp_path).head_dim == 8
    assert geometry(tmp_path, head_dim=24).head_dim == 24
    assert geometry(tmp_path, num_key_value_heads=None).num_kv_heads == 8
    assert geometry(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128


def test_a_llama_without_a_number_of_positions_has_those_of_transformers(tmp_path):
    """The first conversions of LLaMA name only max_sequence_length, which transformers does not read."""
    (tmp_path / "config.json").write_text(
        json.dumps({**PLAIN, "max_position_embeddings": None, "max_sequence_length": 4096})
    )
    assert read_geometry(tmp_path)[1].max_position_embeddings == 2048


def test_a_model_with_dual_chunk_attention_has_the_positions_of_its_first_chunk(tmp_path):
    """There it is full attention."""
    long = {"max_position_embeddings": 1010000}
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    found = geometry(tmp_path, **long, dual_chunk_attention_config=chunks)
    assert found.max_position_embeddings == 253952
    assert geometry(tmp_path, **long).max_position_embeddings == 1010000
    assert geometry(tmp_path, dual_chunk_attention_config=chunks) == geometry(tmp_path)
    with pytest.raises(ConfigError, match=r"local_size=262144; it must be below chunk_size=262144$"):
        geometry(tmp_path, dual_chunk_attention_config={"chunk_size": 262144, "local_size": 262144})


def test_the_field_names_of_gpt2_are_understood(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GPT2 | {"vocab_size": 300, "n_inner": None}))
    found = read_geometry(tmp_path)[1]
    assert (found.hidden_size, found.intermediate_size, found.num_layers, found.num_kv_heads) == (64, 256, 2, 8)
    assert (found.max_position_embeddings, found.norm, found.embeddings.has_positions) == (128, "layer", True)
    assert found.activation == Activation("gelu_tanh", is_gated=False)
    assert found.tie_word_embeddings


def test_llama_4_sees_attention_chunks_in_layers_that_rotate(tmp_path):
    layers = {"num_hidden_layers": 5, "attention_chunk_size": 64, "floor_scale": 128, "attn_scale": 0.2}
    found = geometry(tmp_path, **LLAMA4 | layers)
    assert found.attention_chunks == (64, 64, 64, 0, 64)
    assert [rope.kind for rope in found.ropes] == ["default"] * 3 + ["none", "default"]
    assert [rope.temperature for rope in found.ropes] == [None] * 3 + [Temperature(0.2, 128), None]
    assert [found.head_norm(layer) for layer in range(5)] == ["plain_rms"] * 3 + [None, "plain_rms"]
    assert found.intermediate_size == 96
    named = {"layer_types": ["full_attention"] * 4 + ["chunked_attention"], "no_rope_layers": [1, 0, 1, 1, 1]}
    found = geometry(tmp_path, **LLAMA4 | layers | named | {"use_qk_norm": False, "attn_temperature_tuning": False})
    assert found.attention_chunks == (0, 0, 0, 0, 64)
    assert [rope.kind for rope in found.ropes] == ["default", "none", "default", "default", "default"]
    assert {rope.temperature for rope in found.ropes} == {None}
    assert found.head_norm(0) is None


def test_the_field_names_of_bloom_are_understood(tmp_path):
    """The names are those of the published files."""
    fields = {"n_embed": 64, "n_inner": None, "n_layer": 3, "num_attention_heads": 8, "layer_norm_epsilon": 1e-5}
    others = {"vocab_size": 300, "seq_length": 128, "offset_alibi": 100, "skip_bias_add": True, "pretraining_tp": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields | others | {"architectures": ["BloomForCausalLM"]}))
    found = read_geometry(tmp_path)[1]
    assert (found.hidden_size, found.intermediate_size, found.num_layers, found.num_kv_heads) == (64, 256, 3, 8)
    assert (found.max_position_embeddings, found.norm, found.norm_eps) == (128, "layer", 1e-5)
    assert found.slopes == tuple(2.0**-n for n in range(1, 9))
    assert {rope.kind for rope in found.ropes} == {"none"}
    assert found.activation == Activation("gelu_tanh", is_gated=False)
    with pytest.raises(ConfigError, match="apply_residual_connection_post_layernorm=True is not supported for Bloom"):
        geometry(tmp_path, architectures=["BloomForCausalLM"], apply_residual_connection_post_layernorm=True)


def test_gemma2_caps_scores_and_logits_and_every_other_layer_has_a_window(tmp_path):
    gemma2 = {"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 3, "query_pre_attn_scalar": 144}
    found = geometry(tmp_path, **gemma2)
    assert (found.caps.scores, found.caps.logits, found.scale) == (50.0, 30.0, 1 / 12)
    assert found.sliding_windows == (4096, 0, 4096)
    assert found.activation == Activation("gelu_tanh")
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": 9.0, "sliding_window": 7}
    found = geometry(tmp_path, **gemma2, **caps)
    assert (found.caps.scores, found.caps.logits, found.sliding_windows) == (0.0, 9.0, (7, 0, 7))
    with pytest.raises(ConfigError, match="attn_logit_softcapping"):
        geometry(tmp_path, **gemma2, attn_logit_softcapping=-1.0)
    assert geometry(tmp_path, attn_logit_softcapping=5.0).caps.scores == 0.0, "Llama has no cap"


def test_windows_and_ropes_of_gemma3_depend_on_the_kind_of_layer(tmp_path):
    long, local = RopeScaling("linear", 1e6, 8.0, 256), RopeScaling("default", 1e4, 1.0, 256)
    linear = {"rope_type": "linear", "factor": 8.0}
    old = geometry(tmp_path, **GEMMA3, num_hidden_layers=7, rope_theta=1e6, rope_scaling=linear)
    assert old.sliding_windows == (16, 16, 16, 16, 16, 0, 16)
    assert old.ropes == (local,) * 5 + (long, local)
    pattern = geometry(tmp_path, **GEMMA3, num_hidden_layers=5, sliding_window_pattern=2)
    assert pattern.sliding_windows == (16, 0, 16, 0, 16), "as in transformers"
    null = geometry(tmp_path, **GEMMA3, num_hidden_layers=7, sliding_window_pattern=None)
    assert null.sliding_windows == old.sliding_windows
    by_kind = {"full_attention": {**linear, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    kinds = ["sliding_attention", "full_attention"]
    assert geometry(tmp_path, **GEMMA3, rope_parameters=by_kind, layer_types=kinds).ropes == (local, long)
    assert old.scale == 24**-0.5
    assert old.activation == Activation("gelu_tanh")
    assert (old.multipliers.embedding, old.norm, old.head_dim) == (8.0, "rms_less_1", 256)


def test_the_gelu_of_gemma_is_the_tanh_approximation_in_its_first_release_too(tmp_path):
    gemma = {"architectures": ["GemmaForCausalLM"]}
    for fields in ({}, {"hidden_act": "gelu"}, {"hidden_act": "gelu", "hidden_activation": None}):
        assert geometry(tmp_path, **gemma, **fields).activation == Activation("gelu_tanh")
    assert geometry(tmp_path, **gemma, hidden_act="silu").activation == Activation("silu")


def test_every_fourth_layer_of_smollm3_is_not_rotated(tmp_path):
    kinds = [rope.kind for rope in geometry(tmp_path, **SMOLLM3, num_hidden_layers=5).ropes]
    assert kinds == ["default", "default", "default", "none", "default"]


def test_the_factors_of_longrope_depend_on_the_supported_length(tmp_path):
    scaling = {"rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [2.0, 3]}}
    fields = PHI3 | scaling | {"original_max_position_embeddings": 64, "partial_rotary_factor": 0.5}
    for length, is_long in ((None, True), (65, True), (64, False), (1, False)):
        rope = geometry(tmp_path, max_model_len=length, **fields).ropes[0]
        assert (rope.is_long, rope.rotary_dim, rope.factor) == (is_long, 4, 4.0)
        assert (rope.short_factors, rope.long_factors) == ((1.0, 1.0), (2.0, 3.0))


def test_norms_of_a_falcon_and_its_kv_heads_follow_its_architecture(tmp_path):
    falcon = {"architectures": ["FalconForCausalLM"], "num_kv_heads": 2, "intermediate_size": None}

    def found(**fields):
        (tmp_path / "config.json").write_text(json.dumps({**PLAIN, **falcon, **fields}))
        family, shape = read_geometry(tmp_path)
        names = family.weight_names
        norms = [name.rpartition(".{}.")[2].partition(".")[0] for name in (names.attention_norm, names.mlp_norm)]
        return shape.num_kv_heads, shape.is_parallel, norms

    one, two = ["input_layernorm", ""], ["ln_attn", "ln_mlp"]
    assert found() == (1, True, one)
    assert found(num_ln_in_parallel_attn=2) == (1, True, one)
    assert found(new_decoder_architecture=True) == (2, True, two)
    assert found(new_decoder_architecture=True, parallel_attn=False) == (2, True, two)
    assert found(new_decoder_architecture=True, num_ln_in_parallel_attn=1) == (2, True, one)
    assert found(multi_query=False, parallel_attn=False) == (8, False, ["input_layernorm", "post_attention_layernorm"])
    assert geometry(tmp_path, **falcon).intermediate_size == 256


def test_layers_of_command_r7b_with_full_attention_are_not_rotated(tmp_path):
    cohere = {"architectures": ["Cohere2ForCausalLM"], "sliding_window": 16, "num_hidden_layers": 5}
    shape = geometry(tmp_path, **cohere, sliding_window_pattern=2)
    assert shape.sliding_windows == (16, 0, 16, 0, 16)
    assert [rope.kind for rope in shape.ropes] == ["default", "none"] * 2 + ["default"]
    assert geometry(tmp_path, **cohere).sliding_windows == (16, 16, 16, 0, 16)


def test_dense_layers_of_command_a_plus_have_a_pattern_of_their_own(tmp_path):
    options = {"num_hidden_layers": 6, "first_k_dense_replace": 2, "num_shared_experts": 1, "sliding_window": 16}
    found = geometry(tmp_path, **COHERE2_MOE, **options)
    assert found.sliding_windows == (0, 0, 16, 16, 16, 0)
    assert [rope.kind for rope in found.ropes] == ["default"] * 5 + ["none"]
    assert [each is None for each in found.experts] == [True, True, False, False, False, False]
    assert (found.experts[2].scale, found.experts[2].shared_as) == (0.5, "mean")
    options |= {"prefix_dense_sliding_window_pattern": 2, "shared_expert_combination_strategy": "sum"}
    found = geometry(tmp_path, **COHERE2_MOE, **options)
    assert found.sliding_windows == (16, 0, 16, 16, 16, 0)
    assert [rope.kind for rope in found.ropes] == ["default", "none", *["default"] * 3, "none"]
    assert (found.experts[2].scale, found.experts[2].shared_as) == (1.0, "sum")
    assert (found.norm, found.norm_eps) == ("unbiased_layer", 1e-5)
    rms = {"layer_norm_eps": 1e-5, "rms_norm_eps": 1e-6}
    found = geometry(tmp_path, **COHERE2_MOE, **rms)
    assert (found.norm, found.norm_eps) == ("rms", 1e-6)


def test_gemma_3n_has_the_layers_of_e4b_where_config_json_says_nothing(tmp_path):
    found = geometry(tmp_path, architectures=["Gemma3nForCausalLM"], num_hidden_layers=35, num_key_value_heads=2)
    assert found.sliding_windows == (512, 512, 512, 512, 0) * 7
    assert found.kv_sources == (*range(20), *(18, 18, 18, 18, 19) * 3)
    cuts = [None if cut is None else round(cut, 4) for cut in found.gate_cuts]
    assert cuts == [1.6449] * 10 + [None] * 25
    assert [rope.theta for rope in found.ropes[3:5]] == [1e4, 1e6]
    assert (found.head_dim, found.caps.logits, found.scale) == (256, 30.0, 1.0)


def test_windows_follow_the_rule_of_each_family(tmp_path):
    window = {"sliding_window": 16, "max_window_layers": 1}
    assert geometry(tmp_path, **window).sliding_windows == (0, 0)
    assert geometry(tmp_path, architectures=["MistralForCausalLM"], **window).sliding_windows == (16, 16)
    qwen = {"architectures": ["Qwen2ForCausalLM"], **window}
    assert geometry(tmp_path, **qwen).sliding_windows == (0, 0)
    assert geometry(tmp_path, **qwen, use_sliding_window=True).sliding_windows == (0, 16)
    typed = geometry(tmp_path, **qwen, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"])
    assert typed.sliding_windows == (16, 0)


def config(length=None, num_seqs=4, **cache):
    return Config(
        model=ModelConfig(max_model_len=length),
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(max_num_seqs=num_seqs),
    )


def test_blocks_are_a_share_of_memory_but_never_more_than_a_full_batch_uses(tmp_path):
    shape = geometry(tmp_path)  # float32, 2 KV heads of 8, 2 layers
    per_block = shape.kv_bytes_per_block(16, 1, shape.dtype)
    assert per_block == 2 * 2 * 2 * 8 * 4 * 16
    assert blocks_that_fit(config(), shape, 1, 1 << 40, shape.dtype) == 4 * 256 // 16
    assert blocks_that_fit(config(length=100), shape, 1, 1 << 40, shape.dtype) == 4 * 7
    assert blocks_that_fit(config(), shape, 1, host_budget(50 * per_block, 1), shape.dtype) == 20
    assert blocks_that_fit(config(), shape, 2, host_budget(100 * per_block, 2), shape.dtype) == 40, (
        "a rank has half the heads and half the memory"
    )
    assert blocks_that_fit(config(kv_cache_memory_bytes=1000 * per_block + 5), shape, 1, 0, shape.dtype) == 1000


@pytest.mark.parametrize(("configured", "measured", "kind"), [(65540, 0, ConfigError), (None, 65540, MemoryShortage)])
def test_memory_that_cannot_hold_one_sequence_is_refused_with_numbers(tmp_path, configured, measured, kind):
    shape = geometry(tmp_path, num_hidden_layers=4)
    words = r"65540 bytes per rank hold 8 KV blocks of 8192 bytes.*256 tokens needs 16"
    with pytest.raises(kind, match=words) as refusal:
        blocks_that_fit(config(kv_cache_memory_bytes=configured), shape, 1, measured, torch.float32)
    assert type(refusal.value) is kind, "only a shortage may pass"


def test_a_context_beyond_the_models_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(ConfigError, match="max_model_len=300 is more than the model's 256"):
        max_model_len(config(length=300), geometry(tmp_path))


def test_the_cache_has_the_promised_layout(tmp_path):
    cache = KVCache.allocate(geometry(tmp_path, dtype="bfloat16"), 5, 32, tp_size=4)
    assert [tensor.shape for tensor in (*cache.keys, *cache.values)] == [(5, 1, 32, 8)] * 4
    assert cache.keys[0].dtype == torch.bfloat16
    with pytest.raises(MemoryShortage, match="lower kv_cache_memory_bytes"):
        KVCache.allocate(geometry(tmp_path), 1 << 50, 16)
