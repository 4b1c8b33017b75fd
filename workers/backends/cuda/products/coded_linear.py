"""Products of 16-bit activations and weights of 4 bits, which stay codes in memory."""

from torch import Tensor

from ....checkpoint.weight_forms import GroupedWeight
from ....kernels.cuda.experts.coded_weight import CodedWeight
from ....kernels.cuda.experts.products import coded_product
from ....kernels.cuda.kernel import Launcher
from .fixed_rows import empty_rows


class CodedLinear:
    """Weight-only: the numbers that codes stand for, rounded once to the dtype of activations; sums in float32.

    A row's bits depend on that row alone, by the construction of the kernel.
    """

    def __init__(self, launcher: Launcher, weight: GroupedWeight, bias: Tensor | None = None):
        self.weight = CodedWeight.of(weight)
        self.bias = None if bias is None else bias.float().contiguous()  # [out]
        self._launcher = launcher

    def __call__(self, x: Tensor) -> Tensor:
        out = empty_rows(x, self.weight.shape[0])
        return coded_product(self._launcher, x.contiguous(), self.weight, self.bias, out)
