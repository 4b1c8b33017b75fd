"""Gemma 3n, text only: as Gemma 4's small models, with several residual streams for each token (AltUp), a learned
residual of low rank beside attention (LAuReL), and feed-forwards of which some layers keep only the greatest gates.
"""

from dataclasses import replace
from statistics import NormalDist
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ...geometry.layer_options import AltUp, LayerInputs
from . import gemma, gemma3, gemma4
from .family import layer_kinds, need, renamed

PATTERN = 5  # every n-th layer has full attention, if layer_types is absent
SPARSE_LAYERS, SPARSITY = 10, 0.95  # the first layers that drop so many gates, if activation_sparsity_pattern is absent
DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "rope_theta": 1e6,
    "sliding_window": 512,
    "sliding_window_pattern": PATTERN,
    "num_kv_shared_layers": 15,
    "final_logit_softcapping": 30.0,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Gemma 3n", fields, attention_bias=False, altup_active_idx=0, altup_correct_scale=True)
    if fields.get("hidden_size_per_layer_input") == 0:
        raise ConfigError("config.json: hidden_size_per_layer_input=0 must be above 0 for Gemma 3n")
    return gemma.config(renamed(fields, {}, **DEFAULTS) | _intermediate_size(fields))


def _intermediate_size(fields: dict[str, Any]) -> dict[str, Any]:
    """Of all layers, for which config.json has a list. Raises ConfigError if they differ."""
    sizes = fields.get("intermediate_size")
    if not isinstance(sizes, list) or not sizes:
        return {"intermediate_size": sizes}
    if any(size != sizes[0] for size in sizes):
        raise ConfigError(f"config.json: intermediate_size={sizes} must be the same for all layers")
    return {"intermediate_size": sizes[0]}


def gate_cuts(config: HFConfig) -> tuple[float | None, ...]:
    """Of normally distributed gates, each layer drops a share; the number of deviations above the mean to cut at."""
    layers, shares = config.num_hidden_layers, config.activation_sparsity_pattern
    if shares is None:
        sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        shares = [SPARSITY] * sparse + [0.0] * (layers - sparse)
    if len(shares) != layers:
        raise ConfigError(
            f"config.json: activation_sparsity_pattern names {len(shares)} layers, but the model has {layers}"
        )
    return tuple(NormalDist().inv_cdf(share) if share else None for share in shares)


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    if (rows := config.vocab_size_per_layer_input) < 1:
        raise ConfigError(f"config.json: vocab_size_per_layer_input={rows} must be at least 1")
    return replace(
        geometry,
        kv_sources=gemma4.kv_sources(config, layer_kinds(config)) if config.num_kv_shared_layers else (),
        has_value_norm=True,
        layer_inputs=LayerInputs(config.hidden_size_per_layer_input, config.vocab_size_per_layer_input),
        altup=AltUp(config.altup_num_inputs, config.laurel_rank),
        gate_cuts=gate_cuts(config),
    )


GEMMA3N = replace(
    gemma3.GEMMA3,
    name="gemma3n",
    architectures=("Gemma3nForCausalLM",),
    norm="rms",
    multipliers=gemma4.multipliers,
    caps=gemma4.caps,
    config=config,
    refined=refined,
)
