"""Reads what layers consist of: matrix products, each divided among the ranks in its own way, and norms."""

import torch
from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.weight_forms import Weight, joined
from ...geometry.model_options import RMS_NORMS, NormKind
from ...layers.adapters.sites import SitePart
from ...layers.linear import Linear
from ...layers.norm import LayerNorm, Norm, RMSNorm
from ...layers.ops import Ops
from ..matrix_rows import Rows, Span, order_of_head, stacked_rows
from ..projected import NormedLinear
from .weight_reader import WeightReader


class LayerReader(WeightReader):
    """Reads products, which may have LoRA adapters, and norms."""

    def column_parallel(self, parts: list[Rows], columns: int, bias: bool, name: str = "") -> Linear:
        """One product for the given rows of several projections; `name`: where those of the first have another."""
        weights = self.weights(
            name or parts[0].name,
            lambda: joined([self.rows(self.source.projections, rows, columns) for rows in parts]),
        )
        bias_vector = self.bias(parts, name) if bias else None
        product = self.product(weights, bias_vector)
        if self.adapters is None:
            return product
        sites = [SitePart(each.name, each.total, each.chosen_rows(), len(each)) for each in parts]
        return self.adapters.column_parallel(product, sites, columns)

    def row_parallel(self, name: str, rows: int, columns: int, bias: bool) -> Linear:
        weight = self.share(name, rows, columns)
        bias_vector = self.bias([Rows(name, rows, (0, rows))]) if bias else None
        product = self.backend.row_parallel(weight, bias_vector, self.group, is_wide=self.geometry.altup is not None)
        if self.adapters is None:
            return product
        return self.adapters.row_parallel(product, name, rows, columns, self.even_span(columns))

    def gate_up(self, names: tuple[str, str], index: int, size: int, bias: bool) -> Linear:
        """The product into a feed-forward of `size` elements; `names` are those of gate and up."""
        order = slice(None, None, -1 if self.names.is_up_first else 1)
        inside = [name.format(index) for name in self.of_activation(names)[order]]
        rows = stacked_rows(inside, size, self.even_span(size))[order]
        return self.column_parallel(rows, self.geometry.hidden_size, bias)

    def of_activation(self, names: tuple[str, str]) -> tuple[str, ...]:
        """Of the names of gate and up, those that the model has."""
        return names if self.geometry.activation.is_gated else names[1:]

    def share(self, name: str, rows: int, columns: int) -> Weight:
        """This rank's share of the inputs of a row-parallel product."""
        part = MatrixPart((rows, columns), 1, *self.even_span(columns))
        (weight,) = self.weights(name, lambda: [self.matrix(self.source.projections, name, part)], is_share=True)
        return weight

    def norm(self, name: str, size: int, multiplier: float = 1.0) -> Norm:
        """A norm of the family's kind; `multiplier` is folded into its weight and bias."""
        kind = self.geometry.norm
        if kind in ("rms", "rms_less_1"):
            return self.rms_norm(name, size, multiplier)
        is_plain = kind in ("plain_rms", "plain_layer")
        weight = torch.ones(size, device=self.device) if is_plain else self.vector(name, size).float()
        bias = self.vector(_bias_of(name), size).float() * multiplier if kind in ("layer", "layer_less_1") else None
        return self._norm_of(kind, weight, bias, multiplier)

    def after_norm(self, product: Linear, ops: Ops, name: str, inputs: int) -> Linear:
        """The row-parallel product of normalised inputs, of which there are `inputs` on all ranks; "": as it is."""
        if not name:
            return product
        assert not self.geometry.is_parallel, "the norm overwrites the layer's input, which the feed-forward reads"
        return NormedLinear(product, ops, self.group, self.rms_norm(name, inputs), self.even_span(inputs))

    def norm_if_named(self, name: str, index: int) -> Norm | None:
        return self.norm(name.format(index), self.geometry.hidden_size) if name else None

    def rms_norm(self, name: str, size: int, multiplier: float = 1.0) -> RMSNorm:
        weight = self.vector(name, size).float()
        if self.geometry.norm == "rms_less_1":
            weight = weight + 1.0
        return RMSNorm(weight * multiplier, self.geometry.norm_eps)

    def whole_norm(self, name: str, size: int) -> RMSNorm:
        """Of all heads together; its weight is permuted like each head's elements (order_of_head)."""
        norm, order = self.rms_norm(name, size), order_of_head(self.geometry, 0).to(self.device)
        return RMSNorm(norm.weight.view(-1, len(order))[:, order].flatten(), norm.eps)

    def _norm_of(self, kind: NormKind, weight: Tensor, bias: Tensor | None, multiplier: float = 1.0) -> Norm:
        """Of weights as the file has them."""
        if kind in ("rms_less_1", "layer_less_1"):
            weight = weight + 1.0
        eps = self.geometry.norm_eps
        return RMSNorm(weight * multiplier, eps) if kind in RMS_NORMS else LayerNorm(weight * multiplier, bias, eps)

    def head_norms(self, index: int) -> tuple[Norm | None, Norm | None]:
        """The norms of each query head and of each key head; None: the layer has none."""
        geometry, names = self.geometry.of_layer(index), self.names
        if (kind := geometry.head_norm(index)) is None:
            return None, None
        heads = geometry.num_heads, self.even_span(geometry.num_heads)
        queries = self._head_norm(kind, names.query_norm, index, *heads)
        if geometry.kv_source(index) != index:
            return queries, None
        return queries, self._head_norm(kind, names.key_norm, index, geometry.num_kv_heads, self.kv_heads(index))

    def query_factors(self, index: int) -> Tensor:
        """The weights of norms after the rotation. A score is a sum of products, so queries take those of keys too."""
        names, order = (self.names.query_norm, self.names.key_norm), order_of_head(self.geometry, index)
        query, key = (self.vector(name.format(index), len(order)).float() for name in names)
        start, stop = self.even_span(self.geometry.num_heads)
        return (query * key)[order.to(self.device)].repeat(stop - start)

    def _head_norm(self, kind: NormKind, name: str, index: int, num_heads: int, heads: Span) -> Norm:
        """Of `heads` out of `num_heads`; its vectors are permuted like the heads' elements (order_of_head)."""
        geometry = self.geometry.of_layer(index)
        order = order_of_head(geometry, index)
        if kind == "plain_rms":
            return self._norm_of(kind, torch.ones(geometry.head_dim, device=self.device), None)

        def read(name: str) -> Tensor:
            found = self._head_vectors(name, index, num_heads, heads)
            return found.float()[..., order.to(found.device)].contiguous()

        return self._norm_of(kind, read(name), read(_bias_of(name)) if kind == "layer" else None)

    def _head_vectors(self, name: str, index: int, num_heads: int, heads: Span) -> Tensor:
        """[head_dim]; with other weights for each head [heads, head_dim], from one matrix or a vector a head."""
        head_dim = self.geometry.of_layer(index).head_dim
        if not (norm := self.geometry.qk_norm) or not norm.has_weights_per_head:
            return self.vector(name.format(index), head_dim)
        if name.count("{}") == 2:
            every = [self.vector(name.format(index, head), head_dim) for head in range(num_heads)]
            return torch.stack(every[slice(*heads)])
        name = name.format(index)
        return self.tensor(name, lambda: self.read_tensor(name, (num_heads, head_dim), heads))


def _bias_of(name: str) -> str:
    return f"{name.removesuffix('.weight')}.bias"
