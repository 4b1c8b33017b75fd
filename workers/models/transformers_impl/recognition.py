"""Recognises modules that one of our kernels can replace, by comparing both on random numbers."""

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ...geometry.model_options import Activation
from ...layers.activation import activated
from ...layers.norm import LayerNorm, Norm, RMSNorm

TOLERANCE = 1e-5  # of float32 results near 1, relative; results of different variants differ by more than 1e-4
SEED = 5
SCALES = (1e-4, 1.0, 30.0)  # of the inputs; with small inputs the results depend on eps
GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")  # the parts of a feed-forward with a gate
KINDS = (
    Activation("silu", False),
    Activation("gelu", False),
    Activation("gelu_tanh", False),
    Activation("relu", False),
)


class NormKind:
    """How a module normalises: centred or not, its eps, and the number that is added to its weight."""

    def __init__(self, is_centred: bool, eps: float, added: float):
        self.is_centred, self.eps, self.added = is_centred, eps, added

    def norm(self, weight: Tensor, bias: Tensor | None) -> Norm:
        weight = weight.float() + self.added if self.added else weight.float()
        return LayerNorm(weight, bias, self.eps) if self.is_centred else RMSNorm(weight, self.eps)


def norm_kind(module: nn.Module) -> NormKind | None:
    """How `module` normalises; None if none of our norms agrees. Its weights need not be in memory yet."""
    parameters = dict(module.named_parameters())
    eps = next(
        (found for name in ("variance_epsilon", "eps", "epsilon") if (found := getattr(module, name, None))), None
    )
    if not isinstance(eps, float) or "weight" not in parameters or not parameters.keys() <= {"weight", "bias"}:
        return None
    weight = parameters["weight"]
    if any(each.dim() != 1 or each.shape != weight.shape for each in parameters.values()) or list(module.children()):
        return None
    model_copy = copy.deepcopy(module).to_empty(device="cpu").float()
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model_copy.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    bias = dict(model_copy.named_parameters()).get("bias")
    inputs = [scale * (0.5 + torch.randn(1, 3, len(weight), generator=generator)) for scale in SCALES]
    for is_centred, added in ((False, 0.0), (False, 1.0), (True, 0.0), (True, 1.0)):
        kind = NormKind(is_centred, eps, added)
        if (is_centred or bias is None) and _agree(
            model_copy, kind.norm(dict(model_copy.named_parameters())["weight"], bias), inputs
        ):
            return kind
    return None


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that `module` computes; None if it is not one of ours without a gate."""
    if type(module).__module__ not in ("transformers.activations", "torch.nn.modules.activation"):
        return None
    if list(module.parameters()):
        return None
    inputs = [torch.linspace(-9.0, 9.0, 1 << 12).view(1, 1, -1)]
    for kind in KINDS:
        if _agree(module, partial(activated, activation=kind), inputs):
            return kind
    return None


def gated_activation(module: nn.Module) -> Activation | None:
    """The activation of a feed-forward down_proj(act_fn(gate_proj(x)) * up_proj(x)); None for any other module.

    The comparison uses a copy with small products.
    """
    children = dict(module.named_children())
    products = [children.get(name) for name in GATED[:3]]
    if children.keys() != set(GATED) or any(type(each) is not nn.Linear for each in products):
        return None
    if (activation := activation_of(children["act_fn"])) is None or list(module.parameters(recurse=False)):
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        gate, up, down = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6)
        x = torch.randn(1, 4, 6)
    model_copy = copy.copy(module)
    model_copy._modules = dict(zip(GATED, (gate, up, down, children["act_fn"]), strict=True))
    try:
        found = model_copy(x)
    except (RuntimeError, TypeError, AttributeError):
        return None
    expected = down(activated(gate(x), activation) * up(x))
    is_equal = isinstance(found, Tensor) and torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return Activation(activation.kind) if is_equal else None


def is_rotation(module: nn.Module) -> bool:
    """Whether `module` computes cosines and sines of positions, and nothing else."""
    parameters = list(inspect.signature(module.forward).parameters)
    return (
        "rotary" in type(module).__name__.lower()
        and not list(module.parameters())
        and parameters[:2] == ["x", "position_ids"]
    )


def _agree(theirs: nn.Module, ours: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> bool:
    for x in inputs:
        expected, found = theirs(x), ours(x)
        if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * float(expected.abs().max())):
            return False
    return True
