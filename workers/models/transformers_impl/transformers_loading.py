"""`load_transformers_model` turns a local Hugging Face folder into a TransformersModel, and checks its determinism."""

import logging
from dataclasses import replace
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.conversion import NotFiniteError, find_not_finite
from ...checkpoint.gguf.gguf_checkpoint import open_checkpoint
from ...geometry.geometry import Geometry
from ...kv.kv_cache import KVCache
from ...layers.ops import HeadLayout, Ops
from ...layers.rotary import Rotary
from ...pooling.spec import read_spec
from ...quantization.source import matrix_source
from ..decoder import Model
from ..load import Load
from ..readers.pooling_reader import pooling_head
from .checks.equal_check import are_equal
from .checks.probe import attention_options
from .checks.row_check import check_rows, watch_operations
from .hf_geometry import check_kind, geometry_of, with_attention
from .library import build, describe_masks, first_line, omit_masks, read_config, scorer_of, version
from .paged_attention import PagedAttention, StepAngles, hold
from .parallel_plan import ParallelPlan
from .plain_decoder import plain_decoder
from .transformers_assembly import TransformersAssembly
from .transformers_model import TransformersModel

log = logging.getLogger(__name__)

# Exceptions that the library's code, or the model's own, may raise when it runs with our modules.
OF_THEIRS = (TypeError, ValueError, AttributeError, RuntimeError, KeyError, IndexError, NotImplementedError)


def load_transformers_model(load: Load, architectures: list[str]) -> TransformersModel:
    """This rank's share of the model in a folder. Raises ConfigError if it cannot run, or if its bits may differ."""
    folder, config, size = load.folder, load.config, load.group.size
    found = read_config(folder, architectures, trusts_code=config.trust_remote_code)
    check_kind(found)
    geometry = geometry_of(folder, found, config)
    geometry.check_tensor_parallel(size)
    if geometry.num_kv_heads % size:
        raise ConfigError(f"tensor_parallel_size={size} does not divide its {geometry.num_kv_heads} KV heads")
    plan = ParallelPlan(getattr(found, "base_model_tp_plan", None))
    plan.check(size)
    if config.quantization == "fp8" and (reason := load.backend.lacks_for_fp8(geometry.dtype)):
        raise ConfigError(f"quantization=fp8 is not supported here: {reason}")
    if config.packed_weights_dir:
        log.warning("packed_weights_dir is ignored: the packed weights of models of transformers are not stored")
    model, base = build(found, architectures, geometry.dtype, trusts_code=config.trust_remote_code)
    try:
        return _loaded(load, found, geometry, plan, model, base)
    except ConfigError:
        raise
    except OF_THEIRS as error:
        raise ConfigError(f"its code does not run with our modules in place of its own: {first_line(error)}") from error


@torch.inference_mode()
def _loaded(
    load: Load, found: Any, geometry: Geometry, plan: ParallelPlan, model: Any, base: torch.nn.Module
) -> TransformersModel:
    size, backend, hidden = load.group.size, load.backend, geometry.hidden_size
    num_positions = min(load.config.max_model_len or geometry.max_position_embeddings, geometry.max_position_embeddings)
    spec = read_spec(load.folder, "tokens", "last", load.config.pooling, hidden)
    pooling = pooling_head(load.folder, spec, hidden, ())
    angles = StepAngles(geometry.head_dim, backend.device)
    rotating, heads = (
        HeadLayout(
            geometry.heads_of_rank(size),
            geometry.kv_heads_of_rank(size),
            geometry.head_dim,
            (rotary,) * geometry.num_layers,
        )
        for rotary in (angles, Rotary(geometry.ropes[0], geometry.head_dim, backend.device))
    )
    attention, ops = backend.attention(heads), backend.ops(heads)
    ours, weights_bytes, facts = _with_weights(load, geometry, plan, model, base, num_positions, ops)
    describe_masks(found, num_positions)
    options = attention_options(base, geometry, size)
    omit_masks(found)
    paged = PagedAttention(attention, ops, backend.ops(rotating), angles, heads.num_heads, options)
    hold(base, paged)
    loaded = TransformersModel(
        geometry=with_attention(geometry, options, attention.head_multiple),
        tp_size=size,
        backend=backend,
        base=base,
        scorer=scorer_of(model),
        paged=paged,
        attention=attention,
        weights_bytes=weights_bytes,
        quantization=facts,
        pooling=pooling,
        libraries=_libraries(model),
    )
    return _checked(loaded, [*ours, paged], plain_decoder(loaded, options), num_positions)


def _libraries(model: Any) -> str:
    """What the bits of the model's modules depend on."""
    code = "" if type(model).__module__.startswith("transformers.") else " folder's code"
    return f"transformers {version()}{code} torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def _with_weights(
    load: Load, geometry: Geometry, plan: ParallelPlan, model: Any, base: torch.nn.Module, num_positions: int, ops: Ops
) -> tuple[list[torch.nn.Module], int, dict[str, str]]:
    """Replaces modules of `model`. Returns ours, the bytes of weights on this rank, and the facts of quantization."""
    checkpoint = open_checkpoint(load.folder, geometry.dtype)
    try:
        source = matrix_source(load.folder, checkpoint, load.config, geometry.dtype, load.pool)
        given = checkpoint, source, geometry, load.group, load.backend, load.on_progress
        assembly = TransformersAssembly(model, base, plan, num_positions, *given)
        return assembly.ours, *assembly.assemble(ops)
    except NotFiniteError as error:
        find_not_finite(checkpoint, geometry.dtype)
        raise AssertionError("the tensors as they are stored are finite") from error
    finally:
        checkpoint.close()


def _checked(
    model: TransformersModel, ours: list[torch.nn.Module], plain: Model | None, num_positions: int
) -> TransformersModel:
    """With `plain` if it computes the same.

    Raises ConfigError when a row's bits might depend, or do depend, on other rows.
    """
    geometry, size = model.geometry, model.tp_size

    def new_cache(num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(geometry, num_blocks, block_size, size, model.device)

    watch_operations(
        model.paged.start, lambda batch: model.logits(model.hidden(batch)), ours, new_cache, geometry.vocab_size
    )
    if plain and are_equal(model.forward, plain.forward, new_cache, geometry.vocab_size, num_positions):
        log.debug("the library's code is left out of steps: its modules are those of a plain decoder")
        model = replace(model, plain=plain)
    check_rows(model.forward, model.logits, new_cache, geometry.vocab_size)
    return model
