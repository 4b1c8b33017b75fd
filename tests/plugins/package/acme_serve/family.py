"""Llama's layers under another architecture, whose config.json has two names of its own."""

from typing import Any

from paged_serve.workers.models.families.family import Family, renamed


def in_common_names(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {"width": "hidden_size", "depth": "num_hidden_layers"})


ACME = Family(name="acme", architectures=("AcmeForCausalLM",), config=in_common_names)
SECOND_LLAMA = Family(name="acme-llama", architectures=("LlamaForCausalLM",))
