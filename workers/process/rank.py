"""One tensor-parallel rank: its device, its share of the model, its KV cache and its runner."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.startup import WorkerReady
from paged_serve.protocol.messages.worker import ModelRunnerOutput
from paged_serve.protocol.plugins import PluginKind, load_plugins

from ..adapters.loading import AdapterLoading
from ..backends.torch.backend import TorchBackend
from ..batch.grammars import Grammars
from ..distributed.allocator import keep_freed_memory
from ..distributed.memory import free_host_bytes, peak_resident_bytes, resident_bytes
from ..distributed.tensor_parallel import TensorParallelGroup
from ..distributed.threads import usable_cpus
from ..kernels.cpu.library import Pool
from ..kv.budget import (
    blocks_that_fit,
    cache_dtype,
    disentangled_bytes,
    draft_inputs_bytes,
    expert_rows_bytes,
    host_budget,
    layout_of,
    max_model_len,
    streams_bytes,
)
from ..kv.cache_layout import CacheLayout
from ..kv.kv_cache import KVCache
from ..layers.model import Model
from ..models.loading import load_model
from ..runner.cuda_device import CudaDevice, event_marker
from ..runner.host_runner import host_runner
from ..runner.steps import Steps
from ..sampling.logits_processors import Classes
from ..speculation.methods import drafter_of
from ..tier.open_tier import open_tier
from ..tier.tier import Tier
from .arithmetic import arithmetic
from .drafting.draft_source import DraftSource, draft_source_of
from .machine import remedy, why_slow
from .platform import Platform, platform_of
from .rank_setup import check_settings, create_pool, grammars_of, prepare_device
from .warm_up import warm_up

log = logging.getLogger(__name__)

DEMO_MODEL = Path(__file__).parents[2] / "demo_model"


class Rank:
    """The state of a worker process that has joined its group and loaded its weights."""

    def __init__(
        self,
        config: Config,
        group: TensorParallelGroup,
        model: Model,
        pool: Pool | None,
        grammars: Grammars | None,
        load_s: float,
        platform: Platform | None = None,
        cpus: Sequence[int] = (),
        drafts: DraftSource | None = None,
        run_dir: str = "",
    ):
        """`cpus`: all that this process may use."""
        self._config = config
        self._group = group
        self._model = model
        self._pool = pool
        self._grammars = grammars
        self.adapters = AdapterLoading(model.adapters, group.rank, cpus)
        self._platform = platform
        self._cpus = cpus
        self._drafts = drafts
        self._load_s = load_s
        self._run_dir = run_dir
        self._steps: Steps | None = None
        self.tier: Tier | None = None  # None: not configured, or not open
        self._num_blocks = 0

    @classmethod
    def load(cls, config: Config, index: int, rendezvous: str, on_progress: Callable[[int, int], None]) -> "Rank":
        """Join the other ranks at the file `rendezvous` and load. Raises ConfigError for an unsuitable machine."""
        started = time.monotonic()
        size = config.parallel.tensor_parallel_size
        platform = platform_of(config)
        backend = None if platform is None else platform.backend(index)
        device = prepare_device(config, index) if backend is None else backend.device
        keep_freed_memory()
        group = TensorParallelGroup.join(index, size, rendezvous, device, config.parallel.step_timeout_s)
        folder = config.model.model or str(DEMO_MODEL)
        cpus = usable_cpus()  # the pool pins this thread
        pool = create_pool(config, index, Path(folder), device) if platform is None else None
        if platform is None:
            check_settings(config, Path(folder), device, pool)
        model = load_model(folder, config.model, group, on_progress, pool, backend, config.lora)
        if model.quantization:
            log.info("quantized %s", " ".join(f'{name}="{value}"' for name, value in model.quantization.items()))
        grammars = grammars_of(config, folder, model, cpus) if index == 0 else None  # rank 0 samples for all
        drafts = draft_source_of(config, folder, model, pool, index)
        load_s, run_dir = time.monotonic() - started, str(Path(rendezvous).parent)
        return cls(config, group, model, pool, grammars, load_s, platform, cpus, drafts, run_dir)

    def load_kernels(self, on_progress: Callable[[int, int], None]) -> None:
        """Load or compile the kernels of this model; calls `on_progress(loaded, of)` after each."""
        if self._has_cuda_kernels:
            from ..backends.cuda.kernel_list import load_kernels

            load_kernels(self._model, self._kv_dtype, self._layout.block_size, on_progress)

    @property
    def _has_cuda_kernels(self) -> bool:
        return (
            self._platform is None
            and self._model.device == "cuda"
            and not isinstance(self._model.backend, TorchBackend)
        )

    def ready(self) -> WorkerReady:
        """The facts of this rank, and the number of blocks that its memory holds."""
        geometry, size, pooling = self._model.geometry, self._group.size, self._model.pooling
        layout = self._layout
        return WorkerReady(
            rank=self._group.rank,
            num_blocks=self._config.cache.num_blocks
            or blocks_that_fit(self._config, geometry, size, self._budget(), self._kv_dtype),
            block_size=layout.block_size,
            kv_bytes_per_block=layout.bytes_per_block,
            max_model_len=max_model_len(self._config, geometry),
            vocab_size=geometry.vocab_size,
            eos_token_ids=geometry.eos_token_ids,
            grammar_end_token_ids=() if self._grammars is None else self._grammars.end_token_ids,
            dtype=str(self._model.dtype).removeprefix("torch."),
            device=self._device,
            weights_bytes=self._model.weights_bytes,
            load_s=self._load_s,
            arithmetic=arithmetic(self._model, size, self._pool),
            kv_groups=layout.groups.kinds,
            tasks=pooling.spec.tasks,
            embedding_size=pooling.embedding_size,
            num_labels=pooling.spec.num_labels,
            needs_whole_prompt=pooling.spec.kind != "last",
            is_bidirectional=geometry.is_bidirectional,
            matryoshka_dimensions=pooling.spec.matryoshka_dimensions,
        )

    @property
    def _kv_dtype(self) -> torch.dtype:
        return cache_dtype(self._config, self._model)

    @property
    def _layout(self) -> CacheLayout:
        return layout_of(self._config, self._model.geometry, self._group.size, self._kv_dtype)

    @property
    def _device(self) -> str:
        """As in WorkerReady."""
        return self._config.model.platform or self._model.device

    def _budget(self) -> int:
        """Bytes for the KV cache if the configuration does not set them; 0 if it does."""
        if self._config.cache.kv_cache_memory_bytes is not None:
            return 0
        if self._platform is not None:
            return self._platform.free_bytes(self._group.rank)
        drafts = draft_inputs_bytes(self._config, self._device, self._model.geometry, self._group.size)
        if self._model.device == "cuda":
            from ..runner.cuda_memory import cuda_budget

            return cuda_budget(self._config, self._model, self._group, CudaDevice()) - drafts
        tokens = self._config.scheduler.max_num_batched_tokens
        geometry, size = self._model.geometry, self._group.size
        reserved = drafts + expert_rows_bytes(geometry, tokens) + disentangled_bytes(geometry, tokens, size)
        reserved += streams_bytes(geometry, tokens) + self._model.adapters_bytes
        reserved += 0 if self._drafts is None else self._drafts.cache_bytes
        return host_budget(free_host_bytes(), size, reserved)

    def create_kv_cache(self, num_blocks: int, on_progress: Callable[[int, int], None]) -> None:
        """Allocate the cache and run the first steps; afterwards `steps` can be used.

        Collectives that belong to no plan run here, in the same order on all ranks, and nowhere later.
        `on_progress(prepared, of)` is called after each graph.
        """
        model, layout = self._model, self._layout
        longest, groups = max_model_len(self._config, model.geometry), layout.groups
        shape = model.geometry, num_blocks, layout.block_size, self._group.size, model.device
        cache = KVCache.allocate(*shape, self._kv_dtype, groups)
        self._num_blocks = num_blocks
        self._steps = self._make_steps(cache, longest)
        self.steps.prepare(on_progress)
        if self._config.kv_tier.is_on:
            self.tier = self._open_tier(cache, layout)
        warm_up(self.steps.execute, longest, len(groups.windows), model.pooling.spec.tasks)

    def _open_tier(self, cache: KVCache, layout: CacheLayout) -> Tier:
        model, group = self._model, self._group
        folder = Path(self._config.model.model or DEMO_MODEL)
        precision = str(model.dtype), str(self._kv_dtype), arithmetic(model, group.size, self._pool)
        facts = (repr(layout), *precision, group.size, group.rank)
        library = None if self._pool is None else self._pool.library
        return open_tier(self._config, folder, facts, cache, group.rank, library, self._cpus, self._run_dir)

    def _make_steps(self, cache: KVCache, longest: int) -> Steps:
        model, scheduler = self._model, self._config.scheduler
        names = self._config.model.plugins
        processors: Classes = load_plugins(PluginKind.LOGITS_PROCESSOR, names, type) if self._group.rank == 0 else {}
        own_drafter = None if self._drafts is None else self._drafts.drafter(scheduler)
        of_sampling = self._grammars, processors, drafter_of(self._config.speculation, self._device, own_drafter)
        of_model = model, cache, self._group, scheduler, longest
        if self._has_cuda_kernels:
            from ..runner.cuda_runner import cuda_runner

            runner = cuda_runner(*of_model, CudaDevice(), *of_sampling)
        else:
            runner = host_runner(*of_model, *of_sampling)
        return Steps(runner, event_marker(model.device))

    @property
    def steps(self) -> Steps:
        assert self._steps is not None, "a plan came before CreateKVCache"
        return self._steps

    def take_output(self) -> ModelRunnerOutput | None:
        """The output of the next step, if it is complete."""
        return None if self._steps is None else self._steps.take()

    def facts(self) -> dict[str, str]:
        """Facts about this rank for the log and the user."""
        return {
            "device": self._device,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "weights": f"{self._model.weights_bytes} bytes in {self._load_s:.2f} s",
            "kernels": "torch" if self._pool is None else self._pool.library.isa,
            **({} if self._pool is None else {"summation": self._pool.summation}),
            "threads": str(torch.get_num_threads() if self._pool is None else self._pool.num_threads),
            "kv_blocks": str(self._num_blocks),
            "kv_dtype": str(self._kv_dtype).removeprefix("torch."),
            "memory": f"{resident_bytes()} bytes, {peak_resident_bytes()} at most",
            **self._model.quantization,
            **self._slowness(),
        }

    def _slowness(self) -> dict[str, str]:
        """Why a rank on the CPU does not use the kernels, and the remedy; otherwise empty."""
        isa = self._config.model.cpu_isa
        if (
            self._platform is not None
            or self._model.device != "cpu"
            or self._pool is not None
            or not (slow := why_slow(isa))
        ):
            return {}
        return {"slow": slow, "remedy": remedy(isa)}
