"""Latent attention's projection from the latent, which newer GGUF files have in two tensors.

That of keys is stored transposed for each head, [heads, latent, keys]; that of values is [heads, values, latent]. In a
Hugging Face checkpoint one matrix has for each head its keys, then its values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufTensor

KEYS_OF_LATENT, VALUES_OF_LATENT, WHOLE = "self_attn.k_b_proj", "self_attn.v_b_proj", "self_attn.kv_b_proj"
LATENT = {  # the modules of latent attention, in GGUF files and in checkpoints
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": WHOLE,
    "attn_k_b": KEYS_OF_LATENT,
    "attn_v_b": VALUES_OF_LATENT,
}


@dataclass(frozen=True, slots=True)
class SplitLatent:
    """The two tensors, and the shape of the one that they stand for."""

    keys: GgufTensor
    values: GgufTensor

    def check(self, source: str) -> None:
        """Raises ConfigError unless the two belong together."""
        keys, values = self.keys.shape, self.values.shape
        if len(keys) != 3 or len(values) != 3 or keys[0] != values[0] or keys[1] != values[2]:
            raise ConfigError(
                f"{source}: tensors {self.keys.name} {list(keys)} and {self.values.name} {list(values)} must be "
                "[heads, latent, keys] and [heads, values, latent]"
            )

    @property
    def shape(self) -> tuple[int, int]:
        heads, latent, keys = self.keys.shape
        return heads * (keys + self.values.shape[1]), latent

    @property
    def num_bytes(self) -> int:
        return self.keys.num_bytes + self.values.num_bytes

    def joined(self, keys: Tensor, values: Tensor) -> Tensor:
        """The matrix of `shape`, from the elements of both."""
        by_head = keys.view(self.keys.shape).transpose(1, 2), values.view(self.values.shape)
        return torch.cat(by_head, dim=1).flatten(0, 1)


def as_matrix(tensor: GgufTensor) -> GgufTensor:
    """With heads and their rows in one dimension."""
    return GgufTensor(
        tensor.name, (tensor.num_elements // tensor.shape[-1], tensor.shape[-1]), tensor.format, tensor.start
    )
