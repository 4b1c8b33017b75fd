"""Llama's layers as another architecture, whose config.json has two fields with other names."""

from typing import Any

from paged_serve.workers.models.families.family import Family, renamed


def rename_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return renamed(fields, {"width": "hidden_size", "depth": "num_hidden_layers"})


ACME = Family(name="acme", architectures=("AcmeForCausalLM",), config=rename_fields)
SECOND_LLAMA = Family(name="acme-llama", architectures=("LlamaForCausalLM",))
