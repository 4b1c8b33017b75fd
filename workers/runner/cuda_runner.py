"""The runner of a model on a CUDA device: sampled on the device, with decode steps as CUDA graphs."""

from collections.abc import Sequence

from paged_serve.protocol.messages.config import SchedulerConfig

from ..backends.cuda.backend import CudaBackend
from ..backends.cuda.sampler import DeviceSampler
from ..batch.grammars import Grammars
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.kv_cache import KVCache
from ..layers.model import Model
from ..sampling.custom_sampling import with_processors
from ..sampling.logits_processors import Classes
from ..speculation.drafter import Drafter
from .cuda_device import CudaDevice
from .cuda_graphs import CudaGraphs, ladder
from .model_runner import ModelRunner


def cuda_runner(
    model: Model,
    cache: KVCache,
    group: TensorParallelGroup,
    scheduler: SchedulerConfig,
    max_model_len: int,
    device: CudaDevice,
    grammars: Grammars | None = None,
    processors: Classes | None = None,
    drafter: Drafter | None = None,
    *,
    sizes: Sequence[int] | None = None,
) -> ModelRunner:
    """A runner with CUDA graphs for decode steps of `sizes` rows, ascending; `prepare` captures them later.

    Without `sizes` there are graphs up to the most rows, and none for a model that generates no tokens.
    """
    assert isinstance(model.backend, CudaBackend), model.backend
    if sizes is None:
        sizes = ladder(scheduler.max_num_seqs) if model.geometry.head == "tokens" else []
    vocab_size = model.geometry.vocab_size
    sampler = DeviceSampler(model.backend.launcher, vocab_size, model.device)
    return ModelRunner(
        model,
        cache,
        group,
        with_processors(sampler, processors, vocab_size, scheduler.max_num_seqs),
        num_rows=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        max_tokens=scheduler.max_num_batched_tokens,
        steps_in_flight=scheduler.pipeline_depth,
        decode_step=CudaGraphs(sizes, device.graph_pool()),
        grammars=grammars,
        drafter=drafter,
    )
