"""Floats of 8 and 16 bits as tables from their definition: the reference for conversions."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Format:
    """A format of sign, exponent and mantissa. `largest` is the code of the largest finite value, without its sign."""

    exponent_bits: int
    mantissa_bits: int
    largest: int
    saturates: bool  # has no infinity

    @property
    def values(self):
        """The values of codes from 0 to `largest` and of the next one, as if it were finite; ascending, float64."""
        codes = np.arange(self.largest + 2)
        exponent, mantissa = np.divmod(codes, 1 << self.mantissa_bits)
        bias = (1 << self.exponent_bits - 1) - 1
        significand = np.where(exponent > 0, (1 << self.mantissa_bits) + mantissa, mantissa)
        return np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - self.mantissa_bits)

    def nearest(self, x):
        """The codes of finite or infinite numbers `x`: the nearest value's; if two are equally near, the even one's."""
        values = self.values[: self.largest + (1 if self.saturates else 2)]
        magnitude = np.minimum(np.abs(np.asarray(x, np.float64)), values[-1])
        above = np.minimum(np.searchsorted(values, magnitude), len(values) - 1)
        below = np.maximum(above - 1, 0)
        up, down = values[above] - magnitude, magnitude - values[below]
        code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
        return np.where(np.signbit(x), code | 1 << self.exponent_bits + self.mantissa_bits, code)


E4M3 = Format(4, 3, 0x7E, saturates=True)
BF16 = Format(8, 7, 0x7F7F, saturates=False)
FP16 = Format(5, 10, 0x7BFF, saturates=False)
FORMATS = {torch.float8_e4m3fn: E4M3, torch.bfloat16: BF16, torch.float16: FP16}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float8_e4m3fn: 2.0**-4}  # relative error
