"""GPT-J: interleaved, partial rotation; parallel layers with one norm; an output head with a bias."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from .family import Family, need, partial_rope_everywhere, renamed
from .gpt2 import FIELDS


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, hidden_act="gelu_new", rms_norm_eps=1e-5, rotary_dim=64)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    if isinstance(size := found.get("hidden_size"), int):
        found.setdefault("intermediate_size", 4 * size)
    need("GPT-J", found, tie_word_embeddings=False)
    return found


def biases(_: HFConfig) -> Biases:
    return Biases(mlp=True, head=True)


LAYER = "transformer.h.{}."
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}ln_1.weight",
    mlp_norm="",
    query=f"{LAYER}attn.q_proj",
    key=f"{LAYER}attn.k_proj",
    value=f"{LAYER}attn.v_proj",
    output=f"{LAYER}attn.out_proj",
    up=f"{LAYER}mlp.fc_in",
    down=f"{LAYER}mlp.fc_out",
    unused=(".attn.bias", ".attn.masked_bias"),
)
GPTJ = Family(
    name="gptj",
    architectures=("GPTJForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    norm="layer",
    is_gated=False,
    is_parallel=True,
    ropes=partial_rope_everywhere,
    interleaved=True,
    config=config,
)
