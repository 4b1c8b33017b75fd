"""GPT, the first: as GPT-2, with norms after each addition instead of before attention and feed-forward."""

from dataclasses import replace
from typing import Any

from . import gpt2

APPROXIMATED = {"gelu": "gelu_new"}  # what the family calls so


def config(fields: dict[str, Any]) -> dict[str, Any]:
    kind = fields.get("afn") or "gelu"
    found = gpt2.config({name: value for name, value in fields.items() if name != "afn"} | {"n_inner": None})
    return found | {"hidden_act": APPROXIMATED.get(kind, kind) if isinstance(kind, str) else kind}


OPENAI_GPT = replace(
    gpt2.GPT2,
    name="openai_gpt",
    architectures=("OpenAIGPTLMHeadModel",),
    weight_names=replace(
        gpt2.NAMES,
        embedding="transformer.tokens_embed.weight",
        positions="transformer.positions_embed.weight",
        final_norm="",
        unused=(*gpt2.NAMES.unused, "position_ids"),
    ),
    is_post_norm=True,
    config=config,
)
