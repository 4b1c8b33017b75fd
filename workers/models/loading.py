"""`load_model` turns a local Hugging Face folder into a `Model`."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import LoraConfig, ModelConfig

from ..backends.cpu.backend import CpuBackend
from ..backends.torch.backend import SingleRowsBackend, TorchBackend
from ..checkpoint.conversion import NotFiniteError, find_not_finite
from ..checkpoint.gguf.gguf_checkpoint import open_checkpoint
from ..checkpoint.hf_config import read_architectures
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.text_part import has_other_parts
from ..distributed.tensor_parallel import TensorParallelGroup
from ..geometry.geometry import Geometry
from ..kernels.cpu.library import Pool
from ..layers.adapters.sites import Adapters
from ..layers.backend import Backend, PackingBackend
from ..layers.model import Model
from ..pooling.head import PoolingHead
from ..pooling.spec import Kind, read_spec
from ..quantization.source import matrix_source
from .altup.assembly import AltUpAssembly
from .assembly import Assembly
from .encoders.assembly import EncoderAssembly, PreNormEncoderAssembly
from .families.family import Family
from .load import Load
from .packed_weights.cache import PackedStore, through_store
from .packed_weights.records import key_of
from .post_norm_decoder import PostNormAssembly
from .readers.expert_checks import check_experts
from .readers.latent_checks import check_latent
from .readers.layer_reader import LayerReader
from .readers.pooling_reader import label_layers, pooling_head
from .registry import read_geometry
from .residual_norm_decoder import ResidualNormAssembly
from .shared_blocks.assembly import SharedBlockAssembly
from .shared_blocks.looped import LoopedAssembly
from .transformers_impl.choice import is_for_transformers, refusals_named

log = logging.getLogger(__name__)


def load_model(
    folder: str,
    config: ModelConfig,
    group: TensorParallelGroup,
    on_progress: Callable[[int, int], None],
    pool: Pool | None = None,
    backend: Backend | None = None,
    lora: LoraConfig | None = None,
) -> Model:
    """Load this rank's share of the model in `folder`.

    It computes with `backend` if given, otherwise with the CPU kernels of `pool`, the CUDA kernels, or torch row by
    row. With `lora`, requests may use adapters. `on_progress(loaded_bytes, total_bytes)` is called after each tensor.
    Raises ConfigError, with the found and the required values, if the folder, the machine or the number of ranks is not
    suitable.
    """
    path = Path(folder)
    architectures = read_architectures(path)
    if is_for_transformers(architectures, config):
        if lora is not None and lora.max_loras:
            raise ConfigError("LoRA adapters need a model that is ours, not of transformers; leave out max_loras")
        return _of_transformers(path, architectures, config, group, on_progress, pool, backend)
    family, geometry = read_model(path, config)
    geometry.check_tensor_parallel(group.size)
    backend = backend or _best_backend(config, geometry, pool)
    return _of_family(Load(path, config, group, on_progress, pool, backend), family, geometry, lora)


def _of_family(load: Load, family: Family, geometry: Geometry, lora: LoraConfig | None) -> Model:
    path, config, backend, dtype = load.folder, load.config, load.backend, geometry.dtype
    if config.quantization == "fp8" and (reason := backend.lacks_for_fp8(dtype)):
        raise ConfigError(f"quantization=fp8 is not supported here: {reason}")
    checkpoint = open_checkpoint(path, dtype)
    if has_other_parts(path):
        log.info("text is served alone: the model's parts for images or audio are not loaded")
    head = _pooling_head(load, family, geometry, checkpoint)
    names = family.weight_names.found_in(checkpoint.entries).changed(checkpoint.own_names)
    check_experts(checkpoint, names, geometry)
    check_latent(checkpoint, names, geometry)
    assembly = _assembly(family, geometry)

    def assembled(store: PackedStore | None) -> Model:
        source = matrix_source(path, checkpoint, config, dtype, load.pool, is_transposed=names.are_transposed)
        adapters = _adapters(path, lora, backend, geometry, load.group)
        parts = checkpoint, source, names, geometry, load.group, backend, load.on_progress, store, adapters
        return assembly(LayerReader(*parts)).model(head)

    try:
        return _through_packed_weights(load, geometry, checkpoint, assembled)
    except NotFiniteError as error:
        find_not_finite(checkpoint, dtype)
        raise AssertionError("the stored tensors are finite, but the packed ones are not") from error
    finally:
        checkpoint.close()


def _pooling_head(load: Load, family: Family, geometry: Geometry, checkpoint: Checkpoint) -> PoolingHead:
    hidden_size = geometry.vector_size
    own_kind: Kind = family.pooled or ("cls" if geometry.is_bidirectional else "last")
    spec = read_spec(load.folder, geometry.head, own_kind, load.config.pooling, hidden_size, family.label_pooling)
    layers = family.layers_to_labels(geometry.head)
    labels = label_layers(checkpoint, layers, hidden_size, spec.num_labels, geometry.norm_eps)
    return pooling_head(load.folder, spec, hidden_size, labels)


def _through_packed_weights(
    load: Load, geometry: Geometry, checkpoint: Checkpoint, assembled: Callable[[PackedStore | None], Model]
) -> Model:
    """The model; if the weights that it packs are to be kept, they are read from a file, or written to it."""
    config, group = load.config, load.group
    if not config.packed_weights_dir:
        return assembled(None)
    if load.pool is None or not isinstance(load.backend, PackingBackend):
        log.warning("packed_weights_dir needs the CPU kernels, which are not used here; nothing is kept")
        return assembled(None)
    key = key_of(load.folder, config, checkpoint.entries, geometry.dtype, group.rank, group.size)
    kept = Path(config.packed_weights_dir) / f"{key[:32]}.packed"
    return through_store(kept, key, checkpoint.files, load.pool, assembled)


def _adapters(
    folder: Path, lora: LoraConfig | None, backend: Backend, geometry: Geometry, group: TensorParallelGroup
) -> Adapters | None:
    if lora is None or not lora.max_loras:
        return None
    places, ops = (lora.max_loras, lora.max_lora_rank), backend.adapter_ops()
    return Adapters(*places, ops, geometry.dtype, backend.device, group, folder)


def _of_transformers(
    path: Path,
    architectures: list[str],
    config: ModelConfig,
    group: TensorParallelGroup,
    on_progress: Callable[[int, int], None],
    pool: Pool | None,
    backend: Backend | None,
) -> Model:
    from .transformers_impl.transformers_loading import load_transformers_model  # its library is an optional extra

    if backend is None and device_of(config) != "cpu":
        raise ConfigError("--model-impl transformers computes on the CPU only; use --device cpu")
    backend = backend or (SingleRowsBackend() if pool is None else CpuBackend(pool))
    with refusals_named(architectures, config):
        return load_transformers_model(Load(path, config, group, on_progress, pool, backend), architectures)


def _assembly(family: Family, geometry: Geometry) -> type[Assembly]:
    if geometry.altup is not None:
        return AltUpAssembly
    if geometry.shared_blocks is not None:
        return SharedBlockAssembly
    if geometry.num_loops > 1:
        return LoopedAssembly
    if family.has_residual_norms:
        return ResidualNormAssembly
    if not family.is_bidirectional:
        return PostNormAssembly if family.is_post_norm else Assembly
    return EncoderAssembly if family.is_post_norm else PreNormEncoderAssembly


def read_model(folder: Path, config: ModelConfig) -> tuple[Family, Geometry]:
    """The family and geometry of the model in `folder`; reads no weights."""
    return read_geometry(folder, config.dtype, config.max_model_len, config.plugins, config.tokenizer)


def device_of(config: ModelConfig) -> str:
    """ "cpu" or "cuda"; "auto" is "cuda" if there is a CUDA device."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("device=cuda, but torch finds no CUDA device; use device=cpu")
    return "cuda" if config.device != "cpu" and available else "cpu"


def _best_backend(config: ModelConfig, geometry: Geometry, pool: Pool | None) -> Backend:
    if pool is not None:
        return CpuBackend(pool)
    if device_of(config) == "cpu":
        return SingleRowsBackend()
    from ..backends.cuda import backend as cuda
    from ..backends.cuda.recurrences import check_recurrent

    check_recurrent(geometry)
    if geometry.latent and geometry.latent.indexer:
        raise ConfigError(cuda.WITHOUT_INDEXER)
    if geometry.shared_blocks:
        raise ConfigError(cuda.WITHOUT_SHARED_BLOCKS)
    if geometry.attention_experts:
        raise ConfigError(cuda.WITHOUT_ATTENTION_EXPERTS)
    if cuda.computes(geometry):
        return cuda.CudaBackend.for_current_device(config)
    if geometry.recurrent:
        raise ConfigError(cuda.WITHOUT_RECURRENCES)
    if geometry.latent:
        raise ConfigError(cuda.WITHOUT_LATENT)
    if geometry.has_experts:
        raise ConfigError(cuda.WITHOUT_EXPERTS)
    return TorchBackend("cuda")
