"""The backend of our CUDA kernels; torch computes matrix products."""

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ...checkpoint.packed_weight import PackedWeight
from ...checkpoint.weight_forms import Fp8Weight, GroupedWeight, StoredWeight, Weight
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry
from ...geometry.layer_options import Latent
from ...geometry.model_options import Activation
from ...kernels.cuda.attention_kernels import MAX_HEAD_DIM
from ...kernels.cuda.experts import coded_weight
from ...kernels.cuda.experts.products import Form
from ...kernels.cuda.kernel import Kernel, Launcher
from ...kernels.cuda.quantize import quantize_rows_kernel
from ...layers.adapters.ops import AdapterOps
from ...layers.attention import (
    AttentionBackend,
    AttentionExperts,
    AttentionExpertWeights,
    KeySelector,
    LatentHeads,
    LatentLayer,
)
from ...layers.embedding import Table, TiedTable, TorchTable
from ...layers.feed_forward import ExpertWeights, RoutedFeedForward
from ...layers.linear import Linear, RowParallelLinear
from ...layers.ops import HeadLayout, Ops
from ...layers.recurrent.recurrences import Recurrences, SelectiveScan
from ...layers.streams.stream_ops import StreamOps
from .adapters import CudaAdapterOps
from .attention import CudaPagedAttention
from .experts import CudaExperts
from .latent import CudaLatentHeads, LatentPlans, check_latent_sizes
from .ops import CudaOps
from .products.coded_linear import CodedLinear
from .products.fixed_rows import FixedRowsLinear
from .products.fp8_linear import Fp8Linear, multiplies
from .recurrences import CudaRecurrences, CudaSelectiveScan

WITHOUT_RECURRENCES = (
    "recurrent layers on CUDA must be bfloat16 or float16, with attention heads of a multiple of 16 up to 512 dims; "
    "use --dtype bfloat16 or --device cpu"
)
WITHOUT_EXPERTS = (
    "mixtures of experts on CUDA must be bfloat16 or float16, with heads of a multiple of 16 up to 512 dims; use "
    "--dtype bfloat16 or --device cpu"
)
WITHOUT_INDEXER = "config.json: index_topk (sparse attention) has no CUDA kernels; use --device cpu"
WITHOUT_ATTENTION_EXPERTS = "mixtures of attention heads have no CUDA kernels; use --device cpu"
WITHOUT_SHARED_BLOCKS = "blocks that layers share (Zamba2) are not supported on CUDA; use --device cpu"
WITHOUT_LATENT = "latent attention on CUDA must be bfloat16 or float16; use --dtype bfloat16 or --device cpu"
WITHOUT_FP8 = ("sm_80", "sm_86", "sm_87", "sm_88")  # architectures of the kernels without fp8 products


class CudaBackend:
    """The backend for bfloat16 and float16 models. `device` "cpu" is for launchers that emulate a GPU."""

    def __init__(self, launcher: Launcher, arch: str, multiprocessors: int, device: str = "cuda"):
        self.device = device
        self.adds_as_one_rank = False
        self.launcher = launcher
        self.arch = arch  # the architecture for which kernels are compiled
        self.kernels_of_products: set[Kernel] = set()  # our kernels that this backend's products launch
        self.coded_forms: set[Form] = set()  # of weights whose products are our kernels
        self._multiprocessors = multiprocessors
        self._latent_plans = LatentPlans(launcher, arch, multiprocessors)

    @classmethod
    def for_current_device(cls, config: ModelConfig) -> "CudaBackend":
        """A backend on the current device. Raises ConfigError if GPU, driver, CuPy and NVRTC are incompatible."""
        from ...kernels.cuda.launcher import CudaLauncher
        from ...kernels.cuda.requirements import architecture, cubin_folder

        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        launcher = CudaLauncher.for_current_device(cubin_folder(config))
        return cls(launcher, architecture(device.name, (device.major, device.minor)), device.multi_processor_count)

    def accepted(self, weight: Weight, dtype: torch.dtype) -> Weight:
        """The form of `weight` that products support: 16 bits, fp8, and 4-bit codes; others are dequantized."""
        match weight:
            case Tensor():
                return weight
            case StoredWeight():
                return weight.tensor()
            case Fp8Weight() if multiplies(weight) and not self.lacks_for_fp8(dtype):
                return weight
            case GroupedWeight() if coded_weight.multiplies(weight):
                return weight
            case PackedWeight():
                raise TypeError("packed for the CPU")
            case _:
                return weight.dequantized().to(dtype)

    def lacks_for_fp8(self, dtype: torch.dtype) -> str:
        if self.arch in WITHOUT_FP8:
            return f"it needs sm_89 or later, but this GPU is {self.arch}; leave it out"
        return "" if dtype == torch.bfloat16 else "its products are bfloat16; use dtype=bfloat16"

    def linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        if isinstance(weight, Fp8Weight):
            self.kernels_of_products.add(quantize_rows_kernel(torch.bfloat16, weight.shape[1]))
            return Fp8Linear(self.launcher, weight, bias)
        if isinstance(weight, GroupedWeight):
            product = CodedLinear(self.launcher, weight, bias)
            self.coded_forms.add(Form.of(product.weight))
            return product
        assert isinstance(weight, Tensor), type(weight)
        return FixedRowsLinear(weight, bias)

    def row_parallel(
        self, share: Weight, bias: Tensor | None, group: TensorParallelGroup, *, is_wide: bool = False
    ) -> Linear:
        return self.linear(share, bias) if group.size == 1 else RowParallelLinear(self.linear(share), bias, group)

    def head(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        return self.linear(weight, bias)

    def table(self, weight: Weight, of: str = "tokens", multiplier: float = 1.0) -> Table:
        assert isinstance(weight, Tensor), type(weight)
        return TorchTable(weight, multiplier=multiplier)

    def tied_table(self, weight: Weight, multiplier: float = 1.0) -> TiedTable:
        assert isinstance(weight, Tensor), type(weight)
        return TiedFixedRowsTable(weight, multiplier)

    def experts(
        self, experts: Experts, activation: Activation, weights: ExpertWeights, group: TensorParallelGroup
    ) -> RoutedFeedForward:
        mixture = CudaExperts(self.launcher, experts, activation, weights, group)
        self.kernels_of_products.update(mixture.kernels())
        return mixture

    def attention_experts(
        self, experts: Experts, weights: AttentionExpertWeights, group: TensorParallelGroup
    ) -> AttentionExperts:
        raise ConfigError(WITHOUT_ATTENTION_EXPERTS)

    def ops(self, heads: HeadLayout) -> Ops:
        return CudaOps(self.launcher, heads)

    def adapter_ops(self) -> AdapterOps:
        return CudaAdapterOps(self.launcher)

    def recurrences(self) -> Recurrences:
        return CudaRecurrences(self.launcher)

    def selective_scan(self) -> SelectiveScan:
        return CudaSelectiveScan(self.launcher)

    def stream_ops(self, num_streams: int) -> StreamOps:
        raise AssertionError("models with several residual streams have no kernels here, see computes()")

    def attention(self, heads: HeadLayout) -> AttentionBackend:
        return CudaPagedAttention(self.launcher, self.arch, self._multiprocessors)

    def latent_heads(self, layer: LatentLayer, attention: AttentionBackend) -> LatentHeads:
        assert isinstance(layer.keys, Tensor), type(layer.keys)
        check_latent_sizes(layer.keys.dtype, layer.sizes, self.arch)
        return CudaLatentHeads(self.launcher, self._latent_plans, layer)

    def key_selector(self, layer: int, sizes: Latent, attention: AttentionBackend) -> KeySelector:
        raise ConfigError(WITHOUT_INDEXER)


class TiedFixedRowsTable(TorchTable):
    """The embedding and the output head, which share one copy."""

    def __init__(self, weight: Tensor, multiplier: float):
        super().__init__(weight, multiplier=multiplier)
        self._head = FixedRowsLinear(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._head(x)


def computes(geometry: Geometry) -> bool:
    """Whether the kernels support the model's dtype, positions, head dimension and row sizes (whole packs).

    Latent attention and recurrent layers have kernels of their own, which refuse sizes by name.
    """
    has_own_sizes = geometry.latent is not None or not geometry.has_heads
    head_dims = {sizes.head_dim for sizes in geometry.layer_sizes} or {geometry.head_dim}
    knows_heads = has_own_sizes or all(dim % 16 == 0 and dim <= MAX_HEAD_DIM for dim in head_dims)
    knows_heads = knows_heads and not geometry.is_differential
    knows_streams = geometry.altup is None and (geometry.layer_inputs is None or geometry.layer_inputs.size % 8 == 0)
    knows_scores = geometry.relative_positions is None and geometry.disentangled is None
    return knows_heads and knows_streams and knows_scores and geometry.dtype in (torch.bfloat16, torch.float16)
