"""The gated feed-forward's nonlinearity."""

from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """[tokens, 2 * n] holding gate then up -> silu(gate) * up [tokens, n]; in float32, rounded once.

    Written out with exp, because torch's own silu and sigmoid take another formula for the elements at the end of a
    thread's share, so that a row's bits would depend on its place.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * up).div_((-gate).exp_().add_(1.0)).to(gate_up.dtype)
