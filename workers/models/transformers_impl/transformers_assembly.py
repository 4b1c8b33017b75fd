"""Replaces modules of the library's model by ours, and reads this rank's share of its weights."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.safetensors_files import Checkpoint, check_names
from ...checkpoint.weight_forms import Weight, joined, with_outputs
from ...distributed.allocator import release_freed_memory
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.geometry import Geometry
from ...geometry.model_options import Activation
from ...layers.backend import Backend
from ...layers.embedding import OutputHead, Table, VocabularyEmbedding
from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.ops import Ops
from ...quantization.source import MatrixSource
from ...quantization.words.gptq import skip_zero_biases
from ..matrix_rows import Rows
from ..names.weight_names import WeightNames
from ..readers.weight_reader import VOCABULARY_MULTIPLE, WeightReader
from .attention_module import NORMS, PRODUCTS, AttentionModule, PlainAttention, plain_attention, rotates_whole_heads
from .modules import (
    ActivationModule,
    EmbeddingModule,
    FeedForwardModule,
    HeadModule,
    NormModule,
    ProductModule,
    RotationModule,
)
from .parallel_plan import ParallelPlan, Style
from .recognition import GATED, NormKind, activation_of, gated_activation, is_rotation, norm_kind

UNUSED = ("rotary_emb.inv_freq",)  # name endings of tensors that no model needs


class TransformersAssembly:
    """Replaces modules one by one; a module that is not recognised stays, and every rank reads all of its weights."""

    def __init__(
        self,
        model: Any,
        base: nn.Module,
        plan: ParallelPlan,
        num_positions: int,
        checkpoint: Checkpoint,
        source: MatrixSource,
        geometry: Geometry,
        group: TensorParallelGroup,
        backend: Backend,
        on_progress: Callable[[int, int], None],
    ):
        self._reader = WeightReader(checkpoint, source, WeightNames(), geometry, group, backend, on_progress)
        self._model = model
        self._base = base
        self._prefix = f"{model.base_model_prefix}."
        self._plan = plan
        self._num_positions = num_positions
        self._has_prefix = any(name.startswith(self._prefix) for name in checkpoint.entries)
        self._norm_kinds: dict[Any, NormKind | None] = {}
        self._rotates_whole_heads = rotates_whole_heads(model.config.to_dict())
        self._replaced: set[str] = set()  # names of modules inside replaced modules
        self.ours: list[nn.Module] = []  # the replacements

    def assemble(self, ops: Ops) -> tuple[int, dict[str, str]]:
        """The bytes of weights on this rank, and the facts of quantization.

        Raises ConfigError naming a tensor that is missing, unused or of the wrong shape.
        """
        reader = self._reader
        self._vocabulary()
        for name, module in list(self._model.named_modules()):
            if name in self._replaced:
                continue
            if (ours := self._replacement(name, module, ops)) is not None:
                self._put(name, ours)
        self._read_rest()
        skip_zero_biases(reader.checkpoint)
        check_names(reader.checkpoint, (*UNUSED, *self._tied()))
        reader.on_progress(reader.checkpoint.total_bytes, reader.checkpoint.total_bytes)
        return reader.loaded_bytes, reader.source.report.facts()

    def _replacement(self, name: str, module: nn.Module, ops: Ops) -> nn.Module | None:
        if type(module) is nn.Linear:
            return self._linear(name, module)
        if self._rotates_whole_heads and (plain := plain_attention(module)) is not None:
            return self._attention(name, module, plain)
        if (gated := gated_activation(module)) is not None:
            return self._feed_forward(name, module, gated, ops)
        if type(module) is nn.Embedding:
            return EmbeddingModule(self._table(name, module))
        if (kind := self._norm_kind(module)) is not None:
            weight, bias = self._vectors(name, module)
            return NormModule(ops, kind.norm(weight, bias))
        if (activation := activation_of(module)) is not None:
            return ActivationModule(ops, activation)
        if isinstance(module, nn.Dropout):
            return nn.Identity()
        return RotationModule(module, self._num_positions) if is_rotation(module) else None

    def _norm_kind(self, module: nn.Module) -> NormKind | None:
        """Like norm_kind, which runs once for modules of the same kind."""
        shapes = tuple((name, each.shape) for name, each in module.named_parameters(recurse=False))
        if not shapes or "norm" not in type(module).__name__.lower():
            return None
        key = (type(module), shapes, module.extra_repr())
        if key not in self._norm_kinds:
            self._norm_kinds[key] = norm_kind(module)
        return self._norm_kinds[key]

    def _put(self, name: str, module: nn.Module) -> None:
        old = self._model.get_submodule(name)
        self._replaced.update(f"{name}.{child}" for child, _ in old.named_modules() if child)
        self._model.set_submodule(name, module)
        if not isinstance(module, nn.Identity):
            self.ours.append(module)
        self._reader.checkpoint.close()  # mapped pages count as this process's memory until they are unmapped
        if isinstance(module, ProductModule | FeedForwardModule | AttentionModule):
            release_freed_memory()

    def _linear(self, name: str, module: nn.Linear) -> ProductModule:
        size = self._reader.group.size
        style = self._style(name, module)
        if style == "row":
            return ProductModule(self._row_parallel(name, module), module.in_features // size, module.out_features)
        weight, bias = self._outputs(name, module)
        return ProductModule(self._reader.backend.linear(weight, bias), module.in_features, weight.shape[0])

    def _attention(self, name: str, module: nn.Module, plain: PlainAttention) -> nn.Module | None:
        """One product for queries, keys and values; None if ranks divide the layers differently."""
        parts = {part: module.get_submodule(part) for part in PRODUCTS}
        styles = [self._style(f"{name}.{part}", layer) for part, layer in parts.items()]
        if styles not in (["column"] * 3 + ["row"], ["whole"] * 4):
            return None
        into = [(f"{name}.{part}", parts[part]) for part in PRODUCTS[:3]]
        if len({layer.bias is None for _, layer in into}) > 1:
            return None
        norms: list[RMSNorm | None] = [None, None]
        if plain.has_norms:
            kinds = [(f"{name}.{part}", module.get_submodule(part)) for part in NORMS]
            norms = [self._head_norm(each, layer) for each, layer in kinds]
        qkv, (queries, keys, _) = self._side_by_side(into)
        heads = (queries // plain.head_dim, keys // plain.head_dim)
        out = self._row_parallel(f"{name}.{PRODUCTS[3]}", parts[PRODUCTS[3]])
        return AttentionModule(plain, qkv, tuple(norms), out, heads)

    def _head_norm(self, name: str, module: nn.Module) -> RMSNorm:
        kind = self._norm_kind(module)
        assert kind is not None, "it was recognised"
        norm = kind.norm(*self._vectors(name, module))
        assert isinstance(norm, RMSNorm), "likewise"
        return norm

    def _side_by_side(self, into: list[tuple[str, Any]]) -> tuple[Linear, list[int]]:
        """One product for several layers with the same input, and the number of outputs of each on this rank."""
        read = [self._outputs(each, layer) for each, layer in into]
        biases = [bias for _, bias in read if bias is not None]
        product = self._reader.product(joined([weight for weight, _ in read]), torch.cat(biases) if biases else None)
        return product, [weight.shape[0] for weight, _ in read]

    def _feed_forward(self, name: str, module: nn.Module, activation: Activation, ops: Ops) -> nn.Module | None:
        """One module for three products; None if only one of two has a bias, or ranks divide the layers differently."""
        gate, up, down = (f"{name}.{part}" for part in GATED[:3])
        layers = [module.get_submodule(part) for part in GATED[:3]]
        styles = [self._style(each, layer) for each, layer in zip((gate, up, down), layers, strict=True)]
        if styles not in (["column", "column", "row"], ["whole"] * 3) or (layers[0].bias is None) != (
            layers[1].bias is None
        ):
            return None
        gate_up, _ = self._side_by_side([(gate, layers[0]), (up, layers[1])])
        return FeedForwardModule(ops, gate_up, activation, self._row_parallel(down, layers[2]))

    def _style(self, name: str, module: Any) -> Style:
        size, style = self._reader.group.size, self._plan.style(name.removeprefix(self._prefix))
        shared = {"whole": size, "column": module.out_features, "row": module.in_features}[style]
        if shared % size:
            raise ConfigError(f"tensor_parallel_size={size} does not divide the {shared} {style}s of {name}")
        return style

    def _outputs(self, name: str, module: Any) -> tuple[Weight, Tensor | None]:
        """This rank's outputs of a linear layer, or all of them if it is not divided by outputs."""
        reader = self._reader
        stored, outputs = self._stored_name(name), module.out_features
        span = reader.even_span(outputs) if self._style(name, module) == "column" else (0, outputs)
        part = MatrixPart((outputs, module.in_features), 0, *span)
        bias = None if module.bias is None else reader.bias([Rows(stored, outputs, span)])
        return reader.matrix(reader.source.projections, stored, part), bias

    def _row_parallel(self, name: str, module: Any) -> Linear:
        """The product of this rank's inputs, or of all inputs if the layer is not divided by inputs."""
        reader = self._reader
        stored, (outputs, inputs) = self._stored_name(name), (module.out_features, module.in_features)
        bias = None if module.bias is None else reader.bias([Rows(stored, outputs, (0, outputs))])
        if self._style(name, module) != "row":
            weight = reader.matrix(reader.source.projections, stored, MatrixPart((outputs, inputs), 0, 0, outputs))
            return reader.backend.linear(weight, bias)
        part = MatrixPart((outputs, inputs), 1, *reader.even_span(inputs))
        return reader.backend.row_parallel(reader.matrix(reader.source.projections, stored, part), bias, reader.group)

    def _vocabulary(self) -> None:
        """Replace the embedding of tokens, unless its class is unknown, and the output head."""
        embedding, head = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        names = {module: name for name, module in self._model.named_modules()}
        stored = self._stored_name(names[embedding])
        rows, span = self._reader.vocabulary_rows()
        shape = (self._reader.geometry.vocab_size, self._reader.geometry.hidden_size)
        if (embedding.num_embeddings, embedding.embedding_dim) != shape or head.out_features != shape[0]:
            raise ConfigError(f"its embedding and its head are not of {shape[0]} tokens and {shape[1]} elements")
        is_tied, is_plain = f"{names[head]}.weight" in self._tied(), type(embedding) is nn.Embedding
        head_name = stored if is_tied else names[head]
        bias = self._reader.head_bias(names[head]) if head.bias is not None else None
        table: VocabularyEmbedding | None = None
        product: Linear
        if is_tied and is_plain and bias is None and not self._reader.source.quantizes_head:
            tied = self._reader.backend.tied_table(self._reader.table_rows(f"{stored}.weight", shape, span, rows))
            table, product = VocabularyEmbedding(tied, self._reader.group), tied
        else:
            if is_plain:
                share = self._reader.table_rows(f"{stored}.weight", shape, span, rows)
                table = VocabularyEmbedding(self._reader.backend.table(share), self._reader.group)
            part, source = MatrixPart(shape, 0, *span), self._reader.source
            reader = source.tables if is_tied and not source.quantizes_head else source.head
            matrix = with_outputs(self._reader.matrix(reader, head_name, part), rows)
            product = self._reader.backend.head(matrix, bias)
        if table is not None:
            self._put(names[embedding], EmbeddingModule(table))
        self._put(names[head], HeadModule(OutputHead(product, self._reader.geometry.vocab_size, self._reader.group)))

    def _table(self, name: str, module: nn.Embedding) -> Table:
        """A table other than the embedding of tokens; every rank holds all of it."""
        shape, rows = (module.num_embeddings, module.embedding_dim), -(-module.num_embeddings // VOCABULARY_MULTIPLE)
        stored = f"{self._stored_name(name)}.weight"
        weight = self._reader.table_rows(stored, shape, (0, shape[0]), rows * VOCABULARY_MULTIPLE)
        return self._reader.backend.table(weight, name)

    def _vectors(self, name: str, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        stored, parameters = self._stored_name(name), dict(module.named_parameters())
        weight, size = f"{stored}.weight" if stored else "weight", len(parameters["weight"])
        has_bias = "bias" in parameters
        return self._reader.vector(weight, size), self._reader.vector(f"{stored}.bias", size) if has_bias else None

    def _read_rest(self) -> None:
        """Read the weights of modules that were not replaced, and buffers that are in the file."""
        for owner, name, full_name, held in list(self._rest()):
            stored = self._stored_name(full_name)
            if isinstance(held, nn.Parameter) or stored in self._reader.checkpoint.entries:
                values = self._reader.read_tensor(stored, tuple(held.shape))
                kept = nn.Parameter(values, requires_grad=False) if isinstance(held, nn.Parameter) else values
                setattr(owner, name, kept)
            elif held.is_meta:
                raise ConfigError(f"transformers leaves the buffer {full_name} empty, and the checkpoint lacks it")

    def _rest(self) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
        for prefix, module in self._model.named_modules():
            held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for name, tensor in held:
                yield module, name, f"{prefix}.{name}" if prefix else name, tensor

    def _tied(self) -> tuple[str, ...]:
        """Names of weights that are tied to others and not in the checkpoint."""
        if not self._reader.geometry.tie_word_embeddings:
            return ()
        names = getattr(self._model, "_tied_weights_keys", None) or ()
        return tuple(name for name in names if name not in self._reader.checkpoint.entries)

    def _stored_name(self, name: str) -> str:
        """A module's name in the checkpoint, which lacks the prefix if it was saved without the head."""
        return name if self._has_prefix else re.sub(f"^{re.escape(self._prefix)}", "", name)
