"""A head whose drafts and logits a test compares."""

import torch

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.workers.process.drafting.draft_head import CachedHead

from ..direct import counts


class WithLogits(CachedHead):
    """Keeps all drafts, and their logits."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.clear()

    def clear(self):
        self.logits, self.drafts = [], []

    def best(self, hidden):
        self.logits.append(self._head.logits(hidden).clone())
        found = super().best(hidden)
        self.drafts.append(torch.from_numpy(found))
        return found


def assert_drafts_are_those_of(reference, row, drafter, prompt):
    """In six rounds of three drafts, by `reference.drafts(tokens, count)`: their logits, and the best tokens."""
    tokens, output = list(prompt), row.first
    for _ in range(6):
        tokens += unpack_ids(output.token_ids)
        drafter._head.clear()
        output = row.verify(3)
        logits, drafts = reference.drafts(tokens, 3)
        assert counts(output)[0] == [3]
        assert (torch.cat(drafter._head.logits) - logits).abs().max() < 1e-4 * logits.abs().max()
        assert torch.cat(drafter._head.drafts).tolist() == drafts
