"""`load_model` turns a local Hugging Face folder into a `Model`."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ..backends.cpu.backend import CpuBackend
from ..backends.torch.backend import SingleRowsBackend, TorchBackend
from ..checkpoint.conversion import NotFiniteError, find_not_finite
from ..checkpoint.geometry import Geometry
from ..checkpoint.safetensors_files import Checkpoint
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kernels.cpu.library import Pool
from ..layers.backend import Backend, PackingBackend
from ..pooling.head import Dense, dense, pooling_head
from ..pooling.spec import Kind, PoolingSpec, read_spec
from ..quantization.source import matrix_source
from .assembly import Assembly
from .decoder import Model
from .encoder_assembly import EncoderAssembly
from .families.family import Family
from .packed_cache import PackedStore, through_store
from .packed_records import key_of
from .registry import read_geometry

log = logging.getLogger(__name__)


def load_model(
    folder: str,
    config: ModelConfig,
    group: TensorParallelGroup,
    on_progress: Callable[[int, int], None],
    pool: Pool | None = None,
    backend: Backend | None = None,
) -> Model:
    """Load this rank's share of the model in `folder`.

    It computes with `backend` if given, otherwise with the CPU kernels of `pool`, the CUDA kernels, or torch row by
    row. `on_progress(loaded_bytes, total_bytes)` is called after each tensor. Raises ConfigError, with the found and
    the required values, if the folder, the machine or the number of ranks is not suitable.
    """
    path = Path(folder)
    family, geometry = read_model(path, config)
    geometry.check_tensor_parallel(group.size)
    backend = backend or _best_backend(config, geometry, pool)
    if config.quantization == "fp8" and (reason := backend.lacks_for_fp8(geometry.dtype)):
        raise ConfigError(f"quantization=fp8 is not for this server: {reason}")
    own_kind: Kind = "cls" if geometry.is_bidirectional else "last"
    spec = read_spec(path, geometry.head, own_kind, config.pooling, geometry.hidden_size)
    checkpoint = Checkpoint(path)
    head = pooling_head(path, spec, geometry.hidden_size, _label_layers(checkpoint, family, geometry, spec))
    assembly = EncoderAssembly if geometry.is_bidirectional else Assembly

    def assembled(store: PackedStore | None) -> Model:
        names = family.weight_names.found_in(checkpoint.entries)
        source = matrix_source(path, checkpoint, config, geometry.dtype, pool, is_transposed=names.are_transposed)
        return assembly(checkpoint, source, names, geometry, group, backend, on_progress, store).model(head)

    try:
        if not config.packed_weights_dir:
            return assembled(None)
        if pool is None or not isinstance(backend, PackingBackend):
            log.warning("packed_weights_dir needs the CPU kernels, which are not used here; nothing is kept")
            return assembled(None)
        key = key_of(path, config, checkpoint.entries, geometry.dtype, group.rank, group.size)
        kept = Path(config.packed_weights_dir) / f"{key[:32]}.packed"
        return through_store(kept, key, checkpoint.files, pool, assembled)
    except NotFiniteError as error:
        find_not_finite(checkpoint, geometry.dtype)
        raise AssertionError("the stored tensors are finite, but the packed ones are not") from error
    finally:
        checkpoint.close()


def _label_layers(checkpoint: Checkpoint, family: Family, geometry: Geometry, spec: PoolingSpec) -> list[Dense]:
    """The layers from a token's hidden state to the labels' scores."""
    if geometry.head != "labels":
        return []
    hidden, layers = geometry.hidden_size, family.label_layers
    outputs = [*(hidden for _ in layers[1:]), spec.num_labels]
    return [
        dense(checkpoint, name, (rows, hidden), activation, bias=f"{name}.bias" in checkpoint.entries)
        for (name, activation), rows in zip(layers, outputs, strict=True)
    ]


def read_model(folder: Path, config: ModelConfig) -> tuple[Family, Geometry]:
    """The family and geometry of the model in `folder`; reads no weights."""
    return read_geometry(folder, config.dtype, config.max_model_len, config.plugins)


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
    from ..backends.cuda.backend import CudaBackend, computes

    return CudaBackend.for_current_device(config) if computes(geometry) else TorchBackend("cuda")
