"""Muon for the matrices, AdamW for embeddings and norms."""

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic that pulls all singular values towards 1


def orthogonal(gradients: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrix of each in a stack, [n, rows, columns]."""
    x = gradients.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).float()


class Muon:
    """Momentum, then orthogonal updates; matrices of one shape go through one stacked product."""

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.05):
        self.momentum, self.decay = momentum, decay
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            self.groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self.averages = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group])
            average = self.averages[shape].lerp_(gradients, 1 - self.momentum)
            updates = orthogonal(gradients.lerp(average, self.momentum)) * max(1, shape[0] / shape[1]) ** 0.5
            for matrix, update in zip(group, updates, strict=True):
                matrix.mul_(1 - rate * self.decay).add_(update, alpha=-rate)


class Optimizer:
    def __init__(self, model: nn.Module, muon_rate: float = 0.02, adam_rate: float = 3e-3):
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.dim() == 2 and "embed" not in name]
        chosen = {id(p) for p in matrices}
        self.others = [p for p in named.values() if id(p) not in chosen]
        self.muon, self.muon_rate, self.adam_rate = Muon(matrices), muon_rate, adam_rate
        self.adam = torch.optim.AdamW(self.others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0, fused=True)

    def step(self, factor: float) -> None:
        """`factor` is the share of the full learning rate."""
        nn.utils.clip_grad_norm_(self.others, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * factor
        self.adam.step()
        self.muon.step(self.muon_rate * factor)
        self.adam.zero_grad(set_to_none=True)
        for group in self.muon.groups.values():
            for matrix in group:
                matrix.grad = None
