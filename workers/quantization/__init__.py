"""Quantized weights, read from checkpoints or quantized on load; the rest of the model sees canonical forms only."""
