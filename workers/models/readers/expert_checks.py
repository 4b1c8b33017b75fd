"""Checks the tensors of experts by the headers of a checkpoint, before any file is mapped."""

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.safetensors_files import Checkpoint
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ..names.weight_names import WeightNames


def check_experts(checkpoint: Checkpoint, names: WeightNames, geometry: Geometry) -> None:
    """Raises ConfigError naming a tensor of a router or an expert that is missing, misshapen or beyond their number."""
    gates = (names.experts.gate,) if geometry.activation.is_gated else ()
    every = (*gates, names.experts.up, names.experts.down)
    projections = {name.rpartition(".")[0] for name in checkpoint.entries}
    for layer, experts in enumerate(geometry.experts):
        if experts is not None:
            _check_router(checkpoint, names.experts.router.format(layer), experts, geometry.hidden_size)
            stacked = names.experts.stacked_gate_up.format(layer)
            if not checkpoint.entries.keys() & {stacked, f"{stacked}_blocks"}:
                _check_each(checkpoint, every, projections, layer, experts)


def _check_router(checkpoint: Checkpoint, name: str, experts: Experts, hidden_size: int) -> None:
    entry, wanted = checkpoint.entries.get(f"{name}.weight"), [experts.choices, hidden_size]
    if entry is None:
        raise ConfigError(f"{checkpoint.folder} has no tensor {name}.weight, the router of a layer with experts")
    if entry.shape != wanted:
        raise ConfigError(
            f"{checkpoint.folder}: the router {name}.weight has shape {entry.shape}, but config.json asks for {wanted}"
        )


def _check_each(
    checkpoint: Checkpoint, names: tuple[str, ...], projections: set[str], layer: int, experts: Experts
) -> None:
    for name in names:
        for expert in range(experts.count):
            if name.format(layer, expert) not in projections:
                raise ConfigError(
                    f"{checkpoint.folder} has no tensor {name.format(layer, expert)}.weight: config.json says "
                    f"{experts.count} experts; download the model again"
                )
