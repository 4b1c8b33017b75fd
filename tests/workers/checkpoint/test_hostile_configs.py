"""Any value in any field of config.json is understood or refused by a ConfigError, for each architecture."""

import json
import random
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
    rng = random.Random(architecture)
    assert check(tmp_path, architecture, lambda _: [rng.choice(ODD)]) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_odd_value_in_each_field_is_understood_or_refused(architecture, tmp_path):
    assert check(tmp_path, architecture, lambda _: ODD) > 0
