"""The layers of mixtures of experts that several families share."""

from ...checkpoint.experts import Experts
from ...checkpoint.hf_config import HFConfig


def in_all_layers(config: HFConfig, experts: Experts) -> tuple[Experts | None, ...]:
    return (experts,) * config.num_hidden_layers


def in_chosen_layers(config: HFConfig, experts: Experts) -> tuple[Experts | None, ...]:
    """Dense are the first layers, those named, and all but every n-th of the others."""
    step, dense = config.decoder_sparse_step, set(config.mlp_only_layers or ())
    first = min(config.first_k_dense_replace, config.num_hidden_layers)
    rest = range(first, config.num_hidden_layers)
    others = (None if layer in dense or (layer + 1) % step else experts for layer in rest)
    return (*[None] * first, *others)
