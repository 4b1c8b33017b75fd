"""CodeGen: as GPT-J, with one matrix for q, k and v, stored in four parts as it was trained."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from . import gptj
from .family import need

PARTS = 4
QKV = f"{gptj.LAYER}attn.qkv_proj"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("CodeGen", fields, tie_word_embeddings=False)
    found = gptj.config(fields)
    if isinstance(heads := found.get("num_attention_heads"), int) and heads % PARTS:
        raise ConfigError(f"config.json: n_head={heads} must be a multiple of {PARTS}, the parts of CodeGen's matrices")
    return found


CODEGEN = replace(
    gptj.GPTJ,
    name="codegen",
    architectures=("CodeGenForCausalLM",),
    weight_names=replace(
        gptj.NAMES, query=QKV, key=QKV, value=QKV, num_parts=PARTS, unused=(*gptj.NAMES.unused, ".attn.causal_mask")
    ),
    config=config,
)
