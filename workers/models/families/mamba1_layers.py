"""The Mamba 1 layers that several families share."""

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.mamba1 import Mamba1Layer, PartNormKind


def mamba1_layer(config: HFConfig, part_norms: PartNormKind, norm_eps: float = 0.0) -> Mamba1Layer:
    """Raises ConfigError for sizes that no kernel supports."""
    channels = config.mamba_intermediate_size
    if channels is None:
        channels = config.mamba_expand * config.hidden_size
    layer = Mamba1Layer(
        channels=channels,
        state_size=config.mamba_d_state,
        step_rank=-(-config.hidden_size // 16) if config.mamba_dt_rank == "auto" else config.mamba_dt_rank,
        width=config.mamba_d_conv,
        has_bias=config.mamba_proj_bias,
        has_conv_bias=config.mamba_conv_bias,
        part_norms=part_norms,
        norm_eps=norm_eps,
    )
    layer.check()
    return layer
