"""Quantized weights, read from checkpoints or made on load; the rest of the model sees two canonical forms."""
