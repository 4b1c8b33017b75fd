"""A model whose modules are all ours, as the native decoder: the same kernels without the library between them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...geometry.layer_options import AttentionOptions
from ...geometry.rope_scaling import RopeScaling
from ...layers.attention import AttentionBackend
from ...layers.feed_forward import DenseFeedForward
from ...layers.ops import HeadLayout, Ops
from ...layers.rotary import Rotary
from ...mixers.attention import Attention
from ..decoder import DecoderLayer, Model
from .attention_module import AttentionModule
from .modules import EmbeddingModule, FeedForwardModule, NormModule, RotationModule
from .transformers_model import TransformersModel

PARTS_OF_BASE = (EmbeddingModule, nn.ModuleList, NormModule, RotationModule)
PARTS_OF_LAYER = (AttentionModule, FeedForwardModule, NormModule, NormModule)  # the norms in order of their use


class LibraryRotary(Rotary):
    """The angles that a module of the library computes, by position."""

    def __init__(self, rotation: RotationModule, head_dim: int, x: Tensor):
        super().__init__(RopeScaling("none"), head_dim)
        self._rotation = rotation
        self._x = x  # what the module gets besides positions: of its dtype

    def _piece(self, first: int) -> Tensor:
        cosines, sines = self._rotation.piece(first, self._x)
        half = cosines.shape[-1] // 2  # the other half is equal
        return torch.cat([cosines[:, :half], sines[:, :half]], dim=1).float()


def plain_decoder(model: TransformersModel, options: Sequence[AttentionOptions]) -> Model | None:
    """None if `model` has other parts. The caller checks that it computes the same."""
    parts = _parts(model.base, PARTS_OF_BASE)
    layers = [] if parts is None else [_parts(layer, PARTS_OF_LAYER) for layer in parts[1]]
    if parts is None or None in layers or len(layers) != model.geometry.num_layers:
        return None
    embedding, _, norm, rotation = parts
    geometry, size = model.geometry, model.tp_size
    x = torch.empty(1, 1, geometry.hidden_size, dtype=geometry.dtype)
    rotary = LibraryRotary(rotation, geometry.head_dim, x)
    heads = geometry.heads_of_rank(size), geometry.kv_heads_of_rank(size), geometry.head_dim
    ops = model.backend.ops(HeadLayout(*heads, (rotary,) * geometry.num_layers))
    return Model(
        geometry=geometry,
        tp_size=size,
        backend=model.backend,
        embedding=embedding.rows,
        embedding_norm=None,
        positions=None,
        layers=[
            _layer(index, layer, each, ops, model.attention)
            for index, (layer, each) in enumerate(zip(layers, options, strict=True))
            if layer
        ],
        final_norm=norm.norm,
        output_head=None,
        ops=ops,
        attention=model.attention,
        weights_bytes=model.weights_bytes,
        quantization=model.quantization,
        pooling=model.pooling,
        adapters=None,
    )


def _parts(module: Any, kinds: Sequence[type[nn.Module]]) -> list[Any] | None:
    """The children of `module`, one of each of `kinds`; None if it has others, or weights of its own."""
    children = [child for child in module.children() if not isinstance(child, nn.Identity)]
    if len(children) != len(kinds) or list(module.parameters(recurse=False)):
        return None
    found = []
    for kind in kinds:
        child = next((child for child in children if isinstance(child, kind)), None)
        if child is None:
            return None
        children.remove(child)
        found.append(child)
    return found


def _layer(
    index: int, parts: list[Any], options: AttentionOptions, ops: Ops, backend: AttentionBackend
) -> DecoderLayer:
    attention, feed_forward, attention_norm, mlp_norm = parts
    query_norm, key_norm = attention.norms
    return DecoderLayer(
        attention_norm=attention_norm.norm,
        mixer=Attention(index, attention.qkv, query_norm, key_norm, attention.out, options, ops, backend),
        attention_out_norm=None,
        mlp_norm=mlp_norm.norm,
        feed_forward=DenseFeedForward(feed_forward.gate_up, feed_forward.activation, feed_forward.down, ops),
        mlp_out_norm=None,
    )
