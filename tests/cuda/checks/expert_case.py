"""Routers, logits, and rows with random experts: the cases of the checks of experts."""

from dataclasses import dataclass

import torch

from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.kernels.cuda.experts import products
from paged_serve.workers.kernels.cuda.experts.routing import place_experts

GROUPED = Experts(40, 6, 64, "sigmoid", True, 1.5, groups=8, top_groups=3, has_correction=True)
ROUTERS = {
    "softmax": Experts(60, 4, 64),
    "many": Experts(200, 10, 64, renormalises=True, scale=2.5),
    "of the chosen": Experts(33, 4, 64, "softmax_of_chosen"),
    "sigmoid": Experts(16, 1, 64, "sigmoid"),
    "sigmoids of the chosen": Experts(33, 4, 64, "sigmoid_of_chosen", has_correction=True),
    "groups": GROUPED,
    "more groups than experts of a token": Experts(36, 2, 64, "sigmoid", groups=18, top_groups=5, has_correction=True),
    "groups by their best": Experts(40, 3, 64, groups=8, top_groups=3),
    "groups of one": Experts(40, 3, 64, groups=40, top_groups=7),
    "gate": Experts(88, 3, 64, shared_size=8, shared_as="gated"),
    "one of one": Experts(1, 1, 64),
    "all": Experts(7, 7, 64, renormalises=True),
    "sparse mixer": Experts(48, 3, 64, "sparse_mixer", jitter=0.1),
}

IN_CHECK = ("many", "of the chosen", "sigmoids of the chosen", "groups", "groups of one", "gate", "sparse mixer")


def random(seed):
    return torch.Generator().manual_seed(seed)


def logits_of(experts, rows=19, segments=1):
    """[segments, rows, columns] with many ties; the sum of the segments is exact."""
    logits = 2 * torch.randn(rows, experts.count + experts.has_shared_gate, generator=random(experts.count))
    logits = (logits * 4096).round() / 4096
    logits[::3] = logits[::3].round()
    logits[5] = 0.25
    parts = torch.randint(-64, 64, (segments - 1, *logits.shape), generator=random(1)) / 64
    return torch.cat([(logits - parts.sum(0)).unsqueeze(0), parts]).contiguous()


@dataclass(frozen=True, eq=False)
class Case:
    """Rows with random experts, of which one has no rows and one has many, on a rank that holds some of them."""

    rows: int
    top_k: int
    count: int
    held: range
    device: str

    @property
    def chosen(self):
        generator, empty, popular = random(self.rows), self.count // 2, self.count // 3
        scores = torch.rand(self.rows, self.count, generator=generator)
        scores[:, empty] = -1.0
        scores[1:, popular] = 2.0
        return scores.topk(self.top_k).indices.sort(1).values.int()

    def places(self, launcher):
        return place_experts(launcher, self.chosen.to(self.device), self.held)

    def expected(self):
        """(places [rows, top_k], sources in use, starts) by sorting."""
        chosen = self.chosen.tolist()
        pairs = sorted((e, row) for row, own in enumerate(chosen) for e in own if e in self.held)
        place_of = {pair: place for place, pair in enumerate(pairs)}
        places = [[place_of.get((e, row), -1) for e in own] for row, own in enumerate(chosen)]
        starts = [sum(e < first for e, _ in pairs) for first in [*self.held, self.held.stop]]
        return places, [row for _, row in pairs], starts


def in_shape(shape, run):
    """Runs with tiles of one shape."""
    usual = products.shape_for
    products.shape_for = lambda count, held: shape
    try:
        return run()
    finally:
        products.shape_for = usual
