"""The layout of states that are matrices: columns of LANES outputs, one number of each side by side."""

LANES = 16  # the last column of a head is padded
STATE_BYTES = 4  # of a number: float32 in every model


def state_shape(heads: int, outputs: int, depth: int) -> tuple[int, int, int, int]:
    """The shape of a layer's state, float32, with `depth` numbers for each output of a head."""
    return heads, -(-outputs // LANES), depth, LANES
