"""Fields that config.json leaves out have the values of transformers' configuration classes."""

import json
from dataclasses import replace

import pytest

from paged_serve.workers.models.registry import read_geometry

from .small_configs import PLAIN

NAMES = (
    *("GraniteSWA", "GraniteMoeSWA", "Ministral", "Cwm", "VaultGemma", "HyperCLOVAX"),
    *("Jais2", "Mellum", "NanoChat", "Youtu", "HYV3", "Lfm3", "Apertus", "Laguna"),
)
SIZES = {name: PLAIN[name] for name in PLAIN if name not in ("architectures", "num_key_value_heads")}
SIZES |= {"num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 96}


@pytest.mark.parametrize("name", NAMES)
def test_fields_that_are_left_out_have_the_values_of_transformers(name, tmp_path):
    import transformers

    config = getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=0)
    stated = json.loads(config.to_json_string(use_diff=False))
    found = []
    for fields in (stated, SIZES):
        own = {"architectures": [f"{name}ForCausalLM"], "vocab_size": 300, "eos_token_id": 2}
        (tmp_path / "config.json").write_text(json.dumps(fields | own))
        read = read_geometry(tmp_path)[1]
        found.append(replace(read, multipliers=replace(read.multipliers, scores=round(read.scale, 12))))
    assert found[0] == found[1]
