"""The operations that both csrc/cuda and csrc/cpu have, on the given executor.

The executor `cpu` is a CpuKernels instead of a Launcher. A test is skipped if the CPU kernels do not support its case.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cpu import attention as cpu_attention
from paged_serve.workers.kernels.cpu import elementwise as cpu_elementwise
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kernels.cpu.parameters import DTYPE_CODES
from paged_serve.workers.kernels.cuda import elementwise, rotate
from paged_serve.workers.kv.cache_view import CacheView

from ..kernel_oracles import XIELU
from ..workers import elementwise_calls
from .emulated import Stats

CPU_DTYPES = tuple(DTYPE_CODES)


@dataclass(frozen=True, eq=False)
class CpuKernels:
    """Kernels of csrc/cpu on one pool of threads."""

    pool: Pool
    stats: Stats = field(default_factory=Stats)  # always zero


def known(is_known: bool, what: str) -> None:
    if not is_known:
        pytest.skip(f"csrc/cpu has no {what}")


def rms_norm(executor: Any, hidden: Tensor, *rest: Any) -> Tensor:
    if not isinstance(executor, CpuKernels):
        return elementwise.rms_norm(executor, hidden, *rest)
    known(hidden.dtype in CPU_DTYPES, f"{hidden.dtype}")
    return elementwise_calls.rms_norm(executor.pool, hidden, *rest)


def layer_norm(executor: Any, hidden: Tensor, *rest: Any) -> Tensor:
    if not isinstance(executor, CpuKernels):
        return elementwise.layer_norm(executor, hidden, *rest)
    known(hidden.dtype in CPU_DTYPES, f"{hidden.dtype}")
    return elementwise_calls.layer_norm(executor.pool, hidden, *rest)


def activate(
    executor: Any,
    x: Tensor,
    function: elementwise.Activation,
    is_gated: bool,
    out: Tensor | None = None,
    up: Tensor | None = None,
) -> Tensor:
    if not isinstance(executor, CpuKernels):
        return elementwise.activate(executor, x, function, is_gated, out, alphas=XIELU, up=up)
    known(x.dtype in CPU_DTYPES, f"{x.dtype}")
    activation = Activation(
        "gelu" if function == "gelu_erf" else function, is_gated, alpha_p=XIELU[0], alpha_n=XIELU[1]
    )
    return cpu_elementwise.activate(executor.pool, x, activation, out, up)


def cap_logits(executor: Any, logits: Tensor, cap: float) -> Tensor:
    if not isinstance(executor, CpuKernels):
        return elementwise.cap_logits(executor, logits, cap)
    return cpu_elementwise.cap_logits(executor.pool, logits, cap)


def rotate_and_cache(
    executor: Any, projected: Tensor, angles: Tensor, view: CacheView, query: Tensor, *rest: Any, **options: Any
) -> Tensor:
    """Rotate and cache, as the wrapper of csrc/cuda does. Tokens without a slot are left out on the CPU."""
    if not isinstance(executor, CpuKernels):
        return rotate.rotate_and_cache(executor, projected, angles, view, 0, query, *rest, **options)
    *norms, _ = rest
    dtype = view.cache.keys[0].dtype
    known(projected.dtype in CPU_DTYPES and dtype == projected.dtype, f"{dtype} cache of {projected.dtype}")
    used = view.slots >= 0
    kept = replace(view, positions=view.positions[used], slots=view.slots[used])
    ours = executor.pool, projected[used], angles, kept, 0, query[used], *norms
    query[used] = cpu_elementwise.rotate_and_cache(*ours, **options)
    return query


def attention(executor: CpuKernels, query: Tensor, view: CacheView, options: AttentionOptions) -> Tensor:
    """The attention of csrc/cpu; that of csrc/cuda also needs a plan of the step's work (attention_case.py)."""
    dtype = view.cache.keys[0].dtype
    known(query.dtype in CPU_DTYPES and dtype == query.dtype, f"{dtype} cache of {query.dtype}")
    return cpu_attention.attention(executor.pool, query, view, 0, options, torch.full_like(query, torch.nan))
