"""`load_transformers_model` turns a local Hugging Face folder into a TransformersModel, and checks what it promises."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ...checkpoint.geometry import Geometry
from ...checkpoint.safetensors_files import Checkpoint
from ...distributed.tensor_parallel import TensorParallelGroup
from ...kernels.cpu.library import Pool
from ...kv.kv_cache import KVCache
from ...layers.backend import Backend
from ...layers.ops import HeadLayout
from ...layers.rotary import Rotary
from ...pooling.head import pooling_head
from ...pooling.spec import read_spec
from ...quantization.source import matrix_source
from .hf_geometry import check_kind, geometry_of, with_attention
from .library import build, describe_masks, first_line, omit_masks, read_config, scorer_of, version
from .paged_attention import PagedAttention, hold
from .parallel_plan import ParallelPlan
from .checks.probe import attention_options
from .checks.row_check import check_rows, watch_operations
from .transformers_assembly import TransformersAssembly
from .transformers_model import TransformersModel

log = logging.getLogger(__name__)

# What code that was not written for this may raise when it is run.
OF_THEIRS = (TypeError, ValueError, AttributeError, RuntimeError, KeyError, IndexError, NotImplementedError)


def load_transformers_model(
    folder: Path,
    architectures: list[str],
    config: ModelConfig,
    group: TensorParallelGroup,
    on_progress: Callable[[int, int], None],
    pool: Pool | None,
    backend: Backend,
) -> TransformersModel:
    """This rank's share of the model in `folder`. Raises ConfigError when it cannot run, or not with equal bits."""
    found = read_config(folder, architectures, trusts_code=config.trust_remote_code)
    check_kind(found)
    geometry = geometry_of(folder, found, config)
    geometry.check_tensor_parallel(group.size)
    if geometry.num_kv_heads % group.size:
        raise ConfigError(f"tensor_parallel_size={group.size} does not divide its {geometry.num_kv_heads} KV heads")
    plan = ParallelPlan(getattr(found, "base_model_tp_plan", None))
    plan.check(group.size)
    if config.quantization == "fp8" and (reason := backend.lacks_for_fp8(geometry.dtype)):
        raise ConfigError(f"quantization=fp8 is not for this server: {reason}")
    if config.packed_weights_dir:
        log.warning("packed_weights_dir is not for models of transformers; nothing is kept")
    return _loaded(folder, found, geometry, plan, config, group, on_progress, pool, backend)


def _loaded(
    folder: Path,
    found: Any,
    geometry: Geometry,
    plan: ParallelPlan,
    config: ModelConfig,
    group: TensorParallelGroup,
    on_progress: Callable[[int, int], None],
    pool: Pool | None,
    backend: Backend,
) -> TransformersModel:
    model, base = build(found, geometry.dtype, trusts_code=config.trust_remote_code)
    num_positions = min(config.max_model_len or geometry.max_position_embeddings, geometry.max_position_embeddings)
    checkpoint = Checkpoint(folder)
    pooling = pooling_head(folder, read_spec(folder, "tokens", "last", config.pooling, geometry.hidden_size), geometry.hidden_size, ())
    rotary = Rotary(geometry.ropes[0], geometry.head_dim, backend.device)
    heads = HeadLayout(
        geometry.heads_of_rank(group.size),
        geometry.kv_heads_of_rank(group.size),
        geometry.head_dim,
        (rotary,) * geometry.num_layers,
    )
    attention, ops = backend.attention(heads), backend.ops(heads)
    try:
        source = matrix_source(folder, checkpoint, config, geometry.dtype, pool)
        assembly = TransformersAssembly(
            model, base, plan, num_positions, checkpoint, source, geometry, group, backend, on_progress
        )
        with torch.inference_mode():
            weights_bytes, facts = assembly.assemble(ops)
    finally:
        checkpoint.close()
    try:
        with torch.inference_mode():
            describe_masks(found, num_positions)
            options = attention_options(base, geometry, group.size)
            omit_masks(found)
            paged = PagedAttention(attention, ops, heads.num_heads, options)
            hold(base, paged)
            loaded = TransformersModel(
                geometry=with_attention(geometry, options, attention.head_multiple),
                tp_size=group.size,
                backend=backend,
                base=base,
                scorer=scorer_of(model),
                paged=paged,
                attention=attention,
                weights_bytes=weights_bytes,
                quantization=facts,
                pooling=pooling,
                libraries=f"transformers {version()} torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
            )
            _check(loaded, [*assembly.ours, paged])
    except OF_THEIRS as error:
        raise ConfigError(f"its code does not run with our modules in place of its own: {first_line(error)}") from error
    return loaded


def _check(model: TransformersModel, ours: list[torch.nn.Module]) -> None:
    """Raises ConfigError when a row's bits might depend, or do depend, on other rows."""
    geometry, size = model.geometry, model.tp_size

    def new_cache(num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(geometry, num_blocks, block_size, size, model.device)

    watch_operations(
        model.paged.start, lambda batch: model.logits(model.hidden(batch)), ours, new_cache, geometry.vocab_size
    )
    check_rows(model.forward, model.logits, new_cache, geometry.vocab_size)
