"""The gated delta nets that several families share."""

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.gated_delta import GatedDeltaLayer
from ...geometry.recurrent.recurrent import Recurrent
from .family import FULL
from .mamba2_layers import LINEAR


def gated_delta_layer(config: HFConfig, norm_eps: float, max_beta: float = 1.0) -> GatedDeltaLayer:
    """Raises ConfigError for sizes that no kernel supports."""
    sizes = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim
    layer = GatedDeltaLayer(
        config.linear_num_value_heads, config.linear_num_key_heads, *sizes, norm_eps=norm_eps, max_beta=max_beta
    )
    layer.check()
    return layer


def in_linear_layers(layer: Recurrent, config: HFConfig) -> tuple[Recurrent | None, ...]:
    """By `layer_types`, or else in all layers but every n-th (full_attention_interval)."""
    layers = range(1, config.num_hidden_layers + 1)
    kinds = config.layer_types or [FULL if at % config.full_attention_interval == 0 else LINEAR for at in layers]
    return tuple(layer if kind == LINEAR else None for kind in kinds)
