"""FalconMamba: Mamba 1 with norms without weights of the time steps, of b and of c."""

from dataclasses import replace

from ...checkpoint.hf_config import HFConfig
from ...geometry.recurrent.recurrent import Recurrent
from .mamba import MAMBA
from .mamba1_layers import mamba1_layer


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    return (mamba1_layer(config, "plain", config.mixer_rms_eps),) * config.num_hidden_layers


FALCON_MAMBA = replace(MAMBA, name="falcon_mamba", architectures=("FalconMambaForCausalLM",), recurrent=recurrent)
