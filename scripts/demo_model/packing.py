"""Rows of whole documents, so that no position is wasted on padding, and none attends to another document."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .text.documents import TextSource

NOT_LEARNED = -100
CACHE_PIECES = 50_000
WAITING = 12  # documents among which the next is chosen, so that few are cut at the end of a row


@dataclass(frozen=True, slots=True)
class Batch:
    token_ids: Tensor  # [rows, length] i64
    targets: Tensor  # [rows, length] i64, NOT_LEARNED where the loss does not look
    bias: Tensor  # [rows, 1, length, length] bf16, added to the attention scores


class Packer:
    def __init__(self, tokenizer, source: TextSource, rows: int, length: int, long_documents: bool = False):
        self.tokenizer, self.source, self.rows, self.length = tokenizer.backend_tokenizer, source, rows, length
        self.make_document = source.long_document if long_documents else source.document
        self.cache: dict[str, list[int]] = {}
        self.waiting: list[tuple[list[int], list[int]]] = []

    def batch(self, copy_first: bool) -> Batch:
        shape = (self.rows, self.length)
        token_ids, document = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        targets = torch.full(shape, NOT_LEARNED)
        for row in range(self.rows):
            at = number = 0
            while at < self.length:
                ids, wanted = self._next(self.length - at, copy_first)
                number += 1
                n = min(len(ids) - 1, self.length - at)
                token_ids[row, at : at + n] = torch.tensor(ids[:n])
                targets[row, at : at + n] = torch.tensor(wanted[1 : n + 1])
                document[row, at : at + n] = number
                at += n
        return Batch(token_ids, targets, self._bias(document))

    def _next(self, room: int, copy_first: bool) -> tuple[list[int], list[int]]:
        """The oldest waiting document that fits; where none does, the oldest, which will be cut."""
        while len(self.waiting) < WAITING:
            self.waiting.append(self._tokens(copy_first))
        fitting = (at for at, (ids, _) in enumerate(self.waiting) if len(ids) - 1 <= room)
        return self.waiting.pop(next(fitting, 0))

    def _tokens(self, copy_first: bool) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        wanted: list[int] = []
        for piece in self.make_document(copy_first):
            new = self._encode(piece.text)
            ids += new
            wanted += new if piece.learned else [NOT_LEARNED] * len(new)
        return ids, wanted

    def _encode(self, text: str) -> list[int]:
        if text not in self.cache:
            if len(self.cache) > CACHE_PIECES:
                self.cache.clear()
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.cache[text]

    def _bias(self, document: Tensor) -> Tensor:
        causal = torch.ones(self.length, self.length, dtype=torch.bool).tril()
        visible = causal & (document[:, :, None] == document[:, None, :])
        bias = torch.zeros(self.rows, 1, self.length, self.length, dtype=torch.bfloat16)
        return bias.masked_fill_(~visible[:, None], -1e4)
