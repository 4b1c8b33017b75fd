"""The attention function that the library's modules call: our cache, our kernels, all rows of a step at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...batch.input_batch import InputBatch
from ...geometry.layer_options import AttentionOptions
from ...geometry.rope_scaling import RopeScaling
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend
from ...layers.ops import Ops
from ...layers.rotary import Rotary

HOLDER = "paged_serve"  # an attention module's attribute: the object that computes its attention
Attended = tuple[Tensor, None]  # [1, tokens, heads, head_dim], and no weights


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Attended:
    """Called by the library in each layer; `query`, `key` and `value` are [1, heads, tokens, head_dim], rotated."""
    result: Attended = getattr(module, HOLDER)(module, query, key, value, attention_mask, options)
    return result


def hold(base: nn.Module, attention: Any) -> None:
    """Have all attention modules of `base` call `attention`. They are the modules with a `layer_idx`."""
    for module in base.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.__dict__[HOLDER] = attention  # not as a submodule


class StepAngles(Rotary):
    """The angles of one step's tokens instead of a table by position: row t has the angles of token t."""

    def __init__(self, head_dim: int, device: str):
        super().__init__(RopeScaling("none"), head_dim, device)
        self.angles = torch.empty(0, head_dim)  # [tokens, head_dim] float32: cosines, then sines

    def table(self, num_positions: int) -> Tensor:
        return self.angles


class PagedAttention(nn.Module):
    """The attention of all layers of one model. `start` begins a step, in which each layer then calls once.

    `ops` do not rotate heads; `rotating` rotates them by `angles`.
    """

    def __init__(
        self,
        attention: AttentionBackend,
        ops: Ops,
        rotating: Ops,
        angles: StepAngles,
        num_heads: int,
        options: Sequence[AttentionOptions],
    ):
        super().__init__()
        self._attention = attention
        self._ops = ops
        self._rotating = rotating
        self._angles = angles
        self._views: list[CacheView] = []
        self._rotating_steps: dict[int, tuple[Tensor, Sequence[Any]]] = {}  # by the id of the cosines: (cosines, steps)
        self._num_heads = num_heads
        self._options = options
        self._of_layer: Sequence[int] = ()
        self._plans: Sequence[Any] = ()
        self._steps: Sequence[Any] = ()

    def start(self, batch: InputBatch, cache: KVCache) -> None:
        self._views = [CacheView.of(batch, cache, group) for group in range(len(cache.groups.windows))]
        self._plans = self._attention.plan(self._views, self._num_heads)
        self._steps = self._ops.start_step(self._views)
        self._rotating_steps.clear()
        self._of_layer = cache.groups.of_layer

    def forward(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Attended:
        layer: int = module.layer_idx
        group = self._of_layer[layer]
        projected = torch.cat([each[0].transpose(0, 1) for each in (query, key, value)], dim=1).flatten(1)
        stored = self._ops.rotate_and_cache(self._steps[group], layer, projected, None, None)  # rotates by 0
        return self._attention.attend(self._plans[group], layer, stored, self._options[layer]).unsqueeze(0), None

    def projected(self, module: Any, projected: Tensor, cosines: Tensor, sines: Tensor, mask: Any) -> Tensor:
        """The same for an AttentionModule: `projected` [tokens, (heads + 2 kv_heads) * head_dim], not rotated yet."""
        layer: int = module.layer_idx
        group = self._of_layer[layer]
        step = self._steps_that_rotate(cosines, sines)[group]
        query = self._rotating.rotate_and_cache(step, layer, projected, *module.norms)
        return self._attention.attend(self._plans[group], layer, query, self._options[layer])

    def _steps_that_rotate(self, cosines: Tensor, sines: Tensor) -> Sequence[Any]:
        """Steps that rotate by these angles [1, tokens, head_dim], whose halves are equal."""
        known = self._rotating_steps.get(id(cosines))
        if known is not None:
            return known[1]
        half = cosines.shape[-1] // 2
        self._angles.angles = torch.cat([cosines[0, :, :half], sines[0, :, :half]], dim=1).float()
        by_token = torch.arange(cosines.shape[1])
        steps = self._rotating.start_step([replace(view, positions=by_token) for view in self._views])
        self._rotating_steps[id(cosines)] = cosines, steps
        return steps
