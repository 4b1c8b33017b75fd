"""A worker process of a real server with an emulated CUDA device, kernels and nccl; everything else is real."""

from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.distributed.rank_links import RankLinks
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models import loading
from paged_serve.workers.process import rank

from ..emulated import EmulatorLauncher
from .emulated_device import EmulatedDevice, EmulatedNccl, Stream, StreamLauncher


def install() -> None:
    """Replace the CUDA parts of a rank by emulated ones; the server must be started with --device cpu."""
    stream = Stream()

    def backend(*_: object) -> CudaBackend:
        return CudaBackend(StreamLauncher(EmulatorLauncher(), stream), "sm_90a", multiprocessors=2, device="cpu")

    def join(index: int, size: int, rendezvous: str, device: str, timeout_s: float) -> TensorParallelGroup:
        if size == 1:
            return TensorParallelGroup()
        links = RankLinks.join(index, size, rendezvous, timeout_s)
        return TensorParallelGroup(index, size, nccl=EmulatedNccl(index, size, links, stream))

    loading._best_backend = backend
    rank.CudaDevice = lambda: EmulatedDevice(stream)
    rank.Rank._has_cuda_kernels = True
    rank.TensorParallelGroup.join = join
