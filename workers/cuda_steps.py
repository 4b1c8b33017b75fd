"""The steps of a model on a CUDA device: sampled there, and its decode steps as graphs."""

from typing import TYPE_CHECKING

import torch

from .cuda_backend import CudaBackend
from .cuda_graphs import CudaGraphs
from .device_runner import DeviceRunner
from .kv_cache import KVCache
from .sampling.device_sampler import DeviceSampler
from .steps import DeviceSteps
from .tensor_parallel import TensorParallelGroup

if TYPE_CHECKING:
    from paged_serve.protocol.config import SchedulerConfig

    from .models import Model


def cuda_steps(
    model: "Model",
    cache: KVCache,
    group: TensorParallelGroup,
    scheduler: "SchedulerConfig",
    max_model_len: int,
) -> DeviceSteps:
    """On this process's current CUDA device."""
    assert isinstance(model.backend, CudaBackend), model.backend
    runner = DeviceRunner(
        model,
        cache,
        group,
        DeviceSampler(model.backend.launcher, model.geometry.vocab_size, model.device),
        num_rows=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        max_tokens=scheduler.max_num_batched_tokens,
        steps_in_flight=scheduler.pipeline_depth,
        decode_step=CudaGraphs(scheduler.max_num_seqs),
    )
    return DeviceSteps(runner, _mark)


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
