"""The layers of mixtures of experts that several families share."""

from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts


def in_all_layers(config: HFConfig, experts: Experts) -> tuple[Experts | None, ...]:
    return (experts,) * config.num_hidden_layers


def in_chosen_layers(config: HFConfig, experts: Experts) -> tuple[Experts | None, ...]:
    """Dense are the first layers, those named, and all but every n-th of the others."""
    step, dense = config.decoder_sparse_step, set(config.mlp_only_layers or ())
    first = min(config.first_k_dense_replace, config.num_hidden_layers)
    rest = range(first, config.num_hidden_layers)
    others = (None if layer in dense or (layer + 1) % step else experts for layer in rest)
    return (*[None] * first, *others)


def dense_layers(fields: dict[str, Any]) -> dict[str, Any]:
    """The layers that `mlp_layer_types` names dense; without it the first ones are."""
    if (kinds := fields.get("mlp_layer_types")) is None:
        return {}
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise ConfigError(f"config.json: mlp_layer_types={kinds!r} must be a list of dense and sparse")
    return {"first_k_dense_replace": 0, "mlp_only_layers": [at for at, kind in enumerate(kinds) if kind == "dense"]}
