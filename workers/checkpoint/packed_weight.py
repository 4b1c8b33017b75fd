"""A weight in the layout of the CPU kernels."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class WeightFormat(StrEnum):
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    INT8 = "int8"  # weights and activations
    INT4 = "int4"  # weights only, in groups
    MXFP4 = "mxfp4"  # the same with 4-bit floats, times 2
    FP8 = "fp8"  # weights only, e4m3
    Q8_0 = "q8_0"  # this and those below: blocks of GGUF files, and activations in int8
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    IQ2_XXS = "iq2_xxs"
    IQ2_XS = "iq2_xs"
    IQ2_S = "iq2_s"
    IQ3_XXS = "iq3_xxs"
    IQ3_S = "iq3_s"
    IQ1_S = "iq1_s"
    IQ1_M = "iq1_m"
    TQ1_0 = "tq1_0"
    TQ2_0 = "tq2_0"


BLOCK_FORMATS = tuple(WeightFormat)[tuple(WeightFormat).index(WeightFormat.Q8_0) :]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A packed weight [outputs, inputs]; the original is no longer needed."""

    format: WeightFormat
    data: Tensor  # padded with zeros; its address is that of the first panel
    outputs: int
    inputs: int
    # float32; int8: [outputs]; fp8: [panels, groups, 64]; int4 and mxfp4: [panels, 64], the units of those in `data`
    scales: Tensor | None = None
    group_size: int = 0  # int4, mxfp4 and blocks: inputs per group
    has_zeros: bool = False  # int4: whether `data` holds zero points
    order: Tensor | None = None  # int4: [inputs] int64; packed column j multiplies input order[j]
    skipped: int = 0  # blocks: inputs of the first block that the weight does not have
    dtype: torch.dtype | None = None  # blocks: of a table's rows
    scale_inputs: int = 0  # fp8: inputs that share a scale
    is_cut: bool = False  # floats: a rank's share of a matrix that one rank holds in another form, so with other bits

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, self.inputs

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)
