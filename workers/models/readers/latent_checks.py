"""Checks the tensors of latent attention by the headers of a checkpoint, before any file is mapped."""

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.safetensors_files import Checkpoint
from ...geometry.geometry import Geometry
from ...geometry.layer_options import Indexer, Latent
from ..names.weight_names import WeightNames

WHOLE = ("BF16", "F16", "F32", "F8_E4M3")  # dtypes whose tensors have the shape of their matrix


def check_latent(checkpoint: Checkpoint, names: WeightNames, geometry: Geometry) -> None:
    """Raises ConfigError naming a projection of latent attention that is missing or misshapen."""
    if geometry.latent is None:
        return
    projections = {name.rpartition(".")[0] for name in checkpoint.entries}
    wanted = _shapes(names, geometry, geometry.latent)
    indexer = geometry.latent.indexer
    for layer in filter(geometry.has_attention, range(geometry.num_layers)):
        for name, shape in wanted.items():
            _check(checkpoint, projections, name.format(layer), shape)
        if indexer is not None and indexer.source(layer) == layer:
            for name, shape in _index_shapes(names, geometry, geometry.latent, indexer).items():
                _check(checkpoint, projections, name.format(layer), shape)


def _shapes(names: WeightNames, geometry: Geometry, sizes: Latent) -> dict[str, list[int]]:
    """The shape [out, in] of each projection, by its name."""
    heads, hidden, latent = geometry.num_heads, geometry.hidden_size, names.latent
    queries = heads * sizes.query_dim
    shapes = {names.query: [queries, hidden]}
    if sizes.query_rank:
        shapes = {latent.query_down: [sizes.query_rank, hidden], latent.query_up: [queries, sizes.query_rank]}
    shapes[latent.down] = [sizes.cached_dim, hidden]
    shapes[latent.up] = [heads * (sizes.nope_dim + sizes.value_dim), sizes.kv_rank]
    return shapes | {names.output: [hidden, heads * sizes.value_dim]}


def _index_shapes(names: WeightNames, geometry: Geometry, sizes: Latent, indexer: Indexer) -> dict[str, list[int]]:
    """Likewise of an indexer."""
    return {
        names.latent.index_queries: [indexer.num_heads * indexer.head_dim, sizes.query_rank],
        names.latent.index_keys: [indexer.head_dim, geometry.hidden_size],
        names.latent.index_weights: [indexer.num_heads, geometry.hidden_size],
    }


def _check(checkpoint: Checkpoint, projections: set[str], name: str, shape: list[int]) -> None:
    if name not in projections:
        raise ConfigError(
            f"{checkpoint.folder} has no tensor {name}.weight, a projection of latent attention; download the model "
            "again"
        )
    entry = checkpoint.entries.get(f"{name}.weight")
    if entry is not None and entry.dtype in WHOLE and entry.shape != shape:
        raise ConfigError(
            f"{checkpoint.folder}: {name}.weight has shape {entry.shape}, but config.json asks for {shape}: "
            "kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim must be the checkpoint's, "
            "like index_n_heads and index_head_dim in sparse attention"
        )
