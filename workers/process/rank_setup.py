"""What a rank needs before its model is loaded: its device, its threads; and the grammars of the loaded model."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config

from ..backends.cpu.attention import CpuPagedAttention
from ..batch.grammars import Grammars
from ..checkpoint.hf_config import read_architectures
from ..checkpoint.weight_files import weight_files
from ..distributed.cpu_quota import quota_of_cpus
from ..distributed.threads import nodes_of_cpus, pinned_cpus, threads_of_rank, usable_cpus
from ..kernels.cpu.library import Library, Pool, best_library
from ..kernels.cpu.tile_chunk import choose_chunk
from ..kv.budget import dtype_of_cache, max_model_len
from ..layers.model import Model
from ..models.loading import device_of, read_model
from ..models.transformers_impl.choice import is_for_transformers
from .machine import AMX_REFUSED, is_amx_refused, remedy, why_slow

log = logging.getLogger(__name__)


def create_pool(config: Config, index: int, folder: Path, device: str) -> Pool | None:
    """The pinned threads of this process, for loading and for kernels; None if torch computes on its own threads."""
    cpus, quota = usable_cpus(), quota_of_cpus()
    share = checkpoint_bytes(folder) // config.parallel.tensor_parallel_size
    num_threads = threads_of_rank(config.parallel, share, min(len(cpus), quota or len(cpus)))
    library = _library(config, index) if device == "cpu" else None
    torch.set_num_threads(num_threads if library is None else 1)
    if library is None:
        if config.model.summation != "auto":
            raise ConfigError(
                f"summation={config.model.summation} needs the CPU kernels, which are not used here; "
                "use --summation auto, or enable the kernels (paged-serve doctor)"
            )
        return None
    pinned = pinned_cpus(config.parallel, index, num_threads, cpus, nodes_of_cpus())
    pool = Pool(library, pinned, pin_caller=True, summation=config.model.summation)
    if library.isa == "amx" and pool.summation == "tile":
        choose_chunk(pool)
    return pool


def check_settings(config: Config, folder: Path, device: str, pool: Pool | None) -> None:
    """Raises ConfigError for settings that do not fit the model or the device, before the weights are loaded.

    A model of transformers has a geometry only once it is loaded; its settings are checked then.
    """
    cache = config.cache
    is_measured = cache.kv_cache_memory_bytes is None and cache.num_blocks is None
    if device == "cpu" and is_measured and cache.gpu_memory_utilization != CacheConfig().gpu_memory_utilization:
        raise ConfigError(
            f"gpu_memory_utilization={cache.gpu_memory_utilization:g} is for CUDA devices, but this model runs on the "
            "CPU; set kv_cache_memory_bytes instead"
        )
    if is_for_transformers(read_architectures(folder), config.model):
        return
    _, geometry = read_model(folder, config.model)
    max_model_len(config, geometry)
    if device == "cpu":
        dtype_of_cache(config, geometry, device, None if pool is None else CpuPagedAttention.coded_cache)


def grammars_of(config: Config, folder: str, model: Model, cpus: Sequence[int]) -> Grammars | None:
    """The grammars of the model; None for a model that only pools, or without a tokenizer."""
    file = Path(config.model.tokenizer or folder) / "tokenizer.json"
    if "generate" not in model.pooling.spec.tasks or not file.is_file():
        return None
    geometry = model.geometry
    return Grammars(file, geometry.vocab_size, geometry.eos_token_ids, cpus, geometry.embeddings.num_unused)


def _library(config: Config, index: int) -> Library | None:
    isa = config.model.cpu_isa
    if isa == "torch":
        return None
    library = best_library(None if isa == "auto" else isa)
    if library is None:
        log.warning("%s; %s", why_slow(isa), remedy(isa))
        return None
    if isa == "auto" and index == 0 and is_amx_refused():  # all ranks are on this machine
        used = library.isa
        log.warning("%s; using the kernels for %s; permit it, or give --cpu-isa %s", AMX_REFUSED, used, used)
    return library


def checkpoint_bytes(folder: Path) -> int:
    """The bytes of all weight files, as they are stored."""
    return sum(path.stat().st_size for path in weight_files(folder))


def prepare_device(config: Config, index: int) -> str:
    """ "cpu", or "cuda" with this rank's device current. Raises ConfigError when there are too few devices."""
    device = device_of(config.model)
    if device == "cuda":
        found, needed = torch.cuda.device_count(), config.parallel.tensor_parallel_size
        if found < needed:
            raise ConfigError(
                f"tensor_parallel_size={needed} needs {needed} CUDA devices, but torch finds {found}; "
                f"use tensor_parallel_size={found} or device=cpu"
            )
        torch.cuda.set_device(index)
    return device
