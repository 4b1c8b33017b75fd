"""Runners on the CPU, as a rank creates them."""

from paged_serve.protocol.messages.config import SchedulerConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner


def new_host_runner(model: Model, cache: KVCache, num_rows: int, max_model_len: int) -> ModelRunner:
    """A runner of a single rank."""
    return host_runner(model, cache, TensorParallelGroup(), SchedulerConfig(max_num_seqs=num_rows), max_model_len)
