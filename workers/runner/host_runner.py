"""The runner of a model with host sampling: on the CPU, or in torch on a CUDA device without our kernels."""

from paged_serve.protocol.messages.config import SchedulerConfig

from ..batch.grammars import Grammars
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.kv_cache import KVCache
from ..layers.backend import HostBackend
from ..layers.model import Model
from ..sampling.custom_sampling import with_processors
from ..sampling.host_sampling import HostSampling
from ..sampling.logits_processors import Classes
from ..sampling.sampler import Sampler
from ..speculation.drafter import Drafter
from .model_runner import ModelRunner


def host_runner(
    model: Model,
    cache: KVCache,
    group: TensorParallelGroup,
    scheduler: SchedulerConfig,
    max_model_len: int,
    grammars: Grammars | None = None,
    processors: Classes | None = None,
    drafter: Drafter | None = None,
) -> ModelRunner:
    """The tokens of a step are known once it is launched: the host samples them, and waits for the logits."""
    backend = model.backend
    assert isinstance(backend, HostBackend), backend
    vocab_size = model.geometry.vocab_size
    sampling = HostSampling(Sampler(backend.sampling(vocab_size)))
    return ModelRunner(
        model,
        cache,
        group,
        with_processors(sampling, processors, vocab_size, scheduler.max_num_seqs),
        num_rows=scheduler.max_num_seqs,
        max_model_len=max_model_len,
        max_tokens=scheduler.max_num_batched_tokens,
        steps_in_flight=scheduler.pipeline_depth,
        decode_step=backend.decode_step(model.weights_bytes),
        grammars=grammars,
        drafter=drafter,
    )
