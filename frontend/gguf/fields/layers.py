"""What differs from layer to layer: kinds of attention, tensors that only some layers have."""

from ..model import MAX_SIZE, GgufModel

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_types(model: GgufModel, period: int, *, first_is_full: bool = False) -> list[str]:
    """The kind of attention of each layer: by a list or a period in the file, or else full in each `period`-th.

    `first_is_full`: the first layer of each period is the one with full attention, not the last.
    """
    layers = model.num_layers()
    slides = model.metadata.values.get(model.key("attention.sliding_window_pattern"))
    if isinstance(slides, list):
        found = [bool(each) for each in model.numbers("attention.sliding_window_pattern")]
        if len(found) < layers:
            raise model.refused(f"attention.sliding_window_pattern has {len(found)} entries for {layers} layers")
    else:
        if (period := model.whole("attention.sliding_window_pattern", period)) < 1:
            raise model.refused(f"attention.sliding_window_pattern={period} must be at least 1")
        found = [(layer + (not first_is_full)) % period != 0 for layer in range(layers)]
    return [SLIDING if each else FULL for each in found[:layers]]


def rows_of(model: GgufModel, name: str) -> int:
    """The outputs of a matrix, which is in every file of the architecture."""
    tensor = model.tensor(name)
    if tensor is None or len(tensor.shape) != 2:
        raise model.refused(f"it has no matrix {name}")
    return tensor.shape[0]


def feed_forward_length(model: GgufModel) -> int:
    """Of all layers. Raises ConfigError if they differ."""
    if len(sizes := set(feed_forward_lengths(model))) != 1:
        raise model.refused(f"feed_forward_length={sorted(sizes)[:20]} must be one size for all layers")
    return sizes.pop()


def feed_forward_lengths(model: GgufModel) -> list[int]:
    """Of each layer; some files have a list. Raises ConfigError."""
    key, layers = model.key("feed_forward_length"), model.num_layers()
    if not isinstance(model.metadata.values.get(key), list):
        # Of models whose layers all have experts, some files do not say the size of a dense one.
        return [model.whole("feed_forward_length", 0 if model.has("expert_feed_forward_length") else None)] * layers
    sizes = model.numbers("feed_forward_length")
    if len(sizes) < layers or not all(0 <= size <= MAX_SIZE for size in sizes):
        raise model.refused(f"feed_forward_length={sizes[:20]} must have a size for each of {layers} layers")
    return [int(size) for size in sizes[:layers]]


def tensors_are_in_layers(model: GgufModel, name: str) -> bool:
    """Whether the layers have a tensor of that name. Raises ConfigError if only some do."""
    has = {model.tensor(f"blk.{layer}.{name}") is not None for layer in range(model.num_layers())}
    if len(has) > 1:
        raise model.refused(f"only some of its layers have a tensor {name}")
    return True in has
