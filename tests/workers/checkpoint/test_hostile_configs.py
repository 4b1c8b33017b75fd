"""Any value in any field of config.json is understood or refused by a ConfigError, for each architecture."""

import json
import random
import tracemalloc
import warnings

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.catalogue import FAMILIES
from paged_serve.workers.models.registry import read_geometry

ARCHITECTURES = [name for family in FAMILIES for name in family.architectures]
PLAIN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "moe_layers": [],
}
OLDER = {  # fields of published files that transformers' classes have under other names, or not at all
    *("rope_scaling", "rope_theta", "rope_parameters", "sliding_window", "layer_types", "attn_config", "head_dim"),
    *("partial_rotary_factor", "rotary_dim", "n_inner", "ffn_hidden_size", "no_rope_layers", "num_kv_heads"),
    *("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "sliding_window_pattern", "torch_dtype"),
    *("attention_chunk_size", "eos_token_id", "scale_depth", "scale_emb", "dim_model_base", "bias"),
}
ODD = (
    *(None, True, False, "", "x", -1, 0, 1, 7, 10**9, 10**30, -0.5, 0.5, 1e308),
    *([], [1], ["x"], [None], [{}], ["full_attention"], {}, {"x": 1}),
    *({"full_attention": 1}, {"full_attention": {"rope_type": "yarn"}}, {"rope_type": ["x"]}, {"rope_theta": "x"}),
)


def defaults_of(architecture: str) -> dict:
    """The config.json of the architecture's default configuration in transformers, if it has the architecture."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cls = getattr(transformers, architecture, None)
        fields = {} if cls is None else json.loads(cls.config_class().to_json_string(use_diff=False))
    return {**(fields or PLAIN), "moe_layers": [], "architectures": [architecture]}


def check(folder, architecture: str, values_of) -> int:
    """The number of configurations that were refused, of those with one of `values_of(field)` in a field."""
    plain, refused = defaults_of(architecture), 0
    for field in sorted({*plain, *OLDER} - {"architectures"}):
        for value in values_of(field):
            (folder / "config.json").write_text(json.dumps(plain | {field: value}))
            try:
                read_geometry(folder)
            except ConfigError:
                refused += 1
            except Exception as error:
                error.add_note(f"{architecture}: {field}={value!r}")
                raise
    return refused


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_odd_value_in_a_field_is_understood_or_refused(architecture, tmp_path):
    """In a third of the fields, as readers of families share most of their code; nightly all have each value."""
    rng = random.Random(architecture)
    assert check(tmp_path, architecture, lambda _: [rng.choice(ODD)] if rng.random() < 1 / 3 else []) > 0


def refusal_of(folder, architecture: str, **changes) -> str:
    (folder / "config.json").write_text(json.dumps(defaults_of(architecture) | changes))
    with pytest.raises(ConfigError) as refusal:
        read_geometry(folder)
    return str(refusal.value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), [[float("inf")]], {"x": float("inf")}], ids=str)
def test_a_number_that_json_does_not_have_is_refused_by_name(value, tmp_path):
    found = refusal_of(tmp_path, "LlamaForCausalLM", rope_theta=value, unused=[float("inf")])
    assert "it has the number NaN" in found if value != value else "rope_theta=" in found and "must be finite" in found


def test_an_infinite_number_in_a_field_of_ropes_is_refused_by_name(tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": float("inf")}
    assert "rope_parameters=" in refusal_of(tmp_path, "DeepseekV3ForCausalLM", rope_parameters=rope)


@pytest.mark.parametrize("architecture", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "MiniCPM3ForCausalLM"])
def test_a_scale_of_scores_that_overflows_is_refused_by_name(architecture, tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1e200, "rope_theta": 1e4}
    assert "mscale_all_dim" in refusal_of(tmp_path, architecture, rope_parameters=rope, rope_scaling=None)


def test_a_value_dimension_that_overflows_is_refused(tmp_path):
    found = refusal_of(tmp_path, "MiniCPM3ForCausalLM", hidden_size=1e200, num_attention_heads=1e-200)
    assert "hidden_size" in found or "num_attention_heads" in found


def test_many_dense_layers_take_no_memory(tmp_path):
    fields = defaults_of("DeepseekV2ForCausalLM") | {"first_k_dense_replace": 2_000_000}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    read_geometry(tmp_path)
    tracemalloc.start()
    _, geometry = read_geometry(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert not geometry.has_experts


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_odd_value_in_each_field_is_understood_or_refused(architecture, tmp_path):
    assert check(tmp_path, architecture, lambda _: ODD) > 0
