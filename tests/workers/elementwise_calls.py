"""Calls of the CPU kernels of norms and gates with plain arguments."""

from torch import Tensor

from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cpu.elementwise import activate, normalise
from paged_serve.workers.kernels.cpu.library import Pool


def rms_norm(
    pool: Pool, hidden: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    return normalise(pool, hidden, weight, None, eps, is_centred=False, delta=delta, out=out)


def layer_norm(
    pool: Pool,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    delta: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    return normalise(pool, hidden, weight, bias, eps, is_centred=True, delta=delta, out=out)


def silu_mul(pool: Pool, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    return activate(pool, gate_up, Activation(), out)
