"""A head whose drafts and logits a test compares."""

import torch

from paged_serve.workers.process.drafting.draft_head import CachedHead


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
