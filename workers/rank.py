"""One tensor-parallel rank: its device, its share of the model, its KV cache, its runner."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from paged_serve.protocol.config import Config
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.worker import ModelRunnerOutput, SchedulerOutput, WorkerReady

from .allocator import keep_freed_memory
from .kv_cache import KVCache, blocks_that_fit, max_model_len
from .memory import free_host_bytes
from .model_runner import ModelRunner
from .models import Model, device_of, load_model
from .tensor_parallel import TensorParallelGroup
from .warm_up import warm_up

WEIGHTS_BYTES_PER_THREAD = 32 << 20
DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


class Rank:
    """What a worker process owns once it has joined its group and loaded its weights."""

    def __init__(self, config: Config, group: TensorParallelGroup, model: Model, load_s: float):
        self._config = config
        self._group = group
        self._model = model
        self._load_s = load_s
        self._runner: ModelRunner | None = None
        self._num_blocks = 0

    @classmethod
    def load(cls, config: Config, index: int, rendezvous: str, on_progress: Callable[[int, int], None]) -> "Rank":
        """Meet the other ranks at the file `rendezvous` and load. Raises ConfigError when this machine does not fit."""
        started = time.monotonic()
        size = config.parallel.tensor_parallel_size
        device = _prepare_device(config, index)
        keep_freed_memory()
        group = TensorParallelGroup.join(index, size, rendezvous, device, config.parallel.step_timeout_s)
        folder = config.model.model or str(DEMO_MODEL)
        torch.set_num_threads(threads_of_rank(config, _checkpoint_bytes(Path(folder)) // size))  # for loading, too
        model = load_model(folder, config.model, group, on_progress)
        return cls(config, group, model, time.monotonic() - started)

    def ready(self) -> WorkerReady:
        """What this rank has and what its memory holds."""
        geometry, size = self._model.geometry, self._group.size
        block_size = self._config.cache.block_size
        return WorkerReady(
            rank=self._group.rank,
            num_blocks=self._config.cache.num_blocks
            or blocks_that_fit(self._config, geometry, size, _free_bytes(self._model.device, size)),
            kv_bytes_per_block=geometry.kv_bytes_per_block(block_size, size),
            max_model_len=max_model_len(self._config, geometry),
            vocab_size=geometry.vocab_size,
            eos_token_ids=geometry.eos_token_ids,
            dtype=str(self._model.dtype).removeprefix("torch."),
            device=self._model.device,
            weights_bytes=self._model.weights_bytes,
            load_s=self._load_s,
            sliding_window=geometry.sliding_window,
        )

    def create_kv_cache(self, num_blocks: int) -> None:
        """Allocate the cache and take a first step; from here on `execute` works."""
        model, block_size = self._model, self._config.cache.block_size
        longest = max_model_len(self._config, model.geometry)
        cache = KVCache.allocate(model.geometry, num_blocks, block_size, self._group.size, model.device)
        self._num_blocks = num_blocks
        self._runner = ModelRunner(
            model,
            cache,
            self._group,
            num_rows=self._config.scheduler.max_num_seqs,
            max_model_len=longest,
            device=model.device,
        )
        warm_up(self._runner.execute, longest)

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        assert self._runner is not None, "a plan came before CreateKVCache"
        return self._runner.execute(plan)

    def facts(self) -> dict[str, str]:
        """Figures for people."""
        return {
            "device": self._model.device,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "weights": f"{self._model.weights_bytes} bytes in {self._load_s:.2f} s",
            "threads": str(torch.get_num_threads()),
            "kv_blocks": str(self._num_blocks),
        }


def threads_of_rank(config: Config, weights_bytes: int) -> int:
    """Threads for one rank's arithmetic: as configured, else an even share of the cores this process may use.

    A small model's products end sooner than a second thread has woken; on a busy machine the first then waits for it.
    """
    cores = len(os.sched_getaffinity(0)) // config.parallel.tensor_parallel_size
    worth = weights_bytes // WEIGHTS_BYTES_PER_THREAD
    return config.parallel.threads_per_rank or max(1, min(cores, worth))


def _checkpoint_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _prepare_device(config: Config, index: int) -> str:
    """ "cpu", or "cuda" with this rank's device current. Raises ConfigError when there are too few devices."""
    device = device_of(config.model)
    if device == "cuda":
        found, needed = torch.cuda.device_count(), config.parallel.tensor_parallel_size
        if found < needed:
            raise ConfigError(
                f"tensor_parallel_size={needed} needs {needed} CUDA devices, torch finds {found}; "
                f"use tensor_parallel_size={found} or device=cpu"
            )
        torch.cuda.set_device(index)
    return device


def _free_bytes(device: str, size: int) -> int:
    """Memory that is free for all ranks together."""
    return torch.cuda.mem_get_info()[0] * size if device == "cuda" else free_host_bytes()
