"""Apertus 1.5, its text: as Apertus; the head may have fewer rows than the table, whose others are images and audio."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from . import apertus
from .family import need

FIELD = "output_vocab_size"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, of which vocab_size counts the tokens that the head has."""
    found = apertus.config({"vocab_size": 266752} | fields)
    rows, tokens = found["vocab_size"], found.pop(FIELD, None)
    if tokens is None or tokens == rows:
        return found
    if not (type(rows) is type(tokens) is int and 1 <= tokens <= rows):
        raise ConfigError(f"config.json: {FIELD}={tokens!r} must be a whole number from 1 to vocab_size={rows!r}")
    need(f"Apertus 1.5 with an {FIELD} below vocab_size", fields, tie_word_embeddings=False)
    return found | {"vocab_size": tokens, "num_unused_embeddings": rows - tokens}


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    embeddings = replace(geometry.embeddings, num_unused=config.num_unused_embeddings)
    return replace(apertus.refined(config, geometry), embeddings=embeddings)


APERTUS_1P5 = replace(
    apertus.APERTUS,
    name="apertus1p5",
    architectures=("Apertus1p5TextForCausalLM",),
    config=config,
    refined=refined,
)
