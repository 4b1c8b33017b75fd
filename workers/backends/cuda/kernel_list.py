"""The kernels that a model launches; they are compiled in parallel before its first step."""

from collections.abc import Callable

import torch

from ...geometry.model_options import RMS_NORMS
from ...kernels.cuda import attention_kernels, sampling
from ...kernels.cuda.elementwise import activation_kernel, cap_kernel, layer_norm_kernel, rms_norm_kernel
from ...kernels.cuda.experts.products import LARGE, SMALL, product_kernel
from ...kernels.cuda.kernel import Kernel
from ...kernels.cuda.lora import lora_kernels
from ...kernels.cuda.rotate import rotate_and_cache_kernel
from ...layers.model import Model
from .backend import CudaBackend
from .latent import latent_kernels
from .ops import FUNCTIONS
from .recurrences import recurrent_kernels


def load_kernels(model: Model, cached: torch.dtype, block_size: int, on_progress: Callable[[int, int], None]) -> None:
    """Compile the kernels missing from the cubin cache, and load all; calls `on_progress(loaded, of)` after each."""
    assert isinstance(model.backend, CudaBackend), model.backend
    model.backend.launcher.load_all(kernels_for(model, cached, block_size), on_progress)


def kernels_for(model: Model, cached: torch.dtype, block_size: int) -> list[Kernel]:
    """The kernels of `model` (with a KV cache of dtype `cached` and blocks of `block_size` tokens) and its sampler."""
    backend, geometry, dtype = model.backend, model.geometry, model.dtype
    assert isinstance(backend, CudaBackend), backend
    norm_kernel = rms_norm_kernel if geometry.norm in RMS_NORMS else layer_norm_kernel
    norms_of_all_heads = geometry.qk_norm and geometry.qk_norm.spans == "all_heads"
    whole_norms = (geometry.num_heads, geometry.num_kv_heads) if norms_of_all_heads else ()
    inner_sizes = geometry.num_heads * geometry.head_dim, geometry.intermediate_size
    inner_norms = inner_sizes if geometry.has_inner_norms else ()
    wanted = [
        norm_kernel(dtype, geometry.hidden_size),
        norm_kernel(dtype, geometry.position_size),  # of embeddings that are projected
        *(norm_kernel(dtype, inputs.size) for inputs in (geometry.layer_inputs,) if inputs is not None),
        *(rms_norm_kernel(dtype, count * geometry.head_dim) for count in whole_norms),
        *(rms_norm_kernel(dtype, inputs) for inputs in inner_norms),
        *_activations(model),
        *(_attention(model, cached, block_size) if geometry.has_heads else []),
        *recurrent_kernels(geometry),
        *([cap_kernel()] if geometry.caps.logits else []),
        *backend.kernels_of_products,
        *(product_kernel(dtype, dtype, shape, form) for form in backend.coded_forms for shape in (SMALL, LARGE)),
        *(lora_kernels(dtype) if model.adapters else []),
        *sampling.production_kernels(),
    ]
    return list(dict.fromkeys(wanted))


def _activations(model: Model) -> list[Kernel]:
    """The activations of dense layers, of layers' own inputs, and of a prediction head."""
    geometry, activation = model.geometry, model.geometry.activation
    layers = [layer for layer in range(geometry.num_layers) if geometry.has_feed_forward(layer)]
    dense = [layer for layer in layers if (experts := geometry.experts_of(layer)) is None or experts.is_beside_dense]
    sizes = [(geometry.of_layer(layer).intermediate_size // model.tp_size, activation.is_gated) for layer in dense]
    if geometry.layer_inputs is not None:
        sizes.append((geometry.layer_inputs.size, True))
    if geometry.has_prediction_head and geometry.head == "tokens":
        sizes.append((geometry.vector_size, False))
    return [activation_kernel(model.dtype, size, FUNCTIONS[activation.kind], is_gated) for size, is_gated in sizes]


def _attention(model: Model, cached: torch.dtype, block_size: int) -> list[Kernel]:
    """The kernels between the projections of attention."""
    geometry, dtype, backend = model.geometry, model.dtype, model.backend
    assert isinstance(backend, CudaBackend), backend
    size = model.tp_size
    if (latent := geometry.latent) is not None:
        query_norm = [rms_norm_kernel(dtype, latent.query_rank)] if latent.query_rank else []
        return [*query_norm, *latent_kernels(geometry, latent, geometry.heads_of_rank(size), block_size, backend.arch)]
    layers = [layer for layer in range(geometry.num_layers) if geometry.has_attention(layer)]
    kinds = [(geometry.is_bidirectional, chunk) for chunk in dict.fromkeys(geometry.attention_chunks or (0,))]
    kinds += [(False, 0)] * any(geometry.reaches)  # the windows of an encoder's local layers
    norms = {geometry.head_norm(layer) for layer in range(geometry.num_layers)} - {None}
    is_centred, wanted = not norms.issubset(RMS_NORMS), []
    for layer in layers:
        sizes, has_keys = geometry.of_layer(layer), geometry.kv_source(layer) == layer
        heads, kv_heads, head_dim = sizes.heads_of_rank(size), sizes.kv_heads_of_rank(size), sizes.head_dim
        of_keys = (kv_heads if has_keys else 0, block_size, is_centred, geometry.has_value_norm and has_keys)
        wanted.append(rotate_and_cache_kernel(dtype, cached, head_dim, heads, *of_keys))
        for kind in dict.fromkeys(kinds):
            counts = heads, kv_heads, head_dim, block_size, bool(geometry.slopes)
            shape = attention_kernels.AttentionShape(dtype, cached, *counts, *kind)
            wanted.extend(attention_kernels.kernels_of(shape, backend.arch))
    return wanted
