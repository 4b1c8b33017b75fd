"""Rules for torch's own operations between our kernels, so that no row's bits depend on its batch.

Three kinds are allowed. Copies, and elementwise operations that IEEE rounds once, have the same result everywhere in a
tensor. Reductions of the last dimension add within a row. Other elementwise functions have two implementations, one for
whole vectors and one for the remaining elements; they are allowed only if the elements of each token fill whole
vectors, in the order of memory, so that no elements remain.
"""

import re
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paged_serve.protocol.errors import ConfigError

WHOLE_VECTORS = 64  # elements; a multiple of the vectors of torch's loops, in every dtype and instruction set
NUM_VALUES = 1 << 15  # float32 numbers with which a function is tested
COPIES = """
    _reshape_alias _to_copy _unsafe_view alias arange as_strided cat chunk clone concat contiguous copy_ detach
    embedding empty empty_like empty_strided expand expand_as fill_ flatten full full_like index index_select lift_fresh
    narrow new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute repeat repeat_interleave
    reshape resolve_conj scalar_tensor select slice split split_with_sizes squeeze stack t to transpose type_as unbind
    unflatten unsqueeze view view_as zero_ zeros zeros_like _local_scalar_dense item is_nonzero max min
"""
ROUNDED_ONCE = """
    abs add bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min copysign div eq floor ge gt le leaky_relu
    logical_and logical_not logical_or lt masked_fill maximum minimum mul ne neg reciprocal relu round rsqrt rsub sign
    sqrt square sub trunc where all any
"""
OF_ROWS = """
    _fused_rms_norm _log_softmax _softmax amax amin layer_norm linalg_vector_norm logsumexp mean native_layer_norm
    rms_norm softmax std sum var
"""
OF_VECTORS = """
    addcdiv addcmul atan2 celu cos elu erf exp exp2 expm1 fmod gelu hardsigmoid hardswish lerp log log10 log1p log2
    log_sigmoid mish pow remainder selu sigmoid silu sin sinh softplus softsign tan tanh
"""
COPIES_OF, ROUNDED_OF, ROWS_OF, VECTORS_OF = (
    frozenset(names.split()) for names in (COPIES, ROUNDED_ONCE, OF_ROWS, OF_VECTORS)
)


class RowWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Records each operation of a pass over `num_tokens` tokens that may mix rows or depend on a row's place."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problems: dict[str, None] = {}
        self.is_paused = False
        self._num_tokens = num_tokens

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called by torch. If it were True, the first call would import torch.compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_paused and (problem := self._problem(func, args, kwargs or {})):
            self.problems[problem] = None
        return func(*args, **(kwargs or {}))

    def _problem(self, func: Any, args: Any, kwargs: Any) -> str:
        """Why the operation is not allowed; "" if it is."""
        full_name = func.overloadpacket.__name__
        name = re.sub(r"(?<=[a-z0-9])_$", "", full_name)
        tensors = [each for each in args if isinstance(each, Tensor) and each.is_floating_point()]
        if name in COPIES_OF or full_name in COPIES_OF or (name == "dropout" and args[2] is False):
            return ""
        if not tensors or not any(each.numel() % self._num_tokens == 0 for each in tensors):
            return ""  # its operands are integers, or the same in every step
        if name in ROWS_OF:
            return "" if _is_of_rows(name, args) else f"torch.{name} over more than the last dimension"
        exact = name in ROUNDED_OF and kwargs.get("alpha", 1) == 1
        if exact or (name == "pow" and args[1] == 2):
            return ""
        if name not in {*VECTORS_OF, *ROUNDED_OF}:
            return f"torch.{name}"
        if all(map(self._is_whole, tensors)) or is_equal_anywhere(func, args, kwargs):
            return ""
        return f"torch.{name} over {_sizes(tensors)} elements per row"

    def _is_whole(self, x: Tensor) -> bool:
        if x.dim() == 0 or x.numel() % self._num_tokens:
            return True
        length = x.numel() // self._num_tokens if x.is_contiguous() else x.shape[-1] if x.stride(-1) == 1 else 1
        return length % WHOLE_VECTORS == 0 and torch.get_num_threads() == 1


def is_equal_anywhere(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function of one tensor gives an element the same bits alone, among few and among many, on this machine.

    torch may use other formulas for elements that are not adjacent, and for the last few elements.
    """
    if sum(isinstance(each, Tensor) for each in (*args, *kwargs.values())) != 1 or not isinstance(args[0], Tensor):
        return False
    if func.overloadpacket.__name__.endswith("_"):
        return False
    values = _values(args[0])

    def bits(x: Tensor) -> Tensor:
        found: Tensor = func(x, *args[1:], **kwargs).contiguous()
        found = found.masked_fill(found.isnan(), 0.0)
        return found.view(torch.int32 if found.itemsize == 4 else torch.int16)

    expected = bits(values)
    strided = bits(torch.stack([values, values], dim=1)[:, 0])
    return torch.equal(strided, expected) and all(
        torch.equal(bits(few.clone()), part)
        for count in (5, 37)
        for few, part in zip(torch.split(values, count), torch.split(expected, count), strict=True)
    )


def _values(like: Tensor) -> Tensor:
    """Numbers of the dtype of `like`, negative only if `like` has negative ones: all of a 16-bit dtype, or random."""
    if like.itemsize == 2:
        every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(like.dtype)
        values = every[every.isfinite()]
    else:
        generator = torch.Generator().manual_seed(NUM_VALUES)
        values = torch.randn(NUM_VALUES, generator=generator).mul_(4.0).to(like.dtype)
    return values if bool((like < 0).any()) else values.abs()


def _is_of_rows(name: str, args: Any) -> bool:
    x = args[0]
    given = next((each for each in args[1:] if isinstance(each, int | list | tuple)), ())
    dims = [given] if isinstance(given, int) else list(given)
    return len(dims) == 1 and x.stride(-1) == 1 and ("norm" in name or dims[0] in (-1, x.dim() - 1))


def _sizes(tensors: list[Tensor]) -> str:
    return "x".join(str(size) for size in tensors[0].shape[2:]) or "no"


def check_operations(watch: RowWatch) -> None:
    """Raises ConfigError naming torch's operations in the pass that may give other bits in another batch."""
    if watch.problems:
        raise ConfigError(
            f"it computes {', '.join(watch.problems)} outside of its linear layers and its attention, where a row's "
            "bits could depend on other rows"
        )
