"""Metadata that no field of config.json has: it must not change results, or the file is refused."""

from ..model import GgufModel

# These describe what shapes of tensors say as well, what is outside the text, or where a model comes from.
DESCRIPTIONS = {
    "vocab_size",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_shared_count",
    "leading_dense_block_count",
    "interleave_moe_layer_step",
    "tensor_data_layout",
    "rope.dimension_sections",  # of images: the three positions of a text's token are the same
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.freq_base",  # of architectures without rotation
    "rope.dimension_count",
    "attention.head_count",  # of architectures without attention
    "n_deepstack_layers",  # of images
    "deepstack_mapping",
    "pooling_type",
    "attention.layer_norm_epsilon",  # some files have this and the next, and models only one kind of norm
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
}
NEUTRAL = {  # values that change nothing; of other keys 0 and False
    "attention.causal": (True,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (0, 1),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.type": ("none",),
}


def check_unread(model: GgufModel) -> None:
    """Raises ConfigError naming a key that was not read although its value changes results, or may."""
    beginning = f"{model.architecture}."
    for key, value in model.metadata.values.items():
        name = key.removeprefix(beginning)
        if name == key or name in model.used_names or name in DESCRIPTIONS:
            continue
        if value not in NEUTRAL.get(name, (0, False)) and not _is_wide_window(model, name):
            shown = repr(value)
            raise model.refused(f"{key}={shown[:60]}{'…' if len(shown) > 60 else ''} is not supported")


def _is_wide_window(model: GgufModel, name: str) -> bool:
    """Whether it is a sliding window that holds every text of the model's context."""
    return name == "attention.sliding_window" and model.whole(name) >= model.whole("context_length")
