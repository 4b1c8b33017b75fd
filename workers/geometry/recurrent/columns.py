"""The layout of states that are matrices: columns of LANES outputs, one number of each side by side."""

LANES = 16  # the last column of a head is padded
ALIGNMENT = 64  # bytes
STATE_BYTES = 4  # of a number: float32 in every model


def state_shape(heads: int, outputs: int, depth: int) -> tuple[int, int, int, int]:
    """The shape of a layer's state, float32, with `depth` numbers for each output of a head."""
    return heads, -(-outputs // LANES), depth, LANES


def conv_bytes(width: int, channels: int, itemsize: int) -> int:
    """The bytes of a convolution's state, with those that align the state after it."""
    return -(-(width - 1) * channels * itemsize // ALIGNMENT) * ALIGNMENT
