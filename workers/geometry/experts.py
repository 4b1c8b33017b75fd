"""The geometry of a mixture of experts."""

from dataclasses import dataclass
from typing import Literal

from paged_serve.protocol.errors import ConfigError

# softmax: of all logits. …_of_chosen: of the chosen logits. sparse_mixer: see csrc/cpu/experts/route.cpp.
Score = Literal["softmax", "softmax_of_chosen", "sigmoid", "sparse_mixer", "sigmoid_of_chosen"]
NUM_SHARES = 4  # of consecutive experts; shares are summed apart, so that ranks can have whole ones


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer, of which each token is computed by `top_k`; a shared expert computes every token."""

    count: int
    top_k: int
    intermediate_size: int  # of each expert
    score: Score = "softmax"
    renormalises: bool = False  # weights are divided by their sum
    scale: float = 1.0  # of the weights
    groups: int = 1  # of consecutive experts, see top_groups
    # A token uses experts of so many groups: those with the best sum of two scores, with softmax with the best score.
    top_groups: int = 1
    # A vector is added to the scores, with …_of_chosen to the logits, to choose experts, not to weigh them.
    has_correction: bool = False
    jitter: float = 0.0  # sparse_mixer
    weighs_inputs: bool = False  # weights multiply the experts' inputs instead of their outputs
    shared_size: int = 0  # intermediate size of the shared expert; 0: there is none
    # gated: its output is multiplied by the sigmoid of a projection. mean: of both, where that gate is sigmoid(0).
    shared_as: Literal["sum", "gated", "mean"] = "sum"
    router_bias: bool = False
    biases: bool = False  # of the experts' projections
    has_common_bias: bool = False  # of the sum of outputs, whose weights add up to 1
    has_factors: bool = False  # each expert's weights are multiplied by a learned number at the end
    identities: int = 0  # further choices of a router, experts whose output is their input
    # The layer also has a dense feed-forward; the output of the experts is added at the end of the next layer.
    is_added_later: bool = False
    # The layer also has a dense feed-forward; both, and the router, have norms of their own.
    is_beside_dense: bool = False

    @property
    def has_shared_gate(self) -> bool:
        """Whether the router's last column is the shared expert's gate."""
        return self.shared_as != "sum"

    @property
    def choices(self) -> int:
        """What a router chooses from."""
        return self.count + self.identities

    def check(self) -> None:
        """Raises ConfigError naming the field of config.json that is out of range."""
        if self.count < 1 or not 1 <= self.top_k <= self.choices:
            raise ConfigError(
                f"config.json: num_experts_per_tok={self.top_k} must be from 1 to the number of experts, {self.choices}"
            )
        if self.intermediate_size < 1:
            raise ConfigError(
                f"config.json: the experts' intermediate size {self.intermediate_size} must be at least 1"
            )
        if self.groups < 1 or self.count % self.groups:
            raise ConfigError(f"config.json: n_group={self.groups} does not divide the {self.count} experts")
        if not 1 <= self.top_groups <= self.groups or self.top_groups * (self.count // self.groups) < self.top_k:
            raise ConfigError(
                f"config.json: topk_group={self.top_groups} of n_group={self.groups} groups must hold the "
                f"num_experts_per_tok={self.top_k} experts of a token"
            )

    def bytes_per_place(self, hidden_size: int, element_bytes: int) -> int:
        """Bytes of row buffers for one of a token's experts, in one layer.

        They are the row, its codes and its copy in the layout of tiles; gate and up, their product and its codes; and
        the output in float32. No format needs all of them.
        """
        return hidden_size * (2 * element_bytes + 1 + 4) + self.intermediate_size * (3 * element_bytes + 1)

    def held_by(self, rank: int, num_ranks: int) -> range:
        """The experts of one of 1, 2 or 4 ranks: those of its shares."""
        shares = NUM_SHARES // num_ranks
        return range(self._border(rank * shares), self._border((rank + 1) * shares))

    def share_of(self, expert: int) -> int:
        return next(share for share in range(NUM_SHARES) if expert < self._border(share + 1))

    def _border(self, share: int) -> int:
        return self.count * share // NUM_SHARES
