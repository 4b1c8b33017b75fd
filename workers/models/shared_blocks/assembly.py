"""Builds a SharedBlockDecoder from this rank's share of a checkpoint."""

from dataclasses import dataclass, fields, replace

import torch

from ...geometry.layer_options import SharedBlocks
from ...layers.feed_forward import DenseFeedForward
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...mixers.attention import Attention
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..decoder import DecoderLayer
from ..matrix_rows import Rows, Span, query_key_value_rows, stacked_rows
from ..projected import AdaptedLinear, Adapter
from ..readers.layer_reader import LayerReader
from .decoder import BlockUse, SharedBlockDecoder


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The weights that all uses of a block share; those of its tensors' names have the number of its first use."""

    first: int  # a LayerNumber
    attention_norm: Norm
    attention: Attention  # of the first use
    mlp_norm: Norm
    feed_forward: DenseFeedForward


class SharedBlockAssembly(Assembly):
    """Each block is held once. Heads and rows of adapters are divided among the ranks like those that they change."""

    def __init__(self, reader: LayerReader):
        super().__init__(reader)
        assert reader.geometry.shared_blocks is not None, "the model's layers share no blocks"
        self._sizes: SharedBlocks = reader.geometry.shared_blocks
        self._blocks: list[Block] = []
        self._uses: dict[int, BlockUse] = {}
        self._ones = torch.ones(reader.geometry.hidden_size, device=reader.device)

    def model(self, pooling: PoolingHead) -> SharedBlockDecoder:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        model = super().model(pooling)
        own = {each.name: getattr(model, each.name) for each in fields(model)}
        return SharedBlockDecoder(**own, uses=self._uses, ones=self._ones)

    def layer(self, index: int) -> DecoderLayer:
        if self._reader.geometry.recurrent_of(index) is not None:
            return super().layer(index)
        use = self._uses[index] = self._use(index)
        return DecoderLayer(use.attention_norm, use.attention, None, use.mlp_norm, use.feed_forward, None)

    def _use(self, index: int) -> BlockUse:
        number, reader = len(self._uses), self._reader
        if number < self._sizes.count:
            self._blocks.append(self._block(index))
        block, names = self._blocks[number % self._sizes.count], reader.names.shared_blocks
        hidden = reader.geometry.hidden_size
        attention = replace(block.attention, layer=index)
        if self._sizes.adapts_attention:
            attention = replace(attention, qkv=self._adapted_queries(block, number))
        up = stacked_rows([names.gate_up_up.format(block.first, number)] * 2, *self._share_of_feed_forward())
        gate_up = self._adapted(block.feed_forward.gate_up, [(names.gate_up_down, up)], block, number, hidden)
        return BlockUse(
            attention_norm=block.attention_norm,
            attention=attention,
            mlp_norm=block.mlp_norm,
            feed_forward=replace(block.feed_forward, gate_up=gate_up),
            leaving=self._whole(names.leaving.format(index), hidden, hidden),
        )

    def _share_of_feed_forward(self) -> tuple[int, Span]:
        size = self._reader.geometry.intermediate_size
        return size, self._reader.even_span(size)

    def _block(self, first: int) -> Block:
        reader, names = self._reader, self._reader.names
        geometry, hidden = reader.geometry, reader.geometry.hidden_size
        feed_forward = self._feed_forward.dense(first)
        assert isinstance(feed_forward, DenseFeedForward)
        inner = geometry.num_heads * geometry.head_dim
        attention = Attention(
            layer=first,
            qkv=reader.column_parallel(
                self._rows_of_heads(first, (names.query, names.key, names.value)), 2 * hidden, False
            ),
            query_norm=None,
            key_norm=None,
            output=reader.row_parallel(names.output.format(first), hidden, inner, False),
            options=self._attention.options(first),
            ops=self._ops,
            backend=self._attention_backend,
        )
        return Block(
            first=first,
            attention_norm=reader.norm(names.attention_norm.format(first), 2 * hidden),
            attention=attention,
            mlp_norm=reader.norm(names.mlp_norm.format(first), hidden),
            feed_forward=feed_forward,
        )

    def _rows_of_heads(self, index: int, names: tuple[str, str, str], *number: int) -> list[Rows]:
        reader = self._reader
        query, key, value = (name.format(index, *number) for name in names)
        queries, keys = reader.even_span(reader.geometry.num_heads), reader.kv_heads(index)
        return query_key_value_rows((query, key, value), reader.geometry, queries, keys, index, are_grouped=False)

    def _adapted_queries(self, block: Block, number: int) -> Linear:
        names = self._reader.names.shared_blocks
        rows = self._rows_of_heads(block.first, (names.query_up, names.key_up, names.value_up), number)
        downs = names.query_down, names.key_down, names.value_down
        parts = [(down, [own]) for down, own in zip(downs, rows, strict=True)]
        return self._adapted(block.attention.qkv, parts, block, number, 2 * self._reader.geometry.hidden_size)

    def _adapted(
        self, product: Linear, parts: list[tuple[str, list[Rows]]], block: Block, number: int, inputs: int
    ) -> Linear:
        """With an adapter for the columns of each part: the name of its first projection, and rows of its second."""
        rank = self._sizes.adapter_rank
        adapters = [
            Adapter(
                down=self._whole(down.format(block.first, number), rank, inputs),
                up=self._reader.column_parallel(up, rank, False),
                columns=sum(map(len, up)),
            )
            for down, up in parts
        ]
        return AdaptedLinear(product, adapters, self._ops, self._reader.device)

    def _whole(self, name: str, rows: int, columns: int) -> Linear:
        """A product of which every rank computes all."""
        return self._reader.column_parallel([Rows(name, rows, (0, rows))], columns, False)
