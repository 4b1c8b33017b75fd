"""Encoders that are published in two formats, that of their own code and that of transformers, load from both."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.layers.rotary import scaled_frequencies

from ..tiny_models.checkpoints import ours
from .kinds_of_encoders import ENCODERS, tokens
from .references import assert_near, hidden_states, label_scores, write_reference
from .serving import vectors

SIZE = {"num_labels": 3, "max_position_embeddings": 256}
NOMIC = {  # as in nomic-embed-text-v1.5
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 256,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 3,
    "n_positions": 1024,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 199,
}
GTE = {  # as in gte-multilingual-reranker-base, without its scaling
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "hidden_act": "gelu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 256,
    "model_type": "new",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": None,
    "rope_theta": 160000,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "vocab_size": 199,
}
SMALL = {  # of families whose fields are those of transformers
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 199,
}
PUBLISHED = {
    "NomicBert": (NOMIC, {"nomic_bert.": "bert."}, "NomicBertForSequenceClassification"),
    "Gte": (GTE, {"gte.": "new."}, "NewForSequenceClassification"),
}


def scores(folder):
    return vectors(ours(folder), tokens(60), task="classify", use_activation=False)


@pytest.mark.parametrize("family", ["NomicBert", "Gte", "JinaEmbeddingsV3"])
def test_tensors_with_the_names_of_transformers_modules_are_read(family, tmp_path):
    name = f"{family}ForSequenceClassification"
    theirs = write_reference(tmp_path, name, SIZE, save_original_format=False)
    assert any(".self_attn.q_proj." in name for name in load_file(tmp_path / "model.safetensors"))
    assert_near(scores(tmp_path), label_scores(theirs, tokens(60)))


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_published_files_have_the_bits_of_those_of_transformers(family, tmp_path):
    write_reference(tmp_path, f"{family}ForSequenceClassification", SIZE)
    expected = scores(tmp_path).tobytes()
    fields, prefixes, architecture = PUBLISHED[family]
    file = tmp_path / "model.safetensors"
    [(old, new)] = prefixes.items()
    save_file({name.replace(old, new): tensor for name, tensor in load_file(file).items()}, file)
    labels = {"id2label": {str(index): f"LABEL_{index}" for index in range(3)}}
    (tmp_path / "config.json").write_text(json.dumps(fields | labels | {"architectures": [architecture]}))
    assert scores(tmp_path).tobytes() == expected
    assert ours(tmp_path).geometry.max_position_embeddings == 256


def test_embeddings_of_gte_multilingual_base_ignore_its_head_for_sparse_vectors(tmp_path):
    theirs = write_reference(tmp_path, "GteForTokenClassification", {**SIZE, "num_labels": 1})
    file = tmp_path / "model.safetensors"
    save_file({name.replace("gte.", "new."): tensor for name, tensor in load_file(file).items()}, file)
    fields = GTE | {"architectures": ["NewModel", "NewForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = vectors(ours(tmp_path), tokens(60), use_activation=False)
    assert_near(found, hidden_states(theirs, tokens(60))[0])


def test_fixed_ntk_scaling_multiplies_theta_and_divides_all_frequencies(tmp_path):
    write_reference(tmp_path, "GteModel", ENCODERS["GteModel"])
    scaling = {"rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000}
    (tmp_path / "config.json").write_text(json.dumps(GTE | scaling | {"architectures": ["NewModel"]}))
    [rope] = set(ours(tmp_path).geometry.ropes)
    exponents = torch.arange(0, 16, 2) / 16
    expected = (20000 * 8.0) ** -exponents / 8.0 ** (2 / 16)
    assert torch.allclose(scaled_frequencies(rope, 16), expected, rtol=1e-6, atol=0)


def test_the_first_format_of_jina_embeddings_v3_names_the_repository_to_use(tmp_path):
    fields = {"architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary"}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"lora_adaptations": ["retrieval.query"]}))
    with pytest.raises(ConfigError, match="jinaai/jina-embeddings-v3-hf"):
        ours(tmp_path)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("DebertaV2", {"conv_kernel_size": 3}),
        ("DebertaV2", {"pos_att_type": "c2p"}),
        ("DebertaV2", {"position_biased_input": True}),
        ("DebertaV2", {"share_att_key": False}),
        ("DebertaV2", {"norm_rel_ebd": "none"}),
        ("DebertaV2", {"max_relative_positions": 10}),
        ("DebertaV2", {"embedding_size": 32}),
        ("DebertaV2", {"pooler_hidden_act": "tanh"}),
        ("T5Encoder", {"feed_forward_proj": "gated-silu"}),
        ("T5Encoder", {"relative_attention_max_distance": 64}),
        ("Albert", {"num_hidden_groups": 2}),
        ("NomicBert", {"activation_function": "gelu"}),
        ("NomicBert", {"num_experts": 8}),
        ("NomicBert", {"rotary_emb_fraction": 0.0}),
        ("NomicBert", {"rotary_emb_interleaved": True}),
        ("NomicBert", {"prenorm": True}),
        ("Gte", {"position_embedding_type": "absolute"}),
        ("Gte", {"layer_norm_type": "rms_norm"}),
        ("Gte", {"logn_attention_scale": True}),
        ("Gte", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}}),
        ("Gte", {"rope_scaling": {"type": "ntk", "factor": 0}}),
    ],
)
def test_fields_that_would_change_vectors_are_refused_by_name(family, change, tmp_path):
    fields, _, architecture = PUBLISHED.get(family, (SMALL | ENCODERS.get(f"{family}Model", {}), {}, f"{family}Model"))
    (tmp_path / "config.json").write_text(json.dumps(fields | change | {"architectures": [architecture]}))
    [(name, value)] = change.items()
    name = [*value][-1] if isinstance(value, dict) else name
    with pytest.raises(ConfigError, match=f"{name}="):
        ours(tmp_path)
