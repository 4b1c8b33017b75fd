"""Metadata of any values becomes the fields of config.json, or is refused."""

import random
from contextlib import suppress

import pytest

from paged_serve.frontend.gguf.fields.architectures import ARCHITECTURES
from paged_serve.frontend.gguf.fields.config_fields import config_fields
from paged_serve.frontend.gguf.model import GgufModel
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS
from paged_serve.protocol.gguf.container import GgufTensor

from .gguf_models import model_of

USUAL = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 3,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 64,
    "attention.kv_lora_rank": 8,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 8,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "rope.dimension_count": 16,
    "logit_scale": 0.5,
    "leading_dense_block_count": 1,
    "expert_count": 4,
    "expert_used_count": 2,
    "altup.num_inputs": 3,
    "activation_sparsity_scale": [1.5, 0.0, -1.0],
    "shortconv.l_cache": 3,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 1,
    "kda.head_dim": 16,
    "kda.gate_lower_bound": -5.0,
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 16,
    "attention.indexer.top_k": 8,
    "attention.indexer.types": [True, False, True],
    "attention.rope_pattern": [True, False, True],
    "attention.value_scale": 0.5,
    "residual_scale": 2.5,
}
XIELU = {f"xielu.{name}": [0.5] * 3 for name in ("alpha_p", "alpha_n", "beta")}  # Apertus; without its name
VALUES = (
    0,
    1,
    2,
    3,
    5,
    1 << 29,
    -1,
    0.0,
    0.5,
    -2.5,
    1e30,
    True,
    False,
    "none",
    "yarn",
    [],
    [0],
    [0, 1, 0],
    [1.5, True],
)
TENSORS = ("attn_q.bias", "attn_q_norm.weight", "ffn_gate_inp.weight", "ffn_gate_exps.weight", "exp_probs_b.bias")
TENSORS += ("ffn_norm.weight", "ffn_gate.weight", "ffn_gate_shexp.weight", "ssm_norm.weight", "attn_norm_2.weight")
TENSORS += ("laurel_l.weight", "ssm_in.weight", "attn_q.weight", "ffn_up.weight", "attn_gate.weight")
TENSORS += ("ffn_up_shexp.weight",)
WHOLE = ("token_embd.weight", "per_layer_token_embd.weight")


def model_with(architecture, keys, rng):
    """With some of the tensors in each layer, seldom in shapes that no tensor has."""
    model = model_of({f"{architecture}.{name}": value for name, value in keys.items()} | XIELU, architecture)
    layers = [layer for layer in range(3) if rng.random() < 0.95]
    for name in (*WHOLE, *(f"blk.{layer}.{name}" for layer in layers for name in TENSORS)):
        if "blk" not in name or rng.random() < 0.98:
            shape = (280, 32) if rng.random() < 0.99 else (32,)
            model.files[0].tensors[name] = GgufTensor(name, shape, BLOCK_FORMATS[1], 0)
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_random_metadata_of_an_architecture_makes_fields_or_is_refused_in_one_line(architecture, monkeypatch):
    if architecture == "gemma4":
        monkeypatch.setattr(GgufModel, "floats", lambda model, name: [1.0, 1.0, *[1e30] * 6])
    rng, refusals, num_made = random.Random(architecture), [], 0
    usual = {name: value for name, value in USUAL.items() if "expert" not in name}
    first = model_with(architecture, USUAL if ARCHITECTURES[architecture].has_experts else usual, random.Random(0))
    with suppress(ConfigError):  # for what the architecture does not have
        config_fields(first)
    keys = {name: value for name, value in USUAL.items() if name in first.used_names and first.has(name)}
    for _ in range(120):
        changes = {name: rng.choice(VALUES) for name in rng.sample(sorted(keys), rng.randint(0, 2))}
        try:
            config_fields(model_with(architecture, keys | changes, rng))
        except ConfigError as refusal:
            refusals.append(str(refusal))
        else:
            num_made += 1
    assert not any("\n" in refusal for refusal in refusals)
    assert min(len(refusals), num_made) > 0
